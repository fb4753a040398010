//! Advantages of a group's members, from their rewards.

use crate::reward::Reward;
use serde::{Deserialize, Serialize};

/// How rewards of one group become advantages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Estimator {
    /// Reward minus the group's mean (Shao et al. 2024, "DeepSeekMath", §4.1, without the division).
    #[default]
    GroupMean,
    /// The same, divided by the group's standard deviation or 1e-3, whichever is larger (ibid., eq. 3).
    GroupStd,
    /// Reward minus the mean of the others (Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free").
    LeaveOneOut,
    /// The reward itself, without a baseline.
    None,
}

/// Smallest standard deviation that [`Estimator::GroupStd`] divides by.
const STD_FLOOR: f64 = 1e-3;

impl Estimator {
    /// One advantage per reward, in the same order. A group of one has no baseline: its advantage is 0 under every
    /// estimator but [`Estimator::None`].
    #[must_use]
    pub fn advantages(self, rewards: &[Reward]) -> Vec<f32> {
        let values: Vec<f64> = rewards.iter().map(|r| f64::from(r.get())).collect();
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let centred = values.iter().map(|v| v - mean);
        match self {
            Self::GroupMean => centred.map(|a| a as f32).collect(),
            Self::GroupStd => {
                let std = (centred.clone().map(|a| a * a).sum::<f64>() / n).sqrt().max(STD_FLOOR);
                centred.map(|a| (a / std) as f32).collect()
            }
            // r - (sum - r) / (n - 1) = (r - mean) * n / (n - 1)
            Self::LeaveOneOut => centred.map(|a| (a * n / (n - 1.0).max(1.0)) as f32).collect(),
            Self::None => values.iter().map(|v| *v as f32).collect(),
        }
    }
}

/// Whether all rewards are exactly equal, so that the group has no learning signal.
#[must_use]
pub fn is_constant(rewards: &[Reward]) -> bool {
    rewards.windows(2).all(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewards(values: &[f32]) -> Vec<Reward> {
        values.iter().map(|v| Reward::new(*v).unwrap()).collect()
    }

    #[test]
    fn estimators_follow_their_formulas() {
        let group = rewards(&[1.0, 2.0, 6.0]); // mean 3, variance (4 + 1 + 9) / 3 = 14 / 3
        assert_eq!(Estimator::GroupMean.advantages(&group), [-2.0, -1.0, 3.0]);
        let std = (14.0_f64 / 3.0).sqrt();
        let normalised: Vec<f32> = [-2.0, -1.0, 3.0].iter().map(|a| (a / std) as f32).collect();
        assert_eq!(Estimator::GroupStd.advantages(&group), normalised);
        // 1 - (2 + 6) / 2, 2 - (1 + 6) / 2, 6 - (1 + 2) / 2
        assert_eq!(Estimator::LeaveOneOut.advantages(&group), [-3.0, -1.5, 4.5]);
        assert_eq!(Estimator::None.advantages(&group), [1.0, 2.0, 6.0]);
    }

    #[test]
    fn a_group_of_one_has_no_baseline() {
        for estimator in [Estimator::GroupMean, Estimator::GroupStd, Estimator::LeaveOneOut] {
            assert_eq!(estimator.advantages(&rewards(&[0.7])), [0.0]);
        }
    }

    #[test]
    fn constancy_is_exact_equality() {
        assert!(is_constant(&rewards(&[0.1, 0.1])));
        assert!(!is_constant(&rewards(&[0.1, 0.100_000_01])));
    }
}
