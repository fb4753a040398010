//! From a TOML file to a plan.
//!
//! [`file`] mirrors the written keys, [`layers`] merges file, variables, overrides and flags, [`plan`] is
//! the meaning: resolved and checked, without an `Option` that stands for a default. An error names where the value
//! was written ([`locations`]). A config that makes a plan starts.

pub mod batching;
pub mod environments;
pub mod error;
pub mod file;
mod layers;
mod learning;
mod locations;
pub mod mask;
pub mod metrics;
pub mod overrides;
pub mod plan;
mod rewards;
pub mod schema;
mod service;
pub mod simulate;
mod variables;

pub use plan::RunPlan;
use std::num::NonZeroUsize;
pub use variables::ProcessVariables;

/// The value of a name; the first one if no name is given.
fn choose<T: Clone>(written: Option<&str>, known: &[(&str, T)]) -> Result<T, String> {
    let Some(name) = written else { return Ok(known[0].1.clone()) };
    let names = || known.iter().map(|(known, _)| *known);
    known
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, value)| value.clone())
        .ok_or_else(|| format!("is \"{name}\", it must be {}", one_of(name, names())))
}

/// Lists the allowed names, and suggests the nearest one.
fn one_of<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let meant = error::nearest(written, names.iter().copied());
    let meant = meant.map(|meant| format!("; did you mean \"{meant}\"?")).unwrap_or_default();
    format!("one of: {}{meant}", names.join(", "))
}

fn at_least_one(value: usize) -> Result<NonZeroUsize, String> {
    NonZeroUsize::new(value).ok_or_else(|| "is 0, it must be at least 1".into())
}
