//! The Tinker API, from both ends.
//!
//! [`types`] holds every request and answer in both wire forms; a server reads what a client writes and the other way
//! round. [`convert`] is the only place where they become core's values, and where they are checked.

pub mod convert;
pub mod types;
