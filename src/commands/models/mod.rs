//! `minds-actors models`: lists the cache, fetches models ahead of a run, and shows how one reads conversations.

mod show;

use super::print_line;
use crate::cli::ModelsCommand;
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::progress;
use indicatif::HumanBytes;
use minds_models::{KNOWN_MODELS, ModelCache, ModelOrigin, TINY_RANDOM, resolve};

/// Runs the command.
///
/// # Errors
/// The cache cannot be read, or the model cannot be fetched.
pub fn run(command: &ModelsCommand) -> Result<(), CommandError> {
    let cache = ModelCache::from_env();
    match command {
        ModelsCommand::List => {
            let cached = cache.list().or_exit(ProcessExit::Unavailable)?;
            print_line!("in the cache {}:", cache.root().or_exit(ProcessExit::Unavailable)?.display());
            for model in &cached {
                let origin = match &model.origin {
                    ModelOrigin::Hub { commit } => format!("hub, commit {commit}"),
                    ModelOrigin::Pypi { package } => format!("Python package {package}"),
                };
                print_line!("  {}  {}  {origin}", model.name, HumanBytes(model.bytes));
            }
            if cached.is_empty() {
                print_line!("  nothing yet");
            }
            print_line!("known by name, without the hub:");
            for model in KNOWN_MODELS {
                print_line!("  {}", model.name);
            }
            print_line!("  {TINY_RANDOM}  (seeded random weights, no file)");
        }
        ModelsCommand::Fetch { name } => {
            resolve(name, &cache, &progress::bars()).or_exit(ProcessExit::Unavailable)?;
        }
        ModelsCommand::Show(asked) => show::run(asked, &cache)?,
    }
    Ok(())
}
