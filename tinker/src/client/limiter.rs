//! Limits the requests in flight, adapting to the server's load.
//!
//! Additive increase, multiplicative decrease (Chiu & Jain 1989): each round of successes allows one more request. An
//! overload response halves the limit, once for all requests that were in flight together. Requests wait in FIFO order.
//! Growth hands new permits to waiting requests at once, without waiting for another request to end.

use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// A pool of permits that adapts to the server's load.
pub(super) struct ConcurrencyLimiter {
    permits: Semaphore,
    state: Mutex<LimiterState>,
}

struct LimiterState {
    /// Limit of permits; a fraction counts toward the next one.
    allowed: f64,
    ceiling: usize,
    /// Permits that the semaphore has issued or holds, without those of `excess`.
    size: usize,
    /// Permits in use that will not return to the semaphore: the limit was cut while they were in use.
    excess: usize,
    in_flight: usize,
    /// Whether it was reported that requests wait at the ceiling.
    reported_full: bool,
    /// Number of cuts so far; a permit records the epoch of its issue.
    epoch: u64,
}

impl ConcurrencyLimiter {
    pub(super) fn new(ceiling: usize) -> Self {
        let ceiling = ceiling.clamp(1, Semaphore::MAX_PERMITS);
        let allowed = ceiling as f64;
        let state = LimiterState {
            allowed,
            ceiling,
            size: ceiling,
            excess: 0,
            in_flight: 0,
            reported_full: false,
            epoch: 0,
        };
        Self { permits: Semaphore::new(ceiling), state: Mutex::new(state) }
    }

    /// Waits for a permit, in FIFO order.
    pub(super) async fn acquire(&self) -> RequestPermit<'_> {
        // The semaphore is never closed, so there is no error. Only `RequestPermit` returns what was acquired.
        let permit = match self.permits.try_acquire() {
            Ok(permit) => Ok(permit),
            Err(_) => {
                self.report_full();
                self.permits.acquire().await
            }
        };
        if let Ok(permit) = permit {
            permit.forget();
        }
        let mut state = self.state.lock();
        state.in_flight += 1;
        RequestPermit { limiter: self, epoch: state.epoch }
    }

    /// Reports, the first time, that requests wait although the server is not overloaded.
    fn report_full(&self) {
        let mut state = self.state.lock();
        if state.size == state.ceiling && !state.reported_full {
            state.reported_full = true;
            tracing::warn!(
                in_flight = state.ceiling,
                "as many sample requests and logprob queries are in flight as may be, and others wait: \
                 `tinker.max_sample_requests` and the server limit them"
            );
        }
    }

    #[cfg(test)]
    fn allowed(&self) -> usize {
        self.state.lock().size
    }

    /// Resizes the semaphore to `allowed`.
    fn resize(&self, state: &mut LimiterState) {
        let size = (state.allowed as usize).clamp(1, state.ceiling);
        if size > state.size {
            let more = size - state.size;
            let kept = more.min(state.excess);
            state.excess -= kept;
            self.permits.add_permits(more - kept);
        } else {
            let fewer = state.size - size;
            state.excess += fewer - self.permits.forget_permits(fewer);
        }
        state.size = size;
    }
}

/// Permit for one request, returned on drop.
pub(super) struct RequestPermit<'a> {
    limiter: &'a ConcurrencyLimiter,
    epoch: u64,
}

impl RequestPermit<'_> {
    /// Records that the server accepted the request.
    pub(super) fn succeeded(&self) {
        let mut state = self.limiter.state.lock();
        state.allowed = (state.allowed + 1.0 / state.allowed).min(state.ceiling as f64);
        self.limiter.resize(&mut state);
    }

    /// Records that the server is overloaded.
    pub(super) fn refused(&self) {
        let mut state = self.limiter.state.lock();
        if self.epoch == state.epoch {
            // Halves what was actually in flight, which may be less than the limit.
            state.allowed = (state.allowed.min(state.in_flight as f64) / 2.0).max(1.0);
            state.epoch += 1;
            self.limiter.resize(&mut state);
        }
    }
}

impl Drop for RequestPermit<'_> {
    fn drop(&mut self) {
        let mut state = self.limiter.state.lock();
        state.in_flight -= 1;
        if state.excess > 0 {
            state.excess -= 1;
        } else {
            self.limiter.permits.add_permits(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use std::cell::Cell;
    use std::time::Duration;
    use tokio::time::sleep;

    fn try_acquire(limiter: &ConcurrencyLimiter) -> Option<RequestPermit<'_>> {
        limiter.acquire().now_or_never()
    }

    #[test]
    fn a_burst_of_refusals_halves_once_and_successes_bring_it_back() {
        let limiter = ConcurrencyLimiter::new(64);
        let permits: Vec<_> = std::iter::from_fn(|| try_acquire(&limiter)).collect();
        assert_eq!(permits.len(), 64);
        permits.iter().for_each(RequestPermit::refused);
        assert_eq!(limiter.allowed(), 32);
        drop(permits);
        // One round of successes, as many as are allowed, makes room for one more.
        for _ in 0..33 {
            try_acquire(&limiter).unwrap().succeeded();
        }
        assert_eq!(limiter.allowed(), 33);
        for _ in 0..64 * 64 {
            try_acquire(&limiter).unwrap().succeeded();
        }
        assert_eq!(limiter.allowed(), 64);
        assert_eq!(std::iter::from_fn(|| try_acquire(&limiter)).take(99).collect::<Vec<_>>().len(), 64);
    }

    #[test]
    fn one_request_is_always_allowed() {
        let limiter = ConcurrencyLimiter::new(2);
        for _ in 0..9 {
            try_acquire(&limiter).unwrap().refused();
        }
        assert_eq!(limiter.allowed(), 1);
        let only = try_acquire(&limiter).unwrap();
        assert!(try_acquire(&limiter).is_none());
        drop(only);
        assert!(try_acquire(&limiter).is_some());
    }

    /// A cut that comes while all permits are in use takes them out of use as they come back, and growth before that
    /// takes back the cut first.
    #[test]
    fn permits_in_use_at_a_cut_are_not_given_out_again() {
        let limiter = ConcurrencyLimiter::new(4);
        let mut permits: Vec<_> = std::iter::from_fn(|| try_acquire(&limiter)).collect();
        permits[0].refused();
        assert_eq!(limiter.allowed(), 2);
        permits.truncate(2);
        assert!(try_acquire(&limiter).is_none(), "two are allowed, and two are in use");
        permits.truncate(1);
        assert!(try_acquire(&limiter).is_some());
        // 2 → 2.5 → 2.9 → 3.2
        (0..3).for_each(|_| permits[0].succeeded());
        permits.extend(std::iter::from_fn(|| try_acquire(&limiter)));
        assert_eq!(permits.len(), 3);
    }

    /// 400 requests of a second on a server that is full for the first two seconds.
    #[tokio::test(start_paused = true)]
    async fn after_a_burst_of_refusals_requests_that_wait_go_out_at_a_growing_rate() {
        let limiter = ConcurrencyLimiter::new(64);
        let begun = tokio::time::Instant::now();
        let running = Cell::new(0);
        let most = Cell::new(0);
        let low = Cell::new(usize::MAX);
        let request = || async {
            loop {
                let permit = limiter.acquire().await;
                if begun.elapsed() < Duration::from_secs(2) {
                    sleep(Duration::from_millis(100)).await;
                    permit.refused();
                    low.set(low.get().min(limiter.allowed()));
                    drop(permit);
                    sleep(Duration::from_millis(400)).await;
                    continue;
                }
                running.set(running.get() + 1);
                most.set(most.get().max(running.get()));
                sleep(Duration::from_secs(1)).await;
                permit.succeeded();
                running.set(running.get() - 1);
                return;
            }
        };
        futures::future::join_all((0..400).map(|_| request())).await;
        assert!(low.get() <= 4, "the burst cut it to {}", low.get());
        // One more for each round: 1 + 2 + … + n ≥ 400 after 28 rounds from one.
        assert!(most.get() >= 24, "concurrency grew from {} to {} only", low.get(), most.get());
        assert!(begun.elapsed() < Duration::from_secs(2 + 40), "{:?}", begun.elapsed());
    }
}
