//! How a predicted change of log-probability is compared with the true one.
//!
//! Every valid prediction has a reward above 0 and at most 1, so an invalid one can be told apart by 0.

use serde::Deserialize;
use std::collections::BTreeSet;

/// What is predicted, and on which scale errors are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewardForm {
    /// The change per token of the target; errors in nats per token.
    PerToken,
    /// The change of the whole target; errors in nats.
    Sum,
    /// The change of the whole target; errors between inverse hyperbolic sines, which count small changes in nats
    /// and large ones by their ratio.
    Log,
}

impl RewardForm {
    /// The true change, from the summed logprobs of a target of `tokens` tokens.
    #[must_use]
    pub fn truth(self, prior: f64, posterior: f64, tokens: usize) -> f64 {
        match self {
            Self::PerToken => (posterior - prior) / tokens as f64,
            Self::Sum | Self::Log => posterior - prior,
        }
    }

    /// How far `prediction` lies from `truth`, on the form's scale.
    #[must_use]
    pub fn error(self, prediction: f64, truth: f64) -> f64 {
        (self.scaled(prediction) - self.scaled(truth)).abs()
    }

    /// `1 / (1 + (error / width)^2)`: 1 for the truth, a half at an error of `width`.
    #[must_use]
    pub fn reward(self, prediction: f64, truth: f64, width: f64) -> f64 {
        1.0 / (1.0 + (self.error(prediction, truth) / width).powi(2))
    }

    fn scaled(self, change: f64) -> f64 {
        if self == Self::Log { change.asinh() } else { change }
    }

    fn unscaled(self, value: f64) -> f64 {
        if self == Self::Log { value.sinh() } else { value }
    }
}

/// The one answer that would have earned most had it been given to every item, and what it would have earned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BestConstant {
    /// The constant prediction, in the unit of the form.
    pub answer: f64,
    /// Its mean reward over all truths.
    pub reward: f64,
}

/// The best constant answer to items with these truths; `None` where there are none.
///
/// A policy that earns no more than this has learned how large changes are on the average, not which lesson changes
/// what: report rewards minus this number.
#[must_use]
pub fn best_constant(truths: &[f64], form: RewardForm, width: f64) -> Option<BestConstant> {
    let places: Vec<f64> = truths.iter().map(|truth| form.scaled(*truth)).collect();
    let earned = |c: f64| {
        let sum: f64 = places.iter().map(|place| 1.0 / (1.0 + ((c - place) / width).powi(2))).sum();
        (sum / places.len() as f64, c)
    };
    let better = |a: (f64, f64), b: (f64, f64)| if b.0 > a.0 { b } else { a };
    // The mean reward has several peaks. Where it peaks its second derivative is not positive, and that of a Lorentzian
    // is so only within width / sqrt(3) of its centre: every peak lies that near to a truth.
    let step = 0.15 * width;
    let cells: BTreeSet<i64> =
        places.iter().flat_map(|place| (-5..=5).map(move |n| (place / step).round() as i64 + n)).collect();
    let coarse: Vec<(f64, f64)> = cells.iter().map(|cell| earned(*cell as f64 * step)).collect();
    // The second derivative is at most 2 / width^2 in size, so half a step hides no more than this of a peak.
    let hidden = (step / width / 2.0).powi(2);
    let enough = coarse.iter().copied().reduce(better)?.0 - hidden;
    let peaks = coarse.into_iter().filter(|(reward, _)| *reward >= enough).map(|(_, c)| {
        let mut low = c - step;
        let mut high = c + step;
        for _ in 0..60 {
            let third = (high - low) / 3.0;
            if earned(low + third).0 < earned(high - third).0 { low += third } else { high -= third }
        }
        earned((low + high) / 2.0)
    });
    let (reward, c) = peaks.reduce(better)?;
    Some(BestConstant { answer: form.unscaled(c), reward })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::LARGEST;
    use proptest::prelude::*;

    const FORMS: [RewardForm; 3] = [RewardForm::PerToken, RewardForm::Sum, RewardForm::Log];

    #[test]
    fn rewards_by_hand() {
        // An error of one width is worth a half, of two widths a fifth, of three a tenth.
        for (error, reward) in [(0.0, 1.0), (1.0, 0.5), (-2.0, 0.2), (3.0, 0.1)] {
            assert!((RewardForm::PerToken.reward(2.0 + error, 2.0, 1.0) - reward).abs() < 1e-12);
            assert!((RewardForm::Sum.reward(2.0 + 5.0 * error, 2.0, 5.0) - reward).abs() < 1e-12);
        }
        // asinh(sinh(3)) - asinh(sinh(1)) = 2.
        assert!((RewardForm::Log.reward(3_f64.sinh(), 1_f64.sinh(), 1.0) - 0.2).abs() < 1e-12);
        assert_eq!(RewardForm::PerToken.truth(-12.0, -3.0, 6), 1.5);
        assert_eq!(RewardForm::Sum.truth(-12.0, -3.0, 6), 9.0);
    }

    #[test]
    fn the_best_constant_sits_on_the_larger_heap() {
        // Two truths at 0 and one at 10: at 0 the mean is (1 + 1 + 1/101) / 3, and the far truth pulls but little.
        let best = best_constant(&[0.0, 10.0, 0.0], RewardForm::Sum, 1.0).expect("there are truths");
        assert!((best.reward - (2.0 + 1.0 / 101.0) / 3.0).abs() < 1e-4, "{best:?}");
        assert!(best.answer.abs() < 0.01, "{best:?}");
        let same = best_constant(&[4.0; 3], RewardForm::Sum, 1.0).expect("there are truths");
        assert!((same.answer - 4.0).abs() < 1e-6 && (same.reward - 1.0).abs() < 1e-9, "{same:?}");
        assert_eq!(best_constant(&[], RewardForm::Sum, 1.0), None);
        let log = best_constant(&[9.0, 9.0], RewardForm::Log, 1.0).expect("there are truths");
        assert!((log.answer - 9.0).abs() < 1e-5 && (log.reward - 1.0).abs() < 1e-9, "{log:?}");
        // Two truths where two peaks are about to become one: by symmetry the flat top is half way.
        let gap = 2.0 / 3_f64.sqrt();
        let flat = best_constant(&[0.0, gap], RewardForm::Sum, 1.0).expect("there are truths");
        assert!((flat.reward - 0.75).abs() < 1e-9, "{flat:?}");
    }

    proptest! {
        #[test]
        fn no_constant_on_a_fine_grid_is_better(truths in prop::collection::vec(-6.0..6.0_f64, 1..12)) {
            for form in FORMS {
                let best = best_constant(&truths, form, 1.0).expect("there are truths");
                for step in -240..=240 {
                    let c = f64::from(step) / 40.0;
                    let mean = truths.iter().map(|t| form.reward(c, *t, 1.0)).sum::<f64>() / truths.len() as f64;
                    prop_assert!(mean <= best.reward + 1e-6, "{form:?}: {c} earns {mean}, {best:?}");
                }
            }
        }

        #[test]
        fn every_valid_reward_lies_above_the_invalid_one(
            prediction in -LARGEST..=LARGEST, truth in -1e4..1e4_f64, width in 0.05..50.0_f64,
        ) {
            for form in FORMS {
                let reward = form.reward(prediction, truth, width) as f32;
                prop_assert!(reward > 0.0 && reward <= 1.0);
            }
        }
    }
}
