//! What a report is made of: values that the caller has read from a run folder.

use super::metrics_table::MetricsTable;
use crate::CheckpointSummary;
use crate::dashboard::EnvironmentShare;
use minds_core::lora::LoraSpec;
use minds_core::record::{
    self, ALL_ENVIRONMENTS, EvaluationRecord, QuarantineRow, RolloutRow, WrittenRollouts,
};
use minds_core::sampling::SamplingParams;
use minds_stages::pipeline::PipelineOptions;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::time::SystemTime;

/// The content of a run folder, as the report needs it.
pub struct ReportSource {
    /// Name of the folder and its parent.
    pub name: String,
    /// The config as text, with secrets masked.
    pub config: String,
    /// What the config says, if this version of the program can read it.
    pub settings: Option<ReportedConfig>,
    /// Metrics of all steps.
    pub table: MetricsTable,
    /// Modification time of the metrics file.
    pub written: Option<SystemTime>,
    /// Evaluations, in the order of their file.
    pub evaluations: Vec<EvaluationRecord>,
    /// The environments that were evaluated, by their names in metrics; not too many to be shown.
    pub evaluated: Vec<String>,
    /// Saved checkpoints, in the order of their file.
    pub checkpoints: Vec<CheckpointSummary>,
    /// Rewards that failed for good.
    pub quarantine: QuarantineSummary,
    /// Notes about damaged or missing files.
    pub notes: Vec<String>,
}

impl ReportSource {
    /// The environments that were trained, by their names in metrics.
    pub(super) fn environments(&self) -> Vec<String> {
        let names = self.table.names().filter_map(record::environment_of);
        names.filter(|name| *name != ALL_ENVIRONMENTS).map(str::to_owned).collect()
    }
}

/// What the config of a run says.
pub struct ReportedConfig {
    /// Name of the base model.
    pub base_model: String,
    /// Name of the renderer, if the config sets it.
    pub renderer: Option<String>,
    /// The embedded engine, or the address of a server.
    pub service: String,
    /// Threads of the embedded engine, if the config sets them.
    pub threads: Option<NonZeroUsize>,
    /// The environments with their shares.
    pub environments: Vec<EnvironmentShare>,
    /// Number of rollouts per group.
    pub group_size: u32,
    /// Sizes and limits of the pipeline and its stages.
    pub pipeline: PipelineOptions,
    /// Shape of the trained adapter.
    pub lora: LoraSpec,
    /// How completions are sampled.
    pub sampling: SamplingParams,
    /// Which of the trained rollouts the run writes.
    pub rollouts: WrittenRollouts,
    /// Warnings of the config.
    pub warnings: Vec<String>,
}

/// Counts and last entries of the quarantine.
#[derive(Debug, Default)]
pub struct QuarantineSummary {
    /// Number of rows per environment and kind.
    pub counts: BTreeMap<(String, String), u64>,
    /// The last few rows.
    pub last: VecDeque<QuarantineRow<'static>>,
}

/// Rollouts chosen for the page.
#[derive(Debug, Default)]
pub struct ChosenRollouts {
    /// Selections by name of the environment.
    pub environments: BTreeMap<String, RolloutSelection>,
    /// Number of steps whose rollouts were read.
    pub read: usize,
    /// Number of steps with rollouts.
    pub steps: usize,
}

/// Chosen rollouts of an environment; each list has at most one per group.
#[derive(Debug, Default)]
pub struct RolloutSelection {
    /// Highest rewards; among equal ones the newest.
    pub best: Vec<RolloutRow<'static>>,
    /// Lowest rewards; among equal ones the newest.
    pub worst: Vec<RolloutRow<'static>>,
    /// Drawn at random from the first steps.
    pub early: Vec<RolloutRow<'static>>,
    /// Drawn at random from the last steps.
    pub late: Vec<RolloutRow<'static>>,
}
