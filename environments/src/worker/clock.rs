//! The time limit of a rollout, which counts only the environment's own time.
//!
//! The clock stops while the service owes the rollout a response: a slow or absent service is not the
//! environment's fault, and every request to the service has a limit of its own.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Counts time up to a limit, except while it is held.
pub(super) struct RolloutClock {
    limit: Duration,
    state: watch::Sender<ClockState>,
}

#[derive(Clone, Copy)]
struct ClockState {
    holders: usize,
    /// Time counted up to `since`.
    spent: Duration,
    /// When the number of holders last became zero or left zero.
    since: Instant,
}

impl ClockState {
    /// Counts the time up to now.
    fn settle(&mut self) {
        if self.holders == 0 {
            self.spent += self.since.elapsed();
            self.since = Instant::now();
        }
    }
}

impl RolloutClock {
    /// Starts a clock that runs from now on.
    pub(super) fn start(limit: Duration) -> Arc<Self> {
        let state = ClockState { holders: 0, spent: Duration::ZERO, since: Instant::now() };
        Arc::new(Self { limit, state: watch::Sender::new(state) })
    }

    /// Stops the clock until the returned value is dropped.
    pub(super) fn hold(self: &Arc<Self>) -> ClockHold {
        self.state.send_modify(|state| {
            state.settle();
            state.holders += 1;
        });
        ClockHold(self.clone())
    }

    /// Gives the environment this much more time.
    pub(super) fn extend(&self, more: Duration) {
        self.state.send_modify(|state| {
            state.settle();
            state.spent = state.spent.min(self.limit).saturating_sub(more);
        });
    }

    /// Waits until the limit has passed.
    pub(super) async fn expired(&self) {
        let mut changes = self.state.subscribe();
        loop {
            let ClockState { holders, spent, since } = *changes.borrow_and_update();
            let end = since + self.limit.saturating_sub(spent);
            tokio::select! {
                () = sleep_until(end), if holders == 0 => return,
                // The sender lives in `self`, so the wait cannot fail.
                _ = changes.changed() => {}
            }
        }
    }
}

/// Keeps a clock from running.
pub(super) struct ClockHold(Arc<RolloutClock>);

impl Drop for ClockHold {
    fn drop(&mut self) {
        self.0.state.send_modify(|state| {
            state.holders -= 1;
            if state.holders == 0 {
                state.since = Instant::now();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    const SECOND: Duration = Duration::from_secs(1);

    fn has_expired(clock: &RolloutClock) -> bool {
        clock.expired().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_thirty_seconds_does_not_count_towards_a_limit_of_eight() {
        let clock = RolloutClock::start(8 * SECOND);
        tokio::time::advance(5 * SECOND).await;
        let owed = [clock.hold(), clock.hold()];
        tokio::time::advance(30 * SECOND).await;
        let [first, second] = owed;
        drop(first);
        tokio::time::advance(30 * SECOND).await;
        assert!(!has_expired(&clock), "one answer is still owed");
        drop(second);
        let resumed = Instant::now();
        clock.expired().await;
        assert_eq!(resumed.elapsed(), 3 * SECOND, "of the eight seconds, five were used");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_for_the_limit_sees_the_clock_stop_and_run_again() {
        let clock = RolloutClock::start(8 * SECOND);
        let begun = Instant::now();
        let serving = async {
            for _ in 0..4 {
                tokio::time::sleep(SECOND).await;
                let owed = clock.hold();
                tokio::time::sleep(10 * SECOND).await;
                drop(owed);
            }
        };
        tokio::join!(clock.expired(), serving);
        assert_eq!(begun.elapsed(), 48 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_clock_that_is_extended_expires_again_after_that_time() {
        let clock = RolloutClock::start(8 * SECOND);
        clock.expired().await;
        clock.extend(5 * SECOND);
        let extended = Instant::now();
        clock.expired().await;
        assert_eq!(extended.elapsed(), 5 * SECOND);
    }
}
