//! What the stages report to the owner of a pipeline.

use crate::error::PipelineError;
use crate::ledger::{GroupCounts, SavedGroup, SettledPositions};
use crate::messages::{CommittedStep, QuarantinedRollout};
use minds_core::record::EvaluationRecord;
use std::collections::BTreeMap;

/// Events of the pipeline, in the order in which they happened.
pub enum PipelineEvent {
    /// An optimizer step is done and its weights are published.
    Step(Box<CommittedStep>),
    /// A checkpoint has been saved.
    CheckpointSaved(SavedCheckpoint),
    /// A reward has failed for good.
    Quarantined(QuarantinedRollout),
    /// Weights have been evaluated. May arrive after later steps.
    Evaluated(EvaluationRecord),
    /// The run is over, because it was stopped or all steps are done.
    Ended {
        /// Optimizer steps done at the end.
        step: u64,
    },
    /// The run cannot continue; the first cause.
    Failed(PipelineError),
}

/// A checkpoint that a run can resume from.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedCheckpoint {
    /// Name of the checkpoint on the service.
    pub name: String,
    /// Optimizer steps done before the save.
    pub step: u64,
    /// Path of the weights and the optimizer's state.
    pub state_path: String,
    /// Path of the sampler weights, if they were saved.
    pub sampler_path: Option<String>,
    /// Positions of the schedule settled with these weights.
    pub settled: SettledPositions,
    /// Groups that were ready and not yet trained.
    pub saved_groups: Vec<SavedGroup>,
    /// Counts of group outcomes in this part of the run.
    pub counts: GroupCounts,
    /// What environments have learned, by their name in metrics.
    pub memories: BTreeMap<String, serde_json::Value>,
    /// Gradient norms of the latest optimizer steps, the oldest first; the running limit follows them.
    pub gradient_norms: Vec<f64>,
}
