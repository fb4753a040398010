//! The Tinker API, from both ends.
//!
//! [`types`] holds every request and answer in both wire forms; a server reads what a client writes and the other way
//! round. [`convert`] is the only place where they become core's values, and where they are checked. The `client` feature
//! adds a client that survives bad networks, and core's traits over it.

#[cfg(feature = "client")]
pub mod client;
pub mod convert;
#[cfg(feature = "client")]
mod remote;
pub mod types;

#[cfg(feature = "client")]
pub use remote::{RemoteOptions, RemoteService};
