//! The training queue: one thread, strictly in the order of submission.
//!
//! A job that panics returns an error and the next one runs. A job commits its changes at its end, so a
//! panic leaves its adapter unchanged.

use super::stats::{EngineCounters, timed};
use crate::train::TrainingWorkspace;
use rayon::ThreadPool;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

/// Job that sends its result through its own channel and never panics. It may use the workspace of the thread.
pub(crate) type TrainingTask = Box<dyn FnOnce(&mut TrainingWorkspace<f32>) + Send>;

/// Runs tasks until the engine is dropped or stopped. Tasks still queued are then lost.
pub(crate) fn run(
    tasks: &Receiver<TrainingTask>,
    pool: &ThreadPool,
    counters: &Arc<EngineCounters>,
    stopping: &AtomicBool,
) {
    let mut workspace = TrainingWorkspace::default();
    while let Ok(task) = tasks.recv() {
        if stopping.load(Ordering::Relaxed) {
            return;
        }
        timed(&counters.training_nanos, || pool.install(|| task(&mut workspace)));
    }
}
