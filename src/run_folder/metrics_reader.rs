//! Reads `metrics.json` into a table.
//!
//! The file is read line by line, so that memory never holds its text. A line that is not a row is skipped and reported
//! by its number. An array in another layout, as other programs write it, is read as a whole.

use super::bounded_lines::{BoundedLines, NUMBERS, SkippedLines};
use minds_observe::report::{MetricsRow, MetricsTable};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::io::{self, BufRead, Read};

/// Maximum bytes read of an array that is not one row a line: all its rows are in memory at a time.
const MOST_BYTES: u64 = 256 << 20;

/// Reads a file with one row a line; also returns the damaged lines.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read_lines(file: impl BufRead) -> io::Result<(MetricsTable, SkippedLines)> {
    let mut table = MetricsTable::default();
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
pub(super) fn read_array(file: impl Read) -> Option<(MetricsTable, SkippedLines)> {
    let mut table = MetricsTable::default();
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
    fn a_damaged_line_is_left_out_and_reported() {
        let text = "[\n{\"step\":1,\"a\":0.5},\n{\"step\":2,\"a\":null,\"b\":3},\n{\"a\":1},\n{\"step\":4,\"b\":1e999},\n{\"step\":5,\"a\":7}\n{\"ste";
        let (table, damage) = read_lines(text.as_bytes()).unwrap();
        assert_eq!(table.steps(), [1, 2, 5]);
        assert_eq!(damage.first, ["4", "5", "7"], "no step; a number that JSON cannot hold; cut off");
        assert_eq!(table.points("a"), [(1.0, 0.5), (5.0, 7.0)]);
    }

    #[test]
    fn an_empty_array_is_a_run_without_a_step() {
        let (table, damage) = read_lines(&b"[\n]\n"[..]).unwrap();
        assert!(table.steps().is_empty() && damage.is_none());
    }

    #[test]
    fn an_array_is_read_in_any_layout_and_only_as_a_whole() {
        let rows = r#"[{"step":1,"a":0.5},{"step":2,"a":[{}]},7,{"step":4,"a":null,"b":3}]"#;
        for text in [rows.to_owned(), rows.replace(',', " ,\n").replace('{', "{\n  ")] {
            let (table, damage) = read_array(text.as_bytes()).unwrap();
            assert_eq!(table.steps(), [1, 4]);
            assert_eq!((table.points("a"), table.points("b")), (vec![(1.0, 0.5)], vec![(4.0, 3.0)]));
            assert_eq!(damage.first, ["row 2", "row 3"]);
        }
        for cut in [1, rows.len() - 1] {
            assert!(read_array(&rows.as_bytes()[..cut]).is_none());
        }
        assert!(read_array(format!("{rows}{rows}").as_bytes()).is_none(), "nothing may follow");
    }

    #[test]
    fn a_row_that_is_too_long_is_left_out_and_counted() {
        let row = |name: usize| format!("{{\"step\":1,\"{}\":1}}", "x".repeat(name));
        let text = format!("[\n{},\n{}\n]\n", row(3 << 20), row(5 << 20));
        let (table, damage) = read_lines(text.as_bytes()).unwrap();
        assert_eq!((table.steps().len(), damage.long, damage.count), (1, 1, 0));
    }
}
