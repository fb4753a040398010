//! Reads the rows of a data file.
//!
//! Every row is a JSON object whose keys are the columns. An error names the file and the line.

mod held_out;
mod parquet;

pub(crate) use held_out::{is_held_out, place};
use serde_json::{Map, Value};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

/// Most bytes of one line. A longer one is hardly a row of text.
const LINE: u64 = 64 << 20;

/// The columns of one row.
pub(crate) type Columns = Map<String, Value>;

/// One row with its place in the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DataRow {
    pub place: RowPlace,
    pub columns: Columns,
}

/// Where a row is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RowPlace {
    file: Arc<str>,
    /// Number of the line or row, from 1.
    number: u64,
    is_line: bool,
}

impl RowPlace {
    /// A line of a text file, from 1.
    fn line(file: Arc<str>, number: u64) -> Self {
        Self { file, number, is_line: true }
    }

    /// A row of a file without lines, from 1.
    pub(crate) fn row(file: Arc<str>, number: u64) -> Self {
        Self { file, number, is_line: false }
    }
}

impl fmt::Display for RowPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.is_line { ":" } else { ", row " };
        write!(f, "{}{separator}{}", self.file, self.number)
    }
}

/// Reads all rows of a file.
///
/// # Errors
/// The file cannot be read, has a form that is not supported, or one of its rows is not a JSON object.
pub(crate) fn read(name: &str) -> Result<Vec<DataRow>, String> {
    if name.contains("://") {
        return Err(format!(
            "{name} is an address, and data are only read from files: download it first, for example with \
             `hf download --repo-type dataset OWNER/NAME --local-dir data`, and name a file in that folder"
        ));
    }
    let path = Path::new(name);
    if path.is_dir() {
        return Err(format!("{name} is a folder: name one file in it"));
    }
    let opened = File::open(path);
    let file = opened.map_err(|error| {
        let here = std::env::current_dir().unwrap_or_default();
        format!("failed to open {name}: {error} (relative paths start at {})", here.display())
    })?;
    let lower = name.to_lowercase();
    if lower.ends_with(".parquet") {
        return parquet::read(name, file);
    }
    let text = lower.strip_suffix(".zst").unwrap_or(&lower);
    if !text.ends_with(".jsonl") && !text.ends_with(".ndjson") {
        return Err(format!(
            "{name} has none of the endings .jsonl, .ndjson, .jsonl.zst, .ndjson.zst and .parquet: write one JSON object a line"
        ));
    }
    let stream: Box<dyn Read> = if text.len() == lower.len() {
        Box::new(file)
    } else {
        Box::new(zstd::stream::read::Decoder::new(file).map_err(|e| format!("failed to read {name}: {e}"))?)
    };
    lines(name, stream)
}

/// Reads one JSON object from each line that is not blank.
fn lines(name: &str, stream: impl Read) -> Result<Vec<DataRow>, String> {
    let file: Arc<str> = name.into();
    let mut reader = BufReader::with_capacity(1 << 16, stream);
    let mut rows = Vec::new();
    let mut buffer = Vec::new();
    for line in 1.. {
        buffer.clear();
        let place = RowPlace::line(file.clone(), line);
        let read = reader.by_ref().take(LINE + 1).read_until(b'\n', &mut buffer);
        let length = read.map_err(|error| format!("failed to read {place}: {error}"))?;
        if length == 0 {
            break;
        }
        if length as u64 > LINE {
            return Err(format!("{place} is longer than {} MiB", LINE >> 20));
        }
        let text = std::str::from_utf8(&buffer).map_err(|_| format!("{place} is not UTF-8 text"))?;
        // Some editors begin a file with a byte order mark.
        let text = if line == 1 { text.trim_start_matches('\u{feff}') } else { text };
        if text.trim().is_empty() {
            continue;
        }
        rows.push(DataRow { columns: object(text, &place)?, place });
    }
    if rows.is_empty() {
        return Err(format!("{name} has no rows"));
    }
    Ok(rows)
}

fn object(text: &str, place: &RowPlace) -> Result<Columns, String> {
    let kind = match serde_json::from_str(text) {
        Ok(Value::Object(columns)) => return Ok(columns),
        Ok(value) => kind(&value),
        Err(error) => return Err(format!("{place} is not valid JSON: {}", in_one_line(&error))),
    };
    Err(format!("{place} is {kind}; each line must be one JSON object such as {{\"question\": \"…\"}}"))
}

/// The error without the line, which is always 1.
fn in_one_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.replace(" at line 1 column ", " at column ")
}

/// The JSON type of a value, with its article.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_as(name: &str, bytes: &[u8]) -> Result<Vec<DataRow>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let shown = format!("{}/", folder.path().display());
        read(&path.display().to_string()).map_err(|error| error.replace(&shown, ""))
    }

    #[test]
    fn each_line_is_a_row_whatever_its_line_end_and_blank_lines_count() {
        let text = "\u{feff}{\"a\": 1}\r\n\n{\"a\": {\"b\": [2]}}";
        let packed = zstd::encode_all(text.as_bytes(), 3).unwrap();
        for (name, bytes) in
            [("x.jsonl", text.as_bytes()), ("x.NDJSON", text.as_bytes()), ("x.jsonl.zst", &packed)]
        {
            let rows = read_as(name, bytes).unwrap();
            let found: Vec<_> = rows.iter().map(|r| (r.place.number, json!(r.columns))).collect();
            assert_eq!(found, [(1, json!({"a": 1})), (3, json!({"a": {"b": [2]}}))], "{name}");
        }
    }

    #[test]
    fn an_error_names_the_file_and_the_line() {
        for (name, bytes, error) in [
            (
                "x.jsonl",
                &b"{\"a\": 1}\n{\"a\": }"[..],
                "x.jsonl:2 is not valid JSON: expected value at column 7",
            ),
            ("x.jsonl", b"{}\n[1]", "x.jsonl:2 is an array; each line must be one JSON object"),
            ("x.jsonl", b"{}\n\"\xff\"", "x.jsonl:2 is not UTF-8 text"),
            ("x.jsonl", b"\n\n", "x.jsonl has no rows"),
            ("x.csv", b"a,b", "x.csv has none of the endings .jsonl"),
            ("x.jsonl.zst", b"{}", "failed to read x.jsonl.zst"),
        ] {
            let found = read_as(name, bytes).unwrap_err();
            assert!(found.starts_with(error), "{found}");
        }
        let missing = read("no/such.jsonl").unwrap_err();
        assert!(
            missing.starts_with("failed to open no/such.jsonl: ") && missing.contains("start at /"),
            "{missing}"
        );
        assert!(read("hf://a/b").unwrap_err().contains("hf download"));
        assert!(read(".").unwrap_err().contains("is a folder"));
    }
}
