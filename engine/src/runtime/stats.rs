//! Totals of the engine, readable at any time without stopping it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Declares the totals once: as they are counted, and as they are read.
macro_rules! totals {
    ($( #[doc = $doc:literal] $name:ident, )+) => {
        /// Totals since the start, and the current load of the engine.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct EngineStats {
            $( #[doc = $doc] pub $name: u64, )+
        }

        /// The live counters behind [`EngineStats`].
        #[derive(Debug, Default)]
        pub(crate) struct EngineCounters {
            $( pub(crate) $name: AtomicU64, )+
        }

        impl EngineCounters {
            pub(crate) fn snapshot(&self) -> EngineStats {
                EngineStats { $( $name: self.$name.load(Ordering::Relaxed), )+ }
            }
        }
    };
}

totals! {
    /// Prompt tokens run through the model for sampling and scoring.
    prefilled_tokens,
    /// Prompt tokens taken from the prefix cache instead.
    cached_tokens,
    /// Number of tokens sampled.
    decoded_tokens,
    /// Tokens of prompts and samples run through the model again because new weights took over.
    recomputed_tokens,
    /// Steps of the sampling loop.
    steps,
    /// Tokens of all data that went through forward or forward_backward.
    trained_tokens,
    /// Number of optimizer steps over all adapters.
    optim_steps,
    /// Nanoseconds in which the sampling loop had work.
    sampling_nanos,
    /// Nanoseconds in which the training queue had work.
    training_nanos,
    /// Sampling requests not yet started, now.
    waiting,
    /// Rows being sampled or reserved, now.
    rows,
    /// Bytes of keys and values reserved for requests, now.
    kv_bytes,
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
