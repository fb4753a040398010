//! From a TOML file to a plan.
//!
//! [`file`] mirrors what is written, [`plan`] is what it means: resolved and checked, without an `Option` that
//! stands for a default. A config that makes a plan starts.

pub mod environments;
pub mod error;
pub mod file;
pub mod metrics;
pub mod overrides;
pub mod pace;
pub mod plan;
mod service;
pub mod simulate;

pub use plan::RunPlan;
use std::num::NonZeroUsize;

/// The value of a name; the first one when nothing is written.
fn choose<T: Clone>(written: Option<&str>, known: &[(&str, T)]) -> Result<T, String> {
    let Some(name) = written else { return Ok(known[0].1.clone()) };
    known.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone()).ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
        format!("is \"{name}\", it must be one of: {}", names.join(", "))
    })
}

fn at_least_one(value: usize) -> Result<NonZeroUsize, String> {
    NonZeroUsize::new(value).ok_or_else(|| "is 0, it must be at least 1".into())
}
