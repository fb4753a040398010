//! Metrics of the steps so far, thinned out when there are many.

use minds_core::reward::Metrics;

/// Maximum number of rows kept: twice what a curve on a screen can show.
const MOST: usize = 4000;

/// Rows in the order of their steps. When there are too many, every other row is removed, and later rows are sampled at
/// the same rate, so that they stay evenly spread; the last row is always included.
#[derive(Default)]
pub(super) struct ThinnedRows {
    kept: Vec<Metrics>,
    /// The last row, if it is not among the kept ones.
    last: Option<Metrics>,
    seen: u64,
    /// Base-2 logarithm of the sampling interval in rows.
    halvings: u32,
}

impl ThinnedRows {
    pub(super) fn push(&mut self, row: Metrics) {
        if self.seen.is_multiple_of(1 << self.halvings) {
            self.kept.push(row);
            self.last = None;
        } else {
            self.last = Some(row);
        }
        self.seen += 1;
        if self.kept.len() > MOST {
            let mut n = 0;
            self.kept.retain(|_| {
                n += 1;
                n % 2 == 1
            });
            self.halvings += 1;
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Metrics> {
        self.kept.iter().chain(&self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_run_stays_evenly_spread_and_ends_with_its_last_step() {
        let mut rows = ThinnedRows::default();
        for step in 1..=30_000 {
            rows.push(Metrics::from([("step".into(), f64::from(step))]));
            assert_eq!(rows.all().last().unwrap()["step"], f64::from(step));
        }
        let steps: Vec<f64> = rows.all().map(|row| row["step"]).collect();
        // 30,000 in halves until they fit into 4,000: one of eight.
        assert_eq!(steps.len(), 30_000 / 8 + 1);
        assert_eq!((steps[0], *steps.last().unwrap()), (1.0, 30_000.0));
        let kept = &steps[..steps.len() - 1];
        assert!(kept.windows(2).all(|pair| pair[1] - pair[0] == 8.0));
    }
}
