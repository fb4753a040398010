//! How a predicted change of log-probability is compared with the true one.
//!
//! Every valid prediction has a reward above 0 and at most 1, so an invalid one can be told apart by 0.

use serde::Deserialize;

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
    /// The true change, from the summed log-probs of a target of `tokens` tokens.
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
    /// The answer.
    pub answer: f64,
    /// Its mean reward.
    pub reward: f64,
}

/// The best constant answer to items with these truths; `None` where there are none.
///
/// A policy that earns no more than this has learned how large changes are on the average, not which lesson changes
/// what: report rewards minus this number.
#[must_use]
pub fn best_constant(truths: &[f64], form: RewardForm, width: f64) -> Option<BestConstant> {
    let places: Vec<f64> = truths.iter().map(|truth| form.scaled(*truth)).collect();
    let weight = |c: f64, t: f64| 1.0 / (1.0 + ((c - t) / width).powi(2));
    let mean = |c: f64| places.iter().map(|t| weight(c, *t)).sum::<f64>() / places.len() as f64;
    // The mean reward has several peaks. Mean shift (Comaniciu & Meer 2002, "Mean Shift", §2) climbs from every truth
    // to the peak above it; the derivative of the Lorentzian makes the squared reward the weight of the shift.
    let climb = |start: f64| {
        let mut c = start;
        for _ in 0..200 {
            let (sum, total) = places.iter().fold((0.0, 0.0), |(sum, total), t| {
                let w = weight(c, *t).powi(2);
                (sum + w * t, total + w)
            });
            let next = sum / total;
            if (next - c).abs() <= 1e-9 * width {
                break;
            }
            c = next;
        }
        c
    };
    let peaks = places.iter().map(|start| climb(*start)).map(|c| (mean(c), c));
    let (reward, c) = peaks.max_by(|a, b| a.0.total_cmp(&b.0))?;
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
        assert_eq!(
            best_constant(&[4.0; 3], RewardForm::Sum, 1.0),
            Some(BestConstant { answer: 4.0, reward: 1.0 })
        );
        assert_eq!(best_constant(&[], RewardForm::Sum, 1.0), None);
        let log = best_constant(&[9.0, 9.0], RewardForm::Log, 1.0).expect("there are truths");
        assert!((log.answer - 9.0).abs() < 1e-9 && log.reward == 1.0, "{log:?}");
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
