//! The board: the latest snapshot of every stage.
//!
//! Stages write, telemetry and the watchdog read; no access blocks. State that stages act on travels by `watch`
//! instead.

use dashmap::DashMap;
use std::sync::Arc;

/// One stage's latest numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageSnapshot {
    /// Pieces of work in progress.
    pub busy: u64,
    /// Pieces of work done.
    pub done: u64,
    /// Pieces of work that failed.
    pub failed: u64,
}

/// Latest numbers by stage. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct StageBoard {
    stages: Arc<DashMap<&'static str, StageSnapshot>>,
}

impl StageBoard {
    /// Changes a stage's numbers.
    pub fn update(&self, stage: &'static str, change: impl FnOnce(&mut StageSnapshot)) {
        change(&mut self.stages.entry(stage).or_default());
    }

    /// Snapshot of one stage; all zeros before its first update.
    #[must_use]
    pub fn stage(&self, name: &str) -> StageSnapshot {
        self.stages.get(name).map(|entry| *entry.value()).unwrap_or_default()
    }

    /// All stages, by name.
    #[must_use]
    pub fn read(&self) -> Vec<(&'static str, StageSnapshot)> {
        let mut all: Vec<_> = self.stages.iter().map(|entry| (*entry.key(), *entry.value())).collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all
    }
}
