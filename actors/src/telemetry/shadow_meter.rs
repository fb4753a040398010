//! How long measurements of gradient steps wait, and how long they take.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Sums over all measurements that succeeded.
#[derive(Default)]
pub struct ShadowMeter {
    done: AtomicU64,
    waited_nanos: AtomicU64,
    worked_nanos: AtomicU64,
}

impl ShadowMeter {
    pub(crate) fn note(&self, waited: Duration, worked: Duration) {
        self.done.fetch_add(1, Relaxed);
        self.waited_nanos.fetch_add(waited.as_nanos() as u64, Relaxed);
        self.worked_nanos.fetch_add(worked.as_nanos() as u64, Relaxed);
    }

    /// The sums so far.
    pub(crate) fn read(&self) -> ShadowMeterReading {
        ShadowMeterReading {
            done: self.done.load(Relaxed),
            waited_s: self.waited_nanos.load(Relaxed) as f64 * 1e-9,
            worked_s: self.worked_nanos.load(Relaxed) as f64 * 1e-9,
        }
    }
}

/// The sums at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ShadowMeterReading {
    /// Number of measurements that succeeded.
    pub done: u64,
    /// Seconds that measurements waited for an adapter.
    pub waited_s: f64,
    /// Seconds that measurements took.
    pub worked_s: f64,
}

impl ShadowMeterReading {
    /// The sums since an earlier reading.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            done: self.done - earlier.done,
            waited_s: self.waited_s - earlier.waited_s,
            worked_s: self.worked_s - earlier.worked_s,
        }
    }
}
