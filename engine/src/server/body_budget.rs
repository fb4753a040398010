//! Room in memory for bodies that are being read.
//!
//! Room is taken as bytes arrive, so whoever announces much and sends nothing takes none. A small body needs none at
//! all: it is never kept waiting by large ones. One body at a time may go on where there is no room, so that bodies
//! that each wait for the other's room are impossible.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes per permit: permits are counted in 32 bits.
const UNIT: usize = 1024;

/// What every body may take without asking.
const FREE: usize = 64 << 10;

/// Least that is taken at a time.
const STEP: usize = 256 << 10;

/// The room that all bodies share.
#[derive(Debug)]
pub(super) struct BodyBudget {
    permits: Arc<Semaphore>,
    /// Held by the one body that does not wait for room.
    bypass: Arc<Semaphore>,
}

/// What one body has taken. It is given back when this is dropped.
#[derive(Debug)]
pub(super) struct BodyPermit {
    budget: Arc<BodyBudget>,
    taken: Option<OwnedSemaphorePermit>,
    bypass: Option<OwnedSemaphorePermit>,
}

impl BodyBudget {
    pub(super) fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(units(bytes) as usize)),
            bypass: Arc::new(Semaphore::new(1)),
        })
    }

    /// Room for a body of which nothing has arrived.
    pub(super) fn begin(self: &Arc<Self>) -> BodyPermit {
        BodyPermit { budget: self.clone(), taken: None, bypass: None }
    }
}

impl BodyPermit {
    /// Waits until there is room for so many bytes in all.
    pub(super) async fn grow(&mut self, bytes: usize) {
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
            // Both are closed, which they never are.
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
