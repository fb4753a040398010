//! The server, spoken to over sockets as strangers do.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod bodies;
mod contract;
mod faults;
mod guards;
mod kit;
mod lifetime;
mod order;
mod sampling;
