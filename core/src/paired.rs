//! Comparison of two measurements of the same things.

use crate::mean::MeanEstimate;
use crate::random::seeded_rng;
use rand::Rng as _;

/// Draws of the permutation test; p is known to ±0.005 at 0.05.
const DRAWS: u32 = 10_000;

/// How much one of two paired measurements is above the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedDifference {
    /// Number of pairs that were compared.
    pub pairs: usize,
    /// Mean of the second minus the first, with its standard error.
    pub estimate: MeanEstimate,
    /// How often a difference at least as large, up or down, would come by chance: the share of random sign flips of the
    /// pairs' differences whose mean is as large (Fisher's permutation test, 10,000 draws from a fixed seed).
    pub p: f64,
}

impl PairedDifference {
    /// Compares pairs of a first and a second value.
    ///
    /// ```
    /// use minds_core::paired::PairedDifference;
    ///
    /// let found = PairedDifference::of(&[(0.0, 1.0), (0.0, 1.0), (1.0, 1.0), (0.0, 1.0)]);
    /// assert_eq!(found.estimate.mean, 0.75);
    /// // Two of the eight ways to flip three differences of 1 are as extreme.
    /// assert!((found.p - 0.25).abs() < 0.02);
    /// ```
    #[must_use]
    pub fn of(pairs: &[(f64, f64)]) -> Self {
        let differences: Vec<f64> = pairs.iter().map(|(first, second)| second - first).collect();
        let estimate = MeanEstimate::of(&differences);
        let observed = differences.iter().sum::<f64>().abs();
        let mut rng = seeded_rng([0x7061_6972, pairs.len() as u64, 0, 0]);
        let is_extreme = |_: &u32| {
            let mut flips = 0_u64;
            let flipped = differences.iter().enumerate().map(|(at, difference)| {
                if at % 64 == 0 {
                    flips = rng.next_u64();
                }
                if flips >> (at % 64) & 1 == 0 { *difference } else { -difference }
            });
            // Sums of the same numbers in another order differ by rounding.
            flipped.sum::<f64>().abs() >= observed * (1.0 - 1e-9)
        };
        let extreme = (0..DRAWS).filter(is_extreme).count();
        Self { pairs: pairs.len(), estimate, p: extreme as f64 / f64::from(DRAWS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_pairs_are_no_difference_and_many_equal_shifts_are_one() {
        let same = PairedDifference::of(&[(0.5, 0.5), (1.0, 1.0)]);
        assert_eq!((same.estimate.mean, same.p), (0.0, 1.0));
        // All of twenty differ in one direction: 2 of 2^20 flips.
        let shifted: Vec<(f64, f64)> = (0..20).map(|i| (f64::from(i), f64::from(i) + 0.1)).collect();
        assert_eq!(PairedDifference::of(&shifted).p, 0.0);
        // Balanced: half up, half down.
        let balanced: Vec<(f64, f64)> =
            (0..100).map(|i| (0.0, if i % 2 == 0 { 1.0 } else { -1.0 })).collect();
        assert!(PairedDifference::of(&balanced).p > 0.9);
    }

    /// Of six differences of 1 to 6, the sum 17 is reached or passed by 21, 19 and 17 alone, which come from the signs with
    /// nothing, 1 or 2 turned down; with those of the other side 6 of 64.
    #[test]
    fn p_is_the_share_of_the_sign_flips_that_are_as_extreme() {
        let pairs = [(0.0, 1.0), (2.0, 0.0), (0.0, 3.0), (0.0, 4.0), (0.0, 5.0), (0.0, 6.0)];
        let found = PairedDifference::of(&pairs);
        assert_eq!(found.estimate.mean * 6.0, 17.0);
        assert!((found.p - 6.0 / 64.0).abs() < 0.01, "{}", found.p);
    }
}
