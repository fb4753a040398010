//! From a TOML file to a plan.
//!
//! [`file`] mirrors what is written, [`plan`] is what it means: resolved and checked, without an `Option` that
//! stands for a default. A config that makes a plan starts.

pub mod error;
pub mod file;
pub mod overrides;
pub mod plan;

pub use plan::RunPlan;
