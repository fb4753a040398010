//! The Tinker API from outside the crate.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod golden;
mod transcripts;
