//! A time limit on work that may have to wait for a service: the time spent waiting does not count.
//!
//! Requests to a service have their own limits, and a reward that waits is not responsible for an outage. The clock
//! of rollouts in Python processes (`environments/src/worker/clock.rs`) follows the same rule; neither crate depends on
//! the other.

use async_trait::async_trait;
use minds_core::datum::Datum;
use minds_core::environment::{AdapterLease, LogprobDelta, Oracle};
use minds_core::ids::Token;
use minds_core::reward::RewardError;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// A clock that stops while a request to a service is in flight.
pub(crate) struct RewardTimer(watch::Sender<RewardTimerState>);

#[derive(Clone, Copy)]
struct RewardTimerState {
    /// Requests of the reward that are in flight.
    asking: u32,
    /// Duration counted up to `since`.
    spent: Duration,
    /// When the state last changed.
    since: Instant,
}

impl Default for RewardTimer {
    fn default() -> Self {
        Self(watch::Sender::new(RewardTimerState { asking: 0, spent: Duration::ZERO, since: Instant::now() }))
    }
}

impl RewardTimer {
    /// Stops the clock until the guard is dropped.
    pub(crate) fn pause(&self) -> Paused<'_> {
        self.0.send_modify(|time| {
            let now = Instant::now();
            if time.asking == 0 {
                time.spent += now - time.since;
            }
            *time = RewardTimerState { asking: time.asking + 1, spent: time.spent, since: now };
        });
        Paused(self)
    }

    /// Runs the work until its time is over; `None` if it did not finish.
    pub(crate) async fn limit<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            result = work => Some(result),
            () = self.over(limit) => None,
        }
    }

    async fn over(&self, limit: Duration) {
        let mut changes = self.0.subscribe();
        loop {
            let time = *changes.borrow_and_update();
            // The sender lives in `self`, so that a wait for a change cannot fail.
            let changed = if time.asking == 0 {
                tokio::select! {
                    () = sleep_until(time.since + limit.saturating_sub(time.spent)) => return,
                    changed = changes.changed() => changed,
                }
            } else {
                changes.changed().await
            };
            if changed.is_err() {
                return;
            }
        }
    }
}

/// Keeps the clock stopped until it is dropped.
pub(crate) struct Paused<'a>(&'a RewardTimer);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|time| {
            time.asking -= 1;
            time.since = Instant::now();
        });
    }
}

/// An oracle that stops the timer of a reward during its requests.
pub(crate) struct TimerPausingOracle<'a> {
    pub(crate) oracle: &'a dyn Oracle,
    pub(crate) clock: &'a RewardTimer,
}

#[async_trait]
impl Oracle for TimerPausingOracle<'_> {
    async fn logprobs(&self, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, RewardError> {
        let _paused = self.clock.pause();
        self.oracle.logprobs(prefix, target).await
    }

    async fn next_tokens(&self, prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, RewardError> {
        let _paused = self.clock.pause();
        self.oracle.next_tokens(prefix, k).await
    }

    async fn logprob_delta(
        &self,
        text: Datum,
        prefix: Arc<[Token]>,
        target: Arc<[Token]>,
    ) -> Result<LogprobDelta, RewardError> {
        let _paused = self.clock.pause();
        self.oracle.logprob_delta(text, prefix, target).await
    }

    async fn lease_adapter(&self) -> Result<AdapterLease, RewardError> {
        let _paused = self.clock.pause();
        self.oracle.lease_adapter().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[tokio::test(start_paused = true)]
    async fn time_spent_waiting_for_a_service_does_not_count() {
        let clock = RewardTimer::default();
        let begun = Instant::now();
        let work = async {
            sleep(seconds(4)).await;
            let first = clock.pause();
            sleep(seconds(100)).await;
            let second = clock.pause();
            drop(first);
            sleep(seconds(1000)).await;
            drop(second);
            sleep(seconds(60)).await;
        };
        assert_eq!(clock.limit(seconds(10), work).await, None);
        assert_eq!(begun.elapsed(), seconds(4 + 100 + 1000 + 6));
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_ends_in_time_has_its_result() {
        let clock = RewardTimer::default();
        assert_eq!(
            clock
                .limit(seconds(10), async {
                    sleep(seconds(9)).await;
                    7
                })
                .await,
            Some(7)
        );
        let asked = async {
            drop(clock.pause());
        };
        assert_eq!(clock.limit(seconds(10), asked).await, Some(()));
    }
}
