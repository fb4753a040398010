//! Staleness of what steps train.

use crate::messages::TrainingGroup;
use std::collections::BTreeMap;

/// Counts groups, or samples, by staleness: the optimizer steps between the weights that sampled them and those that they
/// trained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StalenessHistogram(BTreeMap<u64, u64>);

impl StalenessHistogram {
    /// Counts the groups of the step that is done as number `step`, from 1.
    pub fn add(&mut self, step: u64, groups: &[TrainingGroup]) {
        for group in groups {
            // A step trains the version before its own.
            self.record((step - 1).saturating_sub(group.oldest.0));
        }
    }

    /// Counts one of this staleness.
    pub fn record(&mut self, staleness: u64) {
        *self.0.entry(staleness).or_default() += 1;
    }

    /// Mean staleness in steps; 0 of none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let sum: u64 = self.0.iter().map(|(staleness, count)| staleness * count).sum();
        sum as f64 / self.count().max(1) as f64
    }

    /// The smallest staleness in steps that at least this share of them does not exceed (nearest rank); 0 of none.
    #[must_use]
    pub fn percentile(&self, share: f64) -> u64 {
        let rank = (share * self.count() as f64).ceil().max(1.0) as u64;
        let mut below = 0;
        let reached = self.0.iter().find(|(_, count)| {
            below += **count;
            below >= rank
        });
        reached.map_or(0, |(staleness, _)| *staleness)
    }

    /// Number of all that were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        // By hand: a hundred groups, 98 of which lie at 2, one at 5 and one at 9.
        let histogram = StalenessHistogram([(2, 98), (5, 1), (9, 1)].into());
        let found = [0.0, 0.5, 0.98, 0.99, 1.0].map(|share| histogram.percentile(share));
        assert_eq!(found, [2, 2, 2, 5, 9]);
        assert!((histogram.mean() - 2.1).abs() < 1e-12);
        assert_eq!(
            (StalenessHistogram::default().percentile(0.5), StalenessHistogram::default().mean()),
            (0, 0.0)
        );
    }
}
