//! What does not change while a run goes on.

use crate::assemble::{self, ModelService};
use crate::config::mask::mask_args;
use crate::config::plan::{RunPlan, ServicePlan};
use crate::run_folder::RunFolder;
use minds_stages::batcher::StalenessHandling;
use serde::Serialize;
use std::path::PathBuf;

/// The run's head: who trains what with what.
#[derive(Clone, Debug, Serialize)]
pub struct RunInfo {
    /// The config's name.
    pub name: String,
    /// The run folder.
    pub folder: PathBuf,
    /// The program's version.
    pub version: &'static str,
    /// The commit that it was built from, where that is known.
    pub commit: Option<&'static str>,
    /// The embedded engine with its threads, or the server's address.
    pub service: String,
    /// The model.
    pub base_model: String,
    /// How it reads conversations.
    pub renderer: String,
    /// The loss.
    pub loss: &'static str,
    /// The environments with their shares.
    pub environments: Vec<EnvironmentShare>,
    /// Steps in all.
    pub steps: u64,
    /// Steps that the weights had behind them when the process started.
    pub first_step: u64,
    /// When the process started, in seconds since 1970.
    pub started: f64,
    /// Groups per step.
    pub groups_per_batch: usize,
    /// Rollouts per group.
    pub group_size: u32,
    /// Batches that may be under way beside the one in training.
    pub max_steps_off_policy: u64,
    /// Steps by which rollouts may lie behind.
    pub max_staleness: u64,
    /// `wait` or `drop`.
    pub staleness: &'static str,
    /// Most groups under way.
    pub credits: u64,
    /// Rewards computed at a time.
    pub scorers: usize,
    /// The config with all overrides, without a key.
    pub config: String,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// An environment's share of the run.
#[derive(Clone, Debug, Serialize)]
pub struct EnvironmentShare {
    /// Its name in metrics.
    pub name: String,
    /// Its share; 0 is only measured.
    pub weight: f64,
}

impl RunInfo {
    /// Of a run that is about to start.
    #[must_use]
    pub fn new(plan: &RunPlan, ready: &ModelService, folder: &RunFolder) -> Self {
        let mut shown = plan.resolved.clone();
        mask_args(&mut shown);
        Self {
            name: plan.stem.clone(),
            folder: folder.path().to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("MINDS_COMMIT"),
            service: service(plan),
            base_model: ready.info.base_model.clone(),
            renderer: ready.renderer.name().to_owned(),
            loss: plan.loss.name(),
            environments: plan
                .envs
                .iter()
                .map(|env| EnvironmentShare { name: env.name.clone(), weight: env.weight })
                .collect(),
            steps: plan.max_steps,
            first_step: folder.last().map_or(0, |last| last.step),
            started: super::view::now(),
            groups_per_batch: plan.batching.groups_per_batch.get(),
            group_size: plan.group_size.get(),
            max_steps_off_policy: plan.batching.max_steps_off_policy,
            max_staleness: plan.batching.max_staleness,
            staleness: match plan.batching.staleness {
                StalenessHandling::Wait => "wait",
                StalenessHandling::Drop => "drop",
            },
            credits: assemble::options(plan).credits(),
            scorers: plan.scorers.get(),
            config: toml::to_string(&shown).unwrap_or_default(),
            warnings: plan.warnings.iter().chain(&ready.warnings).cloned().collect(),
        }
    }
}

/// The service, for people.
#[must_use]
pub fn service(plan: &RunPlan) -> String {
    match &plan.service {
        ServicePlan::Embedded(engine) => {
            let s = if engine.threads.get() == 1 { "" } else { "s" };
            format!("embedded engine, {} thread{s}", engine.threads)
        }
        ServicePlan::Remote(remote) => remote.base_url.clone(),
    }
}
