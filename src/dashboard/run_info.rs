//! What does not change during a run.

use crate::assemble::ModelService;
use crate::config::mask::masked;
use crate::config::plan::RunPlan;
use crate::run_folder::RunFolder;
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
    pub max_steps_off_policy: u64,
    /// Maximum staleness of rollouts, in steps.
    pub max_staleness: u64,
    /// Handling of stale groups: `wait` or `drop`.
    pub staleness: &'static str,
    /// Maximum number of groups in flight.
    pub credits: u64,
    /// Number of rewards computed concurrently.
    pub scorers: usize,
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

impl RunInfo {
    /// Collects the facts of a run that is about to start.
    #[must_use]
    pub fn new(plan: &RunPlan, ready: &ModelService, folder: &RunFolder) -> Self {
        Self {
            name: plan.stem.clone(),
            folder: folder.path().to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("MINDS_COMMIT"),
            service: plan.service.describe(),
            base_model: ready.info.base_model.clone(),
            renderer: ready.renderer.name().to_owned(),
            loss: plan.pipeline.train.loss.name(),
            environments: plan
                .envs
                .iter()
                .map(|env| EnvironmentShare { name: env.name.clone(), weight: env.weight })
                .collect(),
            steps: plan.pipeline.train.max_steps,
            first_step: folder.last().map_or(0, |last| last.step),
            started: super::view::now(),
            groups_per_batch: plan.pipeline.batch.groups_per_batch.get(),
            group_size: plan.group_size.get(),
            max_steps_off_policy: plan.pipeline.max_steps_off_policy,
            max_staleness: plan.pipeline.max_staleness,
            staleness: match plan.pipeline.batch.staleness {
                StalenessHandling::Wait => "wait",
                StalenessHandling::Drop => "drop",
            },
            credits: plan.pipeline.credits(),
            scorers: plan.pipeline.scorers.get(),
            config: masked(&plan.resolved),
            warnings: plan.warnings.iter().chain(&ready.warnings).cloned().collect(),
        }
    }
}
