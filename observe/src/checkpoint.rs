//! A saved checkpoint as the dashboard and the report list it.

use minds_stages::ledger::GroupCounts;
use serde::Serialize;

/// Where a checkpoint is saved, and what the run had done by then.
#[derive(Clone, Debug, Serialize)]
pub struct CheckpointSummary {
    /// Name of the checkpoint on the service.
    pub name: String,
    /// Optimizer steps done when it was saved.
    pub step: u64,
    /// Service path of weights and optimizer.
    pub state_path: String,
    /// Service path of the weights for sampling, if they were exported.
    pub sampler_path: Option<String>,
    /// Number of groups of the whole run, by outcome.
    pub groups: GroupCounts,
}
