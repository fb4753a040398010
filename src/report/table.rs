//! `metrics.json` by columns.
//!
//! Read line by line, so that a run of a hundred thousand steps costs its numbers and not its text. A line that is no
//! row is left out and told by its number; what a row does not have is NaN in its column.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

/// The numbers of all steps.
#[derive(Debug, Default)]
pub struct Table {
    steps: Vec<u64>,
    columns: BTreeMap<String, Vec<f64>>,
}

/// A row as it is written: JSON has no word for what is no finite number but `null`.
type Row = BTreeMap<String, Option<f64>>;

impl Table {
    /// Reads the file; beside the table, the numbers of the lines that are damaged.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(mut file: impl BufRead) -> io::Result<(Self, Vec<usize>)> {
        let (mut table, mut damaged, mut line) = (Self::default(), Vec::new(), Vec::new());
        for n in 1.. {
            line.clear();
            if file.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            match line.trim_ascii() {
                b"" | b"[" | b"]" => {}
                row => {
                    if !table.add(row.strip_suffix(b",").unwrap_or(row)) {
                        damaged.push(n);
                    }
                }
            }
        }
        let length = table.steps.len();
        table.columns.values_mut().for_each(|column| column.resize(length, f64::NAN));
        Ok((table, damaged))
    }

    /// Whether the line is a row.
    fn add(&mut self, line: &[u8]) -> bool {
        let Ok(row) = serde_json::from_slice::<Row>(line) else { return false };
        let Some(step) = row.get("step").copied().flatten().filter(|step| *step >= 0.0) else { return false };
        let before = self.steps.len();
        self.steps.push(step as u64);
        for (name, value) in row {
            let column = self.columns.entry(name).or_default();
            column.resize(before, f64::NAN);
            column.push(value.unwrap_or(f64::NAN));
        }
        true
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// The step of each row.
    pub fn steps(&self) -> &[u64] {
        &self.steps
    }

    /// The names of all numbers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.keys().map(String::as_str)
    }

    /// One number of all rows.
    pub fn column(&self, name: &str) -> Option<&[f64]> {
        self.columns.get(name).map(Vec::as_slice)
    }

    /// One number where it is finite, with its step.
    pub fn points(&self, name: &str) -> Vec<(f64, f64)> {
        let column = self.column(name).unwrap_or_default();
        let points = self.steps.iter().zip(column).map(|(step, value)| (*step as f64, *value));
        points.filter(|(_, value)| value.is_finite()).collect()
    }

    /// One number where it is finite.
    pub fn values(&self, name: &str) -> Vec<f64> {
        self.points(name).into_iter().map(|(_, value)| value).collect()
    }

    /// The sum of what is finite of one number.
    pub fn sum(&self, name: &str) -> f64 {
        self.values(name).iter().sum()
    }

    /// The steps of which a number has this value.
    pub fn steps_where(&self, name: &str, value: f64) -> Vec<u64> {
        self.points(name).into_iter().filter(|point| point.1 == value).map(|(step, _)| step as u64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_row_has_not_is_no_number_and_a_damaged_line_is_told() {
        let text = "[\n{\"step\":1,\"a\":0.5},\n{\"step\":2,\"a\":null,\"b\":3},\n{\"a\":1},\n{\"step\":4,\"b\":1e999},\n{\"step\":5,\"a\":7}\n{\"ste";
        let (table, damaged) = Table::read(text.as_bytes()).unwrap();
        assert_eq!(table.steps(), [1, 2, 5]);
        assert_eq!(damaged, [4, 5, 7], "no step; a number that JSON cannot hold; cut off");
        assert_eq!(table.points("a"), [(1.0, 0.5), (5.0, 7.0)]);
        assert_eq!(table.points("b"), [(2.0, 3.0)]);
        assert_eq!(table.column("b").unwrap().len(), 3);
        assert_eq!((table.sum("a"), table.sum("none")), (7.5, 0.0));
        assert_eq!(table.steps_where("a", 7.0), [5]);
    }

    #[test]
    fn an_empty_array_is_a_run_without_a_step() {
        let (table, damaged) = Table::read(&b"[\n]\n"[..]).unwrap();
        assert_eq!((table.len(), damaged.len()), (0, 0));
    }
}
