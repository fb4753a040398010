//! Sample requests without a response, to notice those that may never get one.
//!
//! A service whose requests hang looks like a slow one. A request is *late* if it has waited for much longer than any that
//! was answered.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// No request is late before.
const LATE_AFTER: Duration = Duration::from_secs(25);

/// A late request has waited this many times as long as the slowest answer took.
const LATE_FACTOR: u32 = 4;

/// The sample requests that wait for their responses. Cheap to clone; all clones share them.
#[derive(Clone, Default)]
pub struct SampleWaits(Arc<Mutex<Waits>>);

#[derive(Default)]
struct Waits {
    /// When each request that waits was sent, by its number.
    begun: BTreeMap<u64, Instant>,
    next: u64,
    /// Time of the slowest answer.
    slowest: Option<Duration>,
}

/// Sample requests that are late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateSamples {
    /// Number of requests that are late.
    pub late: usize,
    /// Number of all requests that wait.
    pub waiting: usize,
    /// How long the oldest has waited.
    pub oldest: Duration,
    /// Time of the slowest answer, if there was one.
    pub slowest: Option<Duration>,
}

impl fmt::Display for LateSamples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { late, waiting, oldest, slowest } = self;
        let oldest = oldest.as_secs();
        write!(f, "{late} of {waiting} sample requests have no answer yet, the oldest for {oldest} s; ")?;
        match slowest {
            Some(slowest) => write!(f, "the slowest answer so far took {:.1} s", slowest.as_secs_f64()),
            None => f.write_str("the service has answered none so far"),
        }
    }
}

impl SampleWaits {
    /// Records a request, which waits until the guard is dropped.
    pub(super) fn enter(&self) -> SampleWait {
        let mut waits = self.lock();
        let number = waits.next;
        waits.next += 1;
        waits.begun.insert(number, Instant::now());
        SampleWait { waits: self.clone(), number }
    }

    /// The requests that are late, if there are any.
    #[must_use]
    pub fn late(&self) -> Option<LateSamples> {
        let waits = self.lock();
        let limit = waits.slowest.map_or(LATE_AFTER, |slowest| LATE_AFTER.max(LATE_FACTOR * slowest));
        let waited = waits.begun.values().map(Instant::elapsed);
        let late = waited.clone().filter(|waited| *waited >= limit).count();
        let oldest = waited.max().filter(|_| late > 0)?;
        Some(LateSamples { late, waiting: waits.begun.len(), oldest, slowest: waits.slowest })
    }

    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that waits for its response.
pub(super) struct SampleWait {
    waits: SampleWaits,
    number: u64,
}

impl SampleWait {
    /// Records that the request was answered after this time.
    pub fn answered(&self, took: Duration) {
        let slowest = &mut self.waits.lock().slowest;
        *slowest = Some(slowest.unwrap_or_default().max(took));
    }
}

impl Drop for SampleWait {
    fn drop(&mut self) {
        self.waits.lock().begun.remove(&self.number);
    }
}

/// When late requests are reported: at once, and again whenever the oldest has waited for twice as long.
#[derive(Debug)]
pub struct LateSampleNotice {
    next: Duration,
}

impl Default for LateSampleNotice {
    fn default() -> Self {
        Self { next: LATE_AFTER }
    }
}

impl LateSampleNotice {
    /// What is to be reported now, if anything is.
    pub fn take(&mut self, late: Option<LateSamples>) -> Option<LateSamples> {
        let Some(late) = late else {
            *self = Self::default();
            return None;
        };
        (late.oldest >= self.next).then(|| {
            self.next = 2 * late.oldest;
            late
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_request_is_late_if_it_waits_much_longer_than_others_did() {
        let waits = SampleWaits::default();
        let hung = waits.enter();
        advance(24 * SECOND).await;
        assert_eq!(waits.late(), None);
        advance(SECOND).await;
        let second = waits.enter();
        let late = LateSamples { late: 1, waiting: 2, oldest: 25 * SECOND, slowest: None };
        assert_eq!(waits.late(), Some(late));
        let text = "1 of 2 sample requests have no answer yet, the oldest for 25 s; the service has answered none so far";
        assert_eq!(late.to_string(), text);

        // Answers take 10 s: 40 s is long.
        advance(10 * SECOND).await;
        second.answered(10 * SECOND);
        drop(second);
        assert_eq!(waits.late(), None);
        advance(5 * SECOND).await;
        let late = waits.late().unwrap();
        assert_eq!((late.late, late.oldest, late.slowest), (1, 40 * SECOND, Some(10 * SECOND)));
        assert!(late.to_string().ends_with("the oldest for 40 s; the slowest answer so far took 10.0 s"));
        drop(hung);
        assert_eq!(waits.late(), None);
    }

    #[test]
    fn late_requests_are_reported_at_once_and_then_ever_more_rarely() {
        let mut notice = LateSampleNotice::default();
        let late =
            |seconds: u32| LateSamples { late: 1, waiting: 1, oldest: seconds * SECOND, slowest: None };
        let mut reported = |seconds: &mut dyn Iterator<Item = u32>| -> Vec<u32> {
            seconds.filter(|seconds| notice.take(Some(late(*seconds))).is_some()).collect()
        };
        assert_eq!(reported(&mut (25..600)), [25, 50, 100, 200, 400]);
        assert_eq!(notice.take(None), None);
        assert!(notice.take(Some(late(30))).is_some(), "others hang");
    }
}
