//! The command line, as typed.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Reinforcement learning on language models over the Tinker API: rollouts, rewards and optimizer steps that overlap.
#[derive(Debug, Parser)]
#[command(name = "minds-actors", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Trains from a config, or goes on with an unfinished run.
    Run(Run),
    /// Model files: list what is in the cache, fetch ahead of a run.
    #[command(subcommand)]
    Models(Models),
}

/// `run`
#[derive(Args, Debug)]
pub struct Run {
    /// The TOML config.
    pub config: PathBuf,
    /// Overrides a key, for example `--set model.base_model=./my-model`. The value is TOML; what is not, is text.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The run folder. Without it: `output_dir` of the config, else `outputs/<config>/<time>`.
    #[arg(long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Ends the run after this many optimizer steps in all.
    #[arg(long, value_name = "N")]
    pub max_steps: Option<u64>,
    /// Seed of items, samples and the adapter.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// `models`
#[derive(Debug, Subcommand)]
pub enum Models {
    /// Lists the models in the cache, and those that can be had by name.
    List,
    /// Fetches a model into the cache.
    Fetch {
        /// A name such as `HuggingFaceTB/SmolLM2-135M-Instruct`.
        name: String,
    },
}
