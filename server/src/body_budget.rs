//! Memory budget for request bodies that are being read.
//!
//! A body takes permits as its bytes arrive, so a client that announces a large body and sends nothing takes none. A
//! small body needs no permit and never waits for large ones. One body at a time may exceed the budget, so bodies that
//! wait for each other's permits cannot deadlock.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes per permit: permits are counted in 32 bits.
const UNIT: usize = 1024;

/// Bytes that every body may use without a permit.
const FREE: usize = 64 << 10;

/// Minimum number of bytes to acquire at a time.
const STEP: usize = 256 << 10;

/// Memory budget that all bodies share.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    permits: Arc<Semaphore>,
    /// Single permit of the body that may exceed the budget.
    bypass: Arc<Semaphore>,
}

/// Memory that one body holds; dropping it returns the memory to the budget.
#[derive(Debug)]
pub(crate) struct BodyPermit {
    budget: Arc<BodyBudget>,
    taken: Option<OwnedSemaphorePermit>,
    bypass: Option<OwnedSemaphorePermit>,
}

impl BodyBudget {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(units(bytes) as usize)),
            bypass: Arc::new(Semaphore::new(1)),
        })
    }

    /// Empty permit for a body of which no bytes have arrived yet.
    pub(crate) fn begin(self: &Arc<Self>) -> BodyPermit {
        BodyPermit { budget: self.clone(), taken: None, bypass: None }
    }
}

impl BodyPermit {
    /// Waits until the body may hold `bytes` bytes in total.
    pub(crate) async fn grow(&mut self, bytes: usize) {
        let taken = self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = (units(bytes.saturating_sub(FREE)) as usize).saturating_sub(taken);
        if bytes <= FREE || missing == 0 || self.bypass.is_some() {
            return;
        }
        let more = u32::try_from(missing.max(STEP / UNIT)).unwrap_or(u32::MAX);
        tokio::select! {
            biased;
            Ok(more) = self.budget.permits.clone().acquire_many_owned(more) => match &mut self.taken {
                Some(taken) => taken.merge(more),
                None => self.taken = Some(more),
            },
            Ok(bypass) = self.budget.bypass.clone().acquire_owned() => self.bypass = Some(bypass),
            // Unreachable: neither semaphore is ever closed.
            else => {}
        }
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::futures::FutureExt as _;

    #[test]
    fn bodies_that_fill_the_room_together_all_end_and_small_ones_never_wait() {
        let budget = BodyBudget::new(2 << 20);
        let mut bodies: Vec<BodyPermit> = (0..8).map(|_| budget.begin()).collect();
        let grows = |body: &mut BodyPermit, bytes| body.grow(bytes).now_or_never().is_some();
        // Announced and not sent: nothing is taken.
        assert_eq!(budget.permits.available_permits(), 2048);
        let fit = bodies.iter_mut().filter_map(|body| grows(body, 512 << 10).then_some(())).count();
        assert_eq!(fit, 5, "four and the one that need not wait");
        assert!(grows(&mut budget.begin(), FREE));
        let waiting = bodies.iter_mut().position(|body| !grows(body, 8 << 20));
        assert_eq!(waiting, Some(0));
        assert!(grows(&mut bodies[4], 8 << 20), "one always goes on");
        bodies.remove(4);
        assert!(grows(&mut bodies[0], 8 << 20), "and after it another");
        drop(bodies);
        assert_eq!((budget.permits.available_permits(), budget.bypass.available_permits()), (2048, 1));
    }
}
