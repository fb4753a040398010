//! Totals of the engine, readable at any time without stopping it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Totals since the start, and the current load of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Prompt tokens run through the model for sampling and scoring.
    pub prefilled_tokens: u64,
    /// Prompt tokens taken from the prefix cache instead.
    pub cached_tokens: u64,
    /// Number of tokens sampled.
    pub decoded_tokens: u64,
    /// Steps of the sampling loop.
    pub steps: u64,
    /// Tokens of all data that went through forward or forward_backward.
    pub trained_tokens: u64,
    /// Number of optimizer steps over all adapters.
    pub optim_steps: u64,
    /// Nanoseconds in which the sampling loop had work.
    pub sampling_nanos: u64,
    /// Nanoseconds in which the training queue had work.
    pub training_nanos: u64,
    /// Sampling requests not yet started, now.
    pub waiting: u64,
    /// Rows being sampled or reserved, now.
    pub rows: u64,
    /// Bytes of keys and values reserved for requests, now.
    pub kv_bytes: u64,
}

/// The live counters behind [`EngineStats`].
#[derive(Debug, Default)]
pub(crate) struct EngineCounters {
    pub(crate) prefilled_tokens: AtomicU64,
    pub(crate) cached_tokens: AtomicU64,
    pub(crate) decoded_tokens: AtomicU64,
    pub(crate) steps: AtomicU64,
    pub(crate) trained_tokens: AtomicU64,
    pub(crate) optim_steps: AtomicU64,
    pub(crate) sampling_nanos: AtomicU64,
    pub(crate) training_nanos: AtomicU64,
    pub(crate) waiting: AtomicU64,
    pub(crate) rows: AtomicU64,
    pub(crate) kv_bytes: AtomicU64,
}

impl EngineCounters {
    pub(crate) fn snapshot(&self) -> EngineStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EngineStats {
            prefilled_tokens: read(&self.prefilled_tokens),
            cached_tokens: read(&self.cached_tokens),
            decoded_tokens: read(&self.decoded_tokens),
            steps: read(&self.steps),
            trained_tokens: read(&self.trained_tokens),
            optim_steps: read(&self.optim_steps),
            sampling_nanos: read(&self.sampling_nanos),
            training_nanos: read(&self.training_nanos),
            waiting: read(&self.waiting),
            rows: read(&self.rows),
            kv_bytes: read(&self.kv_bytes),
        }
    }
}

/// Adds to a total.
pub(crate) fn add(counter: &AtomicU64, amount: usize) {
    counter.fetch_add(amount as u64, Ordering::Relaxed);
}

/// Runs `work` and adds the time it took to `nanos`.
pub(crate) fn timed<T>(nanos: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let start = now();
    let result = work();
    nanos.fetch_add(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    result
}

#[expect(
    clippy::disallowed_methods,
    reason = "busy time of real threads; nothing waits on it, so no test pauses it"
)]
fn now() -> Instant {
    Instant::now()
}
