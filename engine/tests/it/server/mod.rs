//! The server, spoken to over sockets as strangers do.

mod bodies;
mod contract;
mod guards;
mod kit;
mod lifetime;
mod order;
mod sampling;
