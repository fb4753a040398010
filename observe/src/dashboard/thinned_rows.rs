//! Records of the steps so far, thinned out when there are many.

/// Maximum number of rows kept: twice what a curve on a screen can show.
const MOST: usize = 4000;

/// Rows in the order of their steps. When there are too many, every other row is removed, and later rows are sampled at
/// the same rate, so that they stay evenly spread; the last row is always included.
#[derive(Default)]
pub(super) struct ThinnedRows<T> {
    kept: Vec<T>,
    /// The last row, if it is not among the kept ones.
    last: Option<T>,
    seen: u64,
    /// Base-2 logarithm of the sampling interval in rows.
    halvings: u32,
}

impl<T> ThinnedRows<T> {
    pub(super) fn push(&mut self, row: T) {
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

    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
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
            rows.push(step);
            assert_eq!(rows.all().last(), Some(&step));
        }
        let steps: Vec<u64> = rows.all().copied().collect();
        // 30,000 in halves until they fit into 4,000: one of eight.
        assert_eq!(steps.len(), 30_000 / 8 + 1);
        assert_eq!((steps[0], *steps.last().unwrap()), (1, 30_000));
        let kept = &steps[..steps.len() - 1];
        assert!(kept.windows(2).all(|pair| pair[1] - pair[0] == 8));
    }
}
