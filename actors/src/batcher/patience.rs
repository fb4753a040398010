//! When a batch may leave: the trainer waits for stragglers rather than let them grow older than the run allows.
//!
//! A group played by version `v` is trained at step `v + K` at the latest. A batch leaves only if those it leaves
//! behind can all keep that, with so many groups to a step.

use crate::ledger::{Ledger, Stamp};

/// What the next batch has to wait for.
#[derive(Clone)]
pub struct Patience {
    /// Knows which weights play what.
    pub ledger: Ledger,
    /// Steps by which the weights that play may lie behind those in training.
    pub max_steps_off_policy: u64,
    /// Groups per step.
    pub groups_per_batch: usize,
    /// The step that the next batch will be: the version of the weights that it trains.
    pub step: u64,
}

impl Patience {
    /// Waits until a batch of the oldest groups may leave.
    pub(super) async fn wait(self) {
        self.ledger.until(|groups| self.may_leave(groups)).await;
    }

    fn may_leave(&self, groups: &[Stamp]) -> bool {
        let mut ready: Vec<u64> = groups.iter().filter(|g| g.ready).map(|g| g.version.0).collect();
        let playing = groups.iter().filter(|g| !g.ready).map(|g| g.version.0);
        if playing.clone().next().is_none() {
            return true; // there is nobody to wait for
        }
        ready.sort_unstable();
        let mut left: Vec<u64> = ready.into_iter().skip(self.groups_per_batch).chain(playing).collect();
        left.sort_unstable();
        // The n-th oldest of those left behind is trained n / groups_per_batch steps after the next one.
        left.iter().zip(0..).all(|(version, n)| {
            let trained = self.step + 1 + n / self.groups_per_batch as u64;
            trained <= version + self.max_steps_off_policy
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Settled;
    use minds_core::ids::PolicyVersion;

    /// Two groups to a step, at most two steps off-policy, and the batch of `step` about to leave.
    fn check(step: u64, ready: &[u64], playing: &[u64], leaves: bool) {
        let ledger = Ledger::new(Settled::default());
        let patience = Patience { ledger, max_steps_off_policy: 2, groups_per_batch: 2, step };
        let stamps = |versions: &[u64], ready| -> Vec<Stamp> {
            versions.iter().map(|v| Stamp { version: PolicyVersion(*v), ready }).collect()
        };
        let groups = [stamps(ready, true), stamps(playing, false)].concat();
        assert_eq!(patience.may_leave(&groups), leaves, "step {step}, ready {ready:?}, playing {playing:?}");
    }

    #[test]
    fn a_batch_leaves_if_those_left_behind_can_keep_their_time() {
        check(0, &[0, 0], &[0, 0, 0, 0], true);
        check(1, &[1, 1], &[0, 0], true);
        check(1, &[1, 1], &[0, 0, 0, 0], false);
        check(1, &[0, 0, 1, 1], &[0, 0], true);
        check(2, &[1, 1], &[0], false);
        check(2, &[0, 1, 1], &[1, 2], true);
        check(9, &[0, 0], &[], true);
    }
}
