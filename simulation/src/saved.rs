//! Saved weights of the service: how many optimizer steps made them, and what else is kept of them.

use minds_core::checkpoint::CheckpointNotes;
use minds_core::lora::LoraSpec;
use std::time::SystemTime;

/// Weights under a path.
#[derive(Clone)]
pub struct SavedWeights {
    /// Number of optimizer steps behind them.
    pub steps: u64,
    pub spec: LoraSpec,
    pub saved: SystemTime,
    pub notes: CheckpointNotes,
}
