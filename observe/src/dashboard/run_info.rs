//! What does not change during a run.

use minds_core::record::WrittenRollouts;
use minds_core::service::SamplerWeights;
use minds_stages::batcher::StalenessHandling;
use serde::Serialize;
use std::path::PathBuf;

/// Fixed facts of a run: model, service, environments and sizes.
#[derive(Clone, Debug, Serialize)]
pub struct RunInfo {
    /// Name of the config that the run uses.
    pub name: String,
    /// Path of the run folder.
    pub folder: PathBuf,
    /// Version of the program, from Cargo.
    pub version: &'static str,
    /// Commit that the program was built from, if known.
    pub commit: Option<&'static str>,
    /// The embedded engine with its threads, or the server's address.
    pub service: String,
    /// Name of the base model.
    pub base_model: String,
    /// Name of the renderer that turns conversations into tokens.
    pub renderer: String,
    /// Name of the loss function.
    pub loss: &'static str,
    /// The environments with their shares.
    pub environments: Vec<EnvironmentShare>,
    /// Total number of optimizer steps.
    pub steps: u64,
    /// Optimizer steps done when the process started.
    pub first_step: u64,
    /// Start of the process, as Unix time in seconds.
    pub started: f64,
    /// Number of groups per optimizer step.
    pub groups_per_batch: usize,
    /// Number of rollouts per group.
    pub group_size: u32,
    /// Batches that may be in flight besides the one in training.
    pub batches_ahead: u64,
    /// Whether rollouts follow the weights in training.
    pub weights: SamplerWeights,
    /// Maximum staleness of rollouts, in steps.
    pub max_staleness: u64,
    /// Handling of stale groups.
    pub staleness: StalenessHandling,
    /// Maximum number of groups in flight.
    pub credits: u64,
    /// Number of rewards computed concurrently.
    pub scorers: usize,
    /// Which of the trained rollouts the run folder keeps.
    pub rollouts: WrittenRollouts,
    /// Config as TOML with all overrides; secrets are masked.
    pub config: String,
    /// Warnings of the config and of the model.
    pub warnings: Vec<String>,
}

/// An environment's share of the run.
#[derive(Clone, Debug, Serialize)]
pub struct EnvironmentShare {
    /// Its name in metrics.
    pub name: String,
    /// Its share of the groups; 0 means evaluation only.
    pub weight: f64,
}
