//! The Tinker API from outside the crate.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod answers;
mod contract;
mod faults;
mod golden;
mod kit;
mod lost;
mod parts;
mod secrets;
mod skyrl;
mod transcripts;
mod wrong;
