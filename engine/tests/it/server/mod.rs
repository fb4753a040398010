//! The server, spoken to over sockets as strangers do.

mod bodies;
mod contract;
mod kit;
mod lifetime;
mod order;
mod sampling;
