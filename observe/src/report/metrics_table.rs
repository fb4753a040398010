//! The numbers of all steps of a run, as a table of columns.
//!
//! Memory holds the values of a long run: a metric that a row lacks is NaN in its column and takes no memory.

use std::collections::BTreeMap;

/// Maximum number of metric names kept, in order of appearance; values of other names are counted.
pub const MOST_METRICS: usize = 4096;

/// Metrics of all steps, by column.
#[derive(Debug, Default)]
pub struct MetricsTable {
    steps: Vec<u64>,
    columns: BTreeMap<String, MetricsColumn>,
    left_out: u64,
}

/// One metric, for the rows that have it.
#[derive(Debug, Default)]
struct MetricsColumn {
    rows: Vec<u32>,
    values: Vec<f64>,
}

/// Values of a step by name, with that of the step itself: JSON writes non-finite numbers as `null`.
pub type MetricsRow = BTreeMap<String, Option<f64>>;

impl MetricsTable {
    /// Adds a row; false if it has no valid step.
    pub fn add(&mut self, row: MetricsRow) -> bool {
        let Some(step) = row.get("step").copied().flatten().filter(|step| *step >= 0.0) else { return false };
        let Ok(number) = u32::try_from(self.steps.len()) else { return false };
        self.steps.push(step as u64);
        for (name, value) in row {
            if self.columns.len() >= MOST_METRICS && !self.columns.contains_key(&name) {
                self.left_out += 1;
                continue;
            }
            let column = self.columns.entry(name).or_default();
            if let Some(value) = value {
                column.rows.push(number);
                column.values.push(value);
            }
        }
        true
    }

    /// Number of values left out because there are too many names.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// The step of each row.
    pub fn steps(&self) -> &[u64] {
        &self.steps
    }

    /// Names of all metrics, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.keys().map(String::as_str)
    }

    /// Values of one metric for all rows, NaN where a row lacks it.
    pub fn column(&self, name: &str) -> Option<Vec<f64>> {
        let column = self.columns.get(name)?;
        let mut values = vec![f64::NAN; self.steps.len()];
        column.rows.iter().zip(&column.values).for_each(|(row, value)| values[*row as usize] = *value);
        Some(values)
    }

    /// Finite values of one metric, each with its step.
    pub fn points(&self, name: &str) -> Vec<(f64, f64)> {
        let Some(column) = self.columns.get(name) else { return Vec::new() };
        let points = column.rows.iter().zip(&column.values);
        points.map(|(row, value)| (self.steps[*row as usize] as f64, *value)).collect()
    }

    /// Finite values of one metric, in row order.
    pub fn values(&self, name: &str) -> Vec<f64> {
        self.points(name).into_iter().map(|(_, value)| value).collect()
    }

    /// Sum of the finite values of one metric.
    pub fn sum(&self, name: &str) -> f64 {
        self.values(name).iter().sum()
    }

    /// Steps in which a metric has exactly this value.
    pub fn steps_where(&self, name: &str, value: f64) -> Vec<u64> {
        self.points(name).into_iter().filter(|point| point.1 == value).map(|(step, _)| step as u64).collect()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A table of these rows.
    pub fn table(rows: &[&str]) -> MetricsTable {
        let mut table = MetricsTable::default();
        rows.iter().for_each(|row| assert!(table.add(serde_json::from_str(row).unwrap()), "{row}"));
        table
    }

    #[test]
    fn a_value_that_a_row_lacks_is_nan_and_no_point() {
        let mut table =
            table(&["{\"step\":1,\"a\":0.5}", "{\"step\":2,\"a\":null,\"b\":3}", "{\"step\":5,\"a\":7}"]);
        assert!(!table.add([("a".into(), Some(1.0))].into()), "it has no step");
        assert_eq!(table.steps(), [1, 2, 5]);
        assert_eq!(table.points("a"), [(1.0, 0.5), (5.0, 7.0)]);
        assert_eq!(table.points("b"), [(2.0, 3.0)]);
        assert_eq!(table.column("b").unwrap().len(), 3);
        assert_eq!((table.sum("a"), table.sum("none")), (7.5, 0.0));
        assert_eq!(table.steps_where("a", 7.0), [5]);
    }

    /// 1000 rows of eight names each that come once, and of two that come always.
    #[test]
    fn names_beyond_the_most_are_left_out_and_counted() {
        let mut table = MetricsTable::default();
        for step in 0..1000 {
            let once = (0..8).map(|n| (format!("z{}", 8 * step + n), Some(1.0)));
            let always = [("step".to_owned(), Some(step as f64)), ("a".to_owned(), Some(0.5))];
            assert!(table.add(always.into_iter().chain(once).collect()));
        }
        assert_eq!(table.steps().len(), 1000);
        assert_eq!(table.names().count(), MOST_METRICS);
        assert_eq!(table.left_out(), (8000 + 2 - MOST_METRICS) as u64);
        assert_eq!(table.points("a").len(), 1000, "what was known goes on");
        let kept: usize = table.columns.values().map(|column| column.values.len()).sum();
        assert_eq!(kept, 2000 + MOST_METRICS - 2, "no memory for what a row has not");
    }
}
