//! When a batch may leave: the trainer waits for stragglers rather than exceed the staleness limit.
//!
//! A group sampled by version `v` is trained at step `v + max_staleness` at the latest. A minibatch leaves only if all
//! groups that stay can still meet that limit, with `groups_per_batch` groups per step.

use crate::ledger::{GroupProgress, Ledger};
use minds_core::ids::PolicyVersion;

/// What the next batch has to wait for.
#[derive(Clone)]
pub struct StalenessGate {
    /// Holds the version that samples each group.
    pub ledger: Ledger,
    /// Most optimizer steps between the weights that sampled a group and those that it trains.
    pub max_staleness: u64,
    /// Number of groups per optimizer step.
    pub groups_per_batch: usize,
    /// The step at which the run began.
    pub first: u64,
    /// Groups that have left since.
    pub left: usize,
}

impl StalenessGate {
    /// Waits until the `count` oldest groups may leave.
    pub(super) async fn wait(self, count: usize) {
        self.ledger.until(|groups| self.may_leave(count, groups)).await;
    }

    /// The version of the weights that the next group to leave will train. Batches that were refused were no steps.
    pub(super) fn step(&self) -> u64 {
        self.first + (self.left / self.groups_per_batch) as u64 - self.ledger.refused_batches()
    }

    /// Whether a group that those weights sampled is too stale now.
    pub(super) fn too_old(&self, version: PolicyVersion) -> bool {
        self.step() > version.0 + self.max_staleness
    }

    fn may_leave(&self, count: usize, groups: &[GroupProgress]) -> bool {
        let mut ready: Vec<u64> = groups.iter().filter(|g| g.ready).map(|g| g.version.0).collect();
        let playing = groups.iter().filter(|g| !g.ready).map(|g| g.version.0);
        if playing.clone().next().is_none() {
            return true; // there is nobody to wait for
        }
        ready.sort_unstable();
        let mut left: Vec<u64> = ready.into_iter().skip(count).chain(playing).collect();
        left.sort_unstable();
        // The groups that stay follow in the order of their age, `groups_per_batch` per step.
        let place = self.left % self.groups_per_batch + count;
        left.iter().zip(place..).all(|(version, place)| {
            let trained = self.step() + (place / self.groups_per_batch) as u64;
            trained <= version + self.max_staleness
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::SettledPositions;

    fn staleness_gate(first: u64, left: usize) -> StalenessGate {
        let ledger = Ledger::new(SettledPositions::default());
        StalenessGate { ledger, max_staleness: 2, groups_per_batch: 2, first, left }
    }

    /// Two groups to a step, at most two steps off-policy, and the batch of `step` about to leave.
    fn check(step: u64, ready: &[u64], playing: &[u64], leaves: bool) {
        let staleness_gate = staleness_gate(step, 0);
        let stamps = |versions: &[u64], ready| -> Vec<GroupProgress> {
            versions.iter().map(|v| GroupProgress { version: PolicyVersion(*v), ready }).collect()
        };
        let groups = [stamps(ready, true), stamps(playing, false)].concat();
        assert_eq!(
            staleness_gate.may_leave(2, &groups),
            leaves,
            "step {step}, ready {ready:?}, playing {playing:?}"
        );
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

    #[test]
    fn the_second_half_of_a_batch_leaves_room_for_no_other_in_its_step() {
        let stamp = |version, ready| GroupProgress { version: PolicyVersion(version), ready };
        // Of step 2, one group or none is settled, and one is about to be; another one is still being sampled.
        for (left, version, leaves) in [(0, 0, true), (1, 0, false), (1, 1, true)] {
            let groups = [stamp(0, true), stamp(version, false)];
            assert_eq!(
                staleness_gate(2, left).may_leave(1, &groups),
                leaves,
                "{left} left, version {version}"
            );
        }
    }

    #[test]
    fn steps_are_counted_by_settled_groups_and_refused_batches_do_not_count() {
        let staleness_gate = staleness_gate(5, 7);
        assert_eq!(staleness_gate.step(), 8);
        assert!(!staleness_gate.too_old(PolicyVersion(6)) && staleness_gate.too_old(PolicyVersion(5)));
        staleness_gate.ledger.refuse_batch();
        assert_eq!(staleness_gate.step(), 7);
        assert!(!staleness_gate.too_old(PolicyVersion(5)));
    }
}
