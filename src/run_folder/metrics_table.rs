//! `metrics.json` as a table of columns.
//!
//! The file is read line by line, so that memory holds the values of a long run and not its text. A line that is not a
//! row is skipped and reported by its number; a metric that a row lacks is NaN in its column and takes no memory. An
//! array in another layout, as other programs write it, is read as a whole.

use super::bounded_lines::{BoundedLines, NUMBERS, SkippedLines};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};

/// Maximum number of metric names kept, in order of appearance; values of other names are counted.
pub const MOST_NAMES: usize = 4096;

/// Maximum bytes read of an array that is not one row a line: all its rows are in memory at a time.
const MOST_BYTES: u64 = 256 << 20;

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

/// A row as stored: JSON writes non-finite numbers as `null`.
type MetricsRow = BTreeMap<String, Option<f64>>;

impl MetricsTable {
    /// Reads a file with one row a line; also returns the damaged lines.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(file: impl BufRead) -> io::Result<(Self, SkippedLines)> {
        let mut table = Self::default();
        let mut damage = SkippedLines::default();
        let mut lines = BoundedLines::new(file, NUMBERS);
        while let Some(line) = lines.read()? {
            match line.text.map(<[u8]>::trim_ascii) {
                None => damage.long += 1,
                Some(b"" | b"[" | b"]") => {}
                Some(text) => {
                    let row = serde_json::from_slice(text.strip_suffix(b",").unwrap_or(text));
                    if !row.is_ok_and(|row| table.add(row)) {
                        damage.add(|| line.number.to_string());
                    }
                }
            }
        }
        Ok((table, damage))
    }

    /// Reads a JSON array in any layout; also returns the elements that are not rows. `None` if the file is not one whole
    /// array, or has more than [`MOST_BYTES`].
    pub fn read_array(file: impl Read) -> Option<(Self, SkippedLines)> {
        let mut table = Self::default();
        let mut damage = SkippedLines::default();
        let elements: Vec<ArrayElement> = serde_json::from_reader(file.take(MOST_BYTES)).ok()?;
        for (element, number) in elements.into_iter().zip(1..) {
            let is_row = match element {
                ArrayElement::Row(row) => table.add(row),
                ArrayElement::Other(IgnoredAny) => false,
            };
            if !is_row {
                damage.add(|| format!("row {number}"));
            }
        }
        Some((table, damage))
    }

    /// Adds a row; false if it has no valid step.
    fn add(&mut self, row: MetricsRow) -> bool {
        let Some(step) = row.get("step").copied().flatten().filter(|step| *step >= 0.0) else { return false };
        let Ok(number) = u32::try_from(self.steps.len()) else { return false };
        self.steps.push(step as u64);
        for (name, value) in row {
            if self.columns.len() >= MOST_NAMES && !self.columns.contains_key(&name) {
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

    /// Number of rows in the table.
    pub fn len(&self) -> usize {
        self.steps.len()
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

/// An element of an array of rows.
#[derive(Deserialize)]
#[serde(untagged)]
enum ArrayElement {
    Row(MetricsRow),
    Other(IgnoredAny),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_values_are_nan_and_a_damaged_line_is_reported() {
        let text = "[\n{\"step\":1,\"a\":0.5},\n{\"step\":2,\"a\":null,\"b\":3},\n{\"a\":1},\n{\"step\":4,\"b\":1e999},\n{\"step\":5,\"a\":7}\n{\"ste";
        let (table, damage) = MetricsTable::read(text.as_bytes()).unwrap();
        assert_eq!(table.steps(), [1, 2, 5]);
        assert_eq!(damage.first, ["4", "5", "7"], "no step; a number that JSON cannot hold; cut off");
        assert_eq!(table.points("a"), [(1.0, 0.5), (5.0, 7.0)]);
        assert_eq!(table.points("b"), [(2.0, 3.0)]);
        assert_eq!(table.column("b").unwrap().len(), 3);
        assert_eq!((table.sum("a"), table.sum("none")), (7.5, 0.0));
        assert_eq!(table.steps_where("a", 7.0), [5]);
    }

    #[test]
    fn an_empty_array_is_a_run_without_a_step() {
        let (table, damage) = MetricsTable::read(&b"[\n]\n"[..]).unwrap();
        assert!(table.len() == 0 && damage.is_none());
    }

    #[test]
    fn an_array_is_read_in_any_layout_and_only_as_a_whole() {
        let rows = r#"[{"step":1,"a":0.5},{"step":2,"a":[{}]},7,{"step":4,"a":null,"b":3}]"#;
        for text in [rows.to_owned(), rows.replace(',', " ,\n").replace('{', "{\n  ")] {
            let (table, damage) = MetricsTable::read_array(text.as_bytes()).unwrap();
            assert_eq!(table.steps(), [1, 4]);
            assert_eq!((table.points("a"), table.points("b")), (vec![(1.0, 0.5)], vec![(4.0, 3.0)]));
            assert_eq!(damage.first, ["row 2", "row 3"]);
        }
        for cut in [1, rows.len() - 1] {
            assert!(MetricsTable::read_array(&rows.as_bytes()[..cut]).is_none());
        }
        assert!(MetricsTable::read_array(format!("{rows}{rows}").as_bytes()).is_none(), "nothing may follow");
    }

    #[test]
    fn a_row_that_is_too_long_is_left_out_and_counted() {
        let row = |name: usize| format!("{{\"step\":1,\"{}\":1}}", "x".repeat(name));
        let text = format!("[\n{},\n{}\n]\n", row(3 << 20), row(5 << 20));
        let (table, damage) = MetricsTable::read(text.as_bytes()).unwrap();
        assert_eq!((table.len(), damage.long, damage.count), (1, 1, 0));
    }

    /// 1000 rows of eight names each that come once, and of two that come always.
    #[test]
    fn names_beyond_the_most_are_left_out_and_counted() {
        let row = |step: usize| {
            let once: String = (0..8).map(|n| format!(",\"z{}\":1", 8 * step + n)).collect();
            format!("{{\"step\":{step},\"a\":0.5{once}}}\n")
        };
        let text: String = (0..1000).map(row).collect();
        let (table, damage) = MetricsTable::read(text.as_bytes()).unwrap();
        assert_eq!((table.len(), damage.count), (1000, 0));
        assert_eq!(table.names().count(), MOST_NAMES);
        assert_eq!(table.left_out(), (8000 + 2 - MOST_NAMES) as u64);
        assert_eq!(table.points("a").len(), 1000, "what was known goes on");
        let kept: usize = table.columns.values().map(|column| column.values.len()).sum();
        assert_eq!(kept, 2000 + MOST_NAMES - 2, "no memory for what a row has not");
    }
}
