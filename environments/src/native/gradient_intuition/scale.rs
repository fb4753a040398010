//! How large truths are: the running spread that errors are measured by.
//!
//! This is the one thing in an environment that changes. It starts from a spread that the config assumes, which counts
//! like that many truths already seen, and follows what is measured; a resumed run restores it from the checkpoint.
//! A truth of a group that was under way at the save is measured again, and counts twice. The members of a group share
//! the scale that stood when the first of them was scored, so that their order does not matter.

use minds_core::ids::GroupId;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// How many truths the assumed spread counts for.
const ASSUMED: f64 = 32.0;

/// Groups whose scale is remembered; far more than are ever scored at the same time.
const REMEMBERED: usize = 1024;

/// A scale at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TruthScale {
    pub(super) mean: f64,
    /// Standard deviation of the truths, above 0.
    pub(super) sd: f64,
}

impl TruthScale {
    /// Bonus from 0 to 1: 1 for the truth, 0 at an error of `tolerance` standard deviations and beyond.
    pub(super) fn bonus(self, prediction: f64, truth: f64, tolerance: f64) -> f64 {
        (1.0 - (prediction - truth).abs() / (tolerance * self.sd)).max(0.0)
    }
}

/// Running statistics of all truths.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TruthStatistics {
    count: f64,
    mean: f64,
    /// Sum of squared deviations from the mean (Welford 1962).
    squares: f64,
}

pub(super) struct TruthScales {
    state: Mutex<ScaleState>,
}

struct ScaleState {
    truths: TruthStatistics,
    groups: VecDeque<(GroupId, TruthScale)>,
}

impl TruthScales {
    pub(super) fn new(assumed_sd: f64) -> Self {
        let squares = ASSUMED * assumed_sd * assumed_sd;
        let truths = TruthStatistics { count: ASSUMED, mean: 0.0, squares };
        Self { state: Mutex::new(ScaleState { truths, groups: VecDeque::new() }) }
    }

    pub(super) fn memory(&self) -> TruthStatistics {
        self.state.lock().truths
    }

    /// Resumes from these truths instead of the assumed spread.
    pub(super) fn restore_memory(&self, truths: TruthStatistics) -> Result<(), &'static str> {
        let TruthStatistics { count, mean, squares } = truths;
        if !(count >= 1.0 && count.is_finite() && mean.is_finite() && squares >= 0.0 && squares.is_finite()) {
            return Err("it is not a valid sum of truths");
        }
        self.state.lock().truths = truths;
        Ok(())
    }

    /// The scale for a member of this group, whose truth is taken into account for later groups.
    pub(super) fn of(&self, group: GroupId, truth: f64) -> TruthScale {
        let mut state = self.state.lock();
        let known = state.groups.iter().rev().find(|(known, _)| *known == group).map(|(_, scale)| *scale);
        let scale = known.unwrap_or_else(|| state.open(group));
        state.truths.observe(truth);
        scale
    }
}

impl ScaleState {
    fn open(&mut self, group: GroupId) -> TruthScale {
        let TruthStatistics { count, mean, squares } = self.truths;
        let scale = TruthScale { mean, sd: (squares / count).sqrt().max(f64::MIN_POSITIVE) };
        if self.groups.len() == REMEMBERED {
            self.groups.pop_front();
        }
        self.groups.push_back((group, scale));
        scale
    }
}

impl TruthStatistics {
    fn observe(&mut self, truth: f64) {
        self.count += 1.0;
        let deviation = truth - self.mean;
        self.mean += deviation / self.count;
        self.squares += deviation * (truth - self.mean);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_starts_as_assumed_and_follows_what_is_measured() {
        let scales = TruthScales::new(0.9);
        let first = scales.of(GroupId(0), 5.0);
        assert!(first.mean == 0.0 && (first.sd - 0.9).abs() < 1e-12);
        for group in 1..4000 {
            scales.of(GroupId(group), if group % 2 == 0 { 3.0 } else { -1.0 });
        }
        let last = scales.of(GroupId(4000), 0.0);
        // Half 3 and half -1: mean 1, standard deviation 2; the assumption has nearly worn off.
        assert!((last.mean - 1.0).abs() < 0.02 && (last.sd - 2.0).abs() < 0.02, "{last:?}");
    }

    #[test]
    fn members_of_a_group_share_a_scale_in_any_order() {
        let truths = [4.0, -2.0, 0.5];
        let play = |order: [usize; 3]| {
            let scales = TruthScales::new(1.0);
            let of = order.map(|i| scales.of(GroupId(7), truths[i]));
            (of, scales.of(GroupId(8), 0.0))
        };
        let (group, next) = play([0, 1, 2]);
        assert!(group.iter().all(|scale| *scale == group[0]));
        let (other, other_next) = play([2, 0, 1]);
        assert_eq!(group, other);
        assert!((next.mean - other_next.mean).abs() < 1e-12 && (next.sd - other_next.sd).abs() < 1e-12);
    }

    #[test]
    fn old_groups_are_forgotten() {
        let scales = TruthScales::new(1.0);
        for group in 0..5000 {
            scales.of(GroupId(group), 1.0);
        }
        assert_eq!(scales.state.lock().groups.len(), REMEMBERED);
    }

    #[test]
    fn bonuses_by_hand() {
        let scale = TruthScale { mean: 0.0, sd: 0.5 };
        for (prediction, bonus) in [(1.0, 1.0), (1.5, 0.5), (0.5, 0.5), (2.0, 0.0), (-9.0, 0.0)] {
            assert_eq!(scale.bonus(prediction, 1.0, 2.0), bonus, "{prediction}");
        }
    }
}
