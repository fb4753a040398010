//! Tracks outages of the server by kind of request, with one clock per outage.
//!
//! A request that begins late in an outage does not wait longer than one that began earlier. Successes of another kind
//! do not end the outage: a server may serve training but not sampling. After requests of one kind reach the limit,
//! those of every other kind fail at their first failure, so that limits do not add up. An outage is logged once after
//! it has lasted for `LOG_AFTER`, and once when it is over.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// Minimum duration of an outage that is logged.
const LOG_AFTER: Duration = Duration::from_secs(15);

/// A failure this long after the previous one begins a new outage: the requests that were failing have ended since, and
/// nothing is known about the time between.
const NEW_OUTAGE_AFTER: Duration = Duration::from_secs(180);

/// Current outages of a server, by operation.
#[derive(Default)]
pub(super) struct OutageTracker(Mutex<HashMap<&'static str, OutageState>>);

struct OutageState {
    since: Instant,
    latest: Instant,
    reported: bool,
    given_up: bool,
}

/// Events of an outage to be logged.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OutageEvent {
    /// The outage has lasted for this time.
    Ongoing(Duration),
    /// The outage is over; it lasted for this time.
    Over(Duration),
}

impl OutageTracker {
    /// Records whether a request of this kind, sent at `asked`, had a response. Returns an event to be logged, if any.
    pub(super) fn record(
        &self,
        operation: &'static str,
        asked: Instant,
        answered: bool,
    ) -> Option<OutageEvent> {
        let mut outages = self.0.lock();
        if answered {
            return outages
                .remove(operation)
                .filter(|outage| outage.reported)
                .map(|outage| OutageEvent::Over(outage.since.elapsed()));
        }
        let begun = || OutageState { since: asked, latest: asked, reported: false, given_up: false };
        let outage = outages.entry(operation).or_insert_with(begun);
        if outage.latest.elapsed() > NEW_OUTAGE_AFTER {
            *outage = begun();
        }
        outage.latest = Instant::now();
        let lasts = outage.since.elapsed();
        if outage.reported || lasts < LOG_AFTER {
            return None;
        }
        outage.reported = true;
        Some(OutageEvent::Ongoing(lasts))
    }

    /// Start of the outage for this kind of request; `None` if the latest request had a response.
    pub(super) fn since(&self, operation: &str) -> Option<Instant> {
        self.0.lock().get(operation).map(|outage| outage.since)
    }

    /// Records that a request of this kind reached the limit.
    pub(super) fn give_up(&self, operation: &str) {
        if let Some(outage) = self.0.lock().get_mut(operation) {
            outage.given_up = true;
        }
    }

    /// Whether requests reached the limit and none of their kind had a response since.
    pub(super) fn given_up(&self) -> bool {
        self.0.lock().values().any(|outage| outage.given_up && outage.latest.elapsed() <= NEW_OUTAGE_AFTER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn follow(outage: &OutageTracker, operation: &'static str, answers: &[bool]) -> Vec<OutageEvent> {
        let mut reported = Vec::new();
        // Asked every 10 s, and answered at once.
        for answered in answers {
            reported.extend(outage.record(operation, Instant::now(), *answered));
            tokio::time::advance(Duration::from_secs(10)).await;
        }
        reported
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_and_its_end_are_logged_once_each_and_a_short_one_not_at_all() {
        // Silent from 0 to 10, and from 30 to 90.
        let answers = [false, false, true, false, false, false, false, false, false, true, true];
        let reported = follow(&OutageTracker::default(), "asample", &answers).await;
        assert_eq!(
            reported,
            [OutageEvent::Ongoing(Duration::from_secs(20)), OutageEvent::Over(Duration::from_secs(60))]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_ends_when_a_request_of_its_own_kind_is_answered() {
        let outage = OutageTracker::default();
        let begun = Instant::now();
        follow(&outage, "asample", &[false; 3]).await;
        follow(&outage, "optim_step", &[true; 3]).await;
        assert_eq!(outage.since("asample"), Some(begun));
        assert_eq!(outage.since("optim_step"), None);
        follow(&outage, "asample", &[true]).await;
        assert_eq!(outage.since("asample"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_nothing_followed_for_long_does_not_count_toward_the_next_silence() {
        let outage = OutageTracker::default();
        follow(&outage, "asample", &[false]).await;
        tokio::time::advance(Duration::from_secs(3600)).await;
        let again = Instant::now();
        follow(&outage, "asample", &[false]).await;
        assert_eq!(outage.since("asample"), Some(again));
    }

    /// The silence began when the request that met it was sent.
    #[tokio::test(start_paused = true)]
    async fn a_request_that_hangs_was_silence_from_its_beginning() {
        let outage = OutageTracker::default();
        let asked = Instant::now();
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(
            outage.record("asample", asked, false),
            Some(OutageEvent::Ongoing(Duration::from_secs(60)))
        );
        assert_eq!(outage.since("asample"), Some(asked));
    }
}
