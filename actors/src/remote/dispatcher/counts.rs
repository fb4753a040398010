//! Counts of the jobs of a run.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of the jobs of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// Jobs that no worker has started.
    pub queued: u64,
    /// Jobs that a worker has started and not finished.
    pub running: u64,
    /// Jobs whose result the run received.
    pub done: u64,
    /// Jobs whose result arrived before this process submitted them, because the run had been interrupted.
    pub taken_up: u64,
    /// Number of redeliveries of jobs.
    pub redelivered: u64,
    /// Results of canceled jobs.
    pub late: u64,
    /// Results of jobs that already had a result.
    pub duplicate: u64,
    /// Results whose job this process did not submit within an hour, and those dropped earlier to free memory.
    pub foreign: u64,
    /// Jobs that became dead letters.
    pub dead: u64,
}

/// The counts that only grow.
#[derive(Default)]
pub(super) struct JobCounters {
    pub(super) done: AtomicU64,
    pub(super) taken_up: AtomicU64,
    pub(super) redelivered: AtomicU64,
    pub(super) late: AtomicU64,
    pub(super) duplicate: AtomicU64,
    pub(super) foreign: AtomicU64,
    pub(super) dead: AtomicU64,
}

impl JobCounters {
    /// All counts, with those of the jobs that wait.
    pub(super) fn with_waiting(&self, queued: u64, running: u64) -> JobCounts {
        JobCounts {
            queued,
            running,
            done: self.done.load(Relaxed),
            taken_up: self.taken_up.load(Relaxed),
            redelivered: self.redelivered.load(Relaxed),
            late: self.late.load(Relaxed),
            duplicate: self.duplicate.load(Relaxed),
            foreign: self.foreign.load(Relaxed),
            dead: self.dead.load(Relaxed),
        }
    }
}
