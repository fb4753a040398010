//! How many requests may be in flight, learnt from the server.
//!
//! Additive increase, multiplicative decrease (Chiu & Jain 1989): each round of successes allows one more, a
//! refusal for load halves the number, and only once for all that were under way together.

use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// A number of permits that follows the server's load.
pub(super) struct Limiter {
    state: Mutex<State>,
    freed: Notify,
}

struct State {
    /// Permits there may be; a fraction counts towards the next one.
    allowed: f64,
    ceiling: f64,
    in_flight: usize,
    /// Grows with each cut; a permit remembers under which it was given.
    epoch: u64,
}

impl Limiter {
    pub(super) fn new(ceiling: usize) -> Self {
        let ceiling = ceiling.max(1) as f64;
        let state = State { allowed: ceiling, ceiling, in_flight: 0, epoch: 0 };
        Self { state: Mutex::new(state), freed: Notify::new() }
    }

    /// Waits for room.
    pub(super) async fn acquire(&self) -> Permit<'_> {
        loop {
            let freed = self.freed.notified();
            if let Some(permit) = self.try_acquire() {
                return permit;
            }
            freed.await;
        }
    }

    fn try_acquire(&self) -> Option<Permit<'_>> {
        let mut state = self.lock();
        if state.in_flight as f64 + 1.0 > state.allowed.max(1.0) {
            return None;
        }
        state.in_flight += 1;
        Some(Permit { limiter: self, epoch: state.epoch })
    }

    #[cfg(test)]
    fn allowed(&self) -> usize {
        self.lock().allowed as usize
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change of the numbers is complete in itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room for one request, given back when dropped.
pub(super) struct Permit<'a> {
    limiter: &'a Limiter,
    epoch: u64,
}

impl Permit<'_> {
    /// The server took the request.
    pub(super) fn succeeded(&self) {
        let mut state = self.limiter.lock();
        state.allowed = (state.allowed + 1.0 / state.allowed).min(state.ceiling);
    }

    /// The server is full.
    pub(super) fn refused(&self) {
        let mut state = self.limiter.lock();
        if self.epoch == state.epoch {
            // What was really in flight is the server's measure, not what was allowed.
            state.allowed = (state.allowed.min(state.in_flight as f64) / 2.0).max(1.0);
            state.epoch += 1;
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.limiter.lock().in_flight -= 1;
        self.limiter.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_refusals_halves_once_and_successes_bring_it_back() {
        let limiter = Limiter::new(64);
        let permits: Vec<_> = std::iter::from_fn(|| limiter.try_acquire()).collect();
        assert_eq!(permits.len(), 64);
        permits.iter().for_each(Permit::refused);
        assert_eq!(limiter.allowed(), 32);
        drop(permits);
        // One round of successes, as many as are allowed, makes room for one more.
        for _ in 0..33 {
            limiter.try_acquire().unwrap().succeeded();
        }
        assert_eq!(limiter.allowed(), 33);
        for _ in 0..64 * 64 {
            limiter.try_acquire().unwrap().succeeded();
        }
        assert_eq!(limiter.allowed(), 64);
    }

    #[test]
    fn one_request_is_always_allowed() {
        let limiter = Limiter::new(2);
        for _ in 0..9 {
            limiter.try_acquire().unwrap().refused();
        }
        assert_eq!(limiter.allowed(), 1);
        let only = limiter.try_acquire().unwrap();
        assert!(limiter.try_acquire().is_none());
        drop(only);
        assert!(limiter.try_acquire().is_some());
    }

    #[tokio::test]
    async fn whoever_waits_is_woken_by_a_permit_that_comes_back() {
        let limiter = Limiter::new(1);
        let first = limiter.acquire().await;
        let second = async { drop(limiter.acquire().await) };
        let free = async { drop(first) };
        tokio::join!(second, free);
    }
}
