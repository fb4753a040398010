//! The Tinker API, for clients and servers.
//!
//! [`types`] holds every request and response in both wire forms; servers and clients share them. [`convert`] is the
//! only place that validates them and converts them to core's values. The `client` feature adds a client that survives
//! bad networks, and core's traits over it.

#[cfg(feature = "client")]
pub mod client;
pub mod convert;
#[cfg(feature = "client")]
mod remote;
pub mod types;

#[cfg(feature = "client")]
pub use remote::{RemoteOptions, RemoteService};
