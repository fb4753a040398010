//! From a TOML file to a plan.
//!
//! [`file`] mirrors the written keys, [`layers`] merges file, variables, overrides and flags, [`plan`] is
//! the meaning: resolved and checked, without an `Option` that stands for a default. An error names where the value
//! was written ([`locations`]). A config that makes a plan starts.

pub mod budget;
pub mod choice;
mod credentials;
pub mod environments;
pub mod error;
pub mod file;
pub mod latency;
mod layers;
mod line_up;
mod locations;
pub mod mask;
pub mod metrics;
pub mod nats;
mod optim;
pub mod overrides;
mod pipeline;
pub mod plan;
pub mod rewards;
pub mod schema;
mod service;
pub mod simulate;
pub mod simulated_service;
pub mod stages;
pub mod supervised;
pub mod teacher;
pub mod tracking;
pub mod trainer;
mod variables;
pub mod warm_start;

pub use plan::RunPlan;
pub use variables::ProcessVariables;
