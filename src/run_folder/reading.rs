//! Reads the files of a run folder in any state: of a run in progress, finished, or cut off.
//!
//! Nothing is written or locked. What is damaged, unreadable or no regular file is skipped and leaves a note.

use super::METRICS;
use super::bounded_lines::{self, BoundedLines, NUMBERS, SkippedLines};
use super::metrics_table::{MOST_NAMES, MetricsTable};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::path::Path;
use std::time::SystemTime;

/// Metrics of all steps, and when they were written last.
pub fn metrics_table(folder: &Path, notes: &mut Vec<String>) -> (MetricsTable, Option<SystemTime>) {
    let before = notes.len();
    let Some(file) = open(folder, METRICS, notes) else {
        if notes.len() == before {
            notes.push(format!("{METRICS} is missing: the run has not begun"));
        }
        return (MetricsTable::default(), None);
    };
    let written = file.metadata().and_then(|meta| meta.modified()).ok();
    let (mut table, mut damage) = match MetricsTable::read(BufReader::new(file)) {
        Ok(read) => read,
        Err(error) => {
            notes.push(left_out(METRICS, &error));
            return (MetricsTable::default(), written);
        }
    };
    // Another program may have rewritten the array in another layout.
    if table.len() == 0
        && !damage.is_none()
        && let Ok(again) = bounded_lines::open(&folder.join(METRICS))
        && let Some(whole) = MetricsTable::read_array(BufReader::new(again))
    {
        (table, damage) = whole;
    }
    notes.extend(damage.notes(METRICS, NUMBERS));
    if table.left_out() > 0 {
        let numbers = table.left_out();
        notes.push(format!(
            "{METRICS}: {numbers} numbers are left out because their names come after the first {MOST_NAMES}"
        ));
    }
    (table, written)
}

/// Parses the lines of an optional file, each of at most `longest` bytes.
pub fn lines<T: DeserializeOwned>(
    folder: &Path,
    (name, longest): (&str, u64),
    notes: &mut Vec<String>,
    take: impl FnMut(T),
) {
    let Some(file) = open(folder, name, notes) else { return };
    match rows(BufReader::new(file), longest, take) {
        Ok(damage) => notes.extend(damage.notes(name, longest)),
        Err(error) => notes.push(left_out(name, &error)),
    }
}

/// Parses all lines, each of at most `longest` bytes; returns those that were left out.
pub(super) fn rows<T: DeserializeOwned>(
    file: impl BufRead,
    longest: u64,
    mut take: impl FnMut(T),
) -> io::Result<SkippedLines> {
    let mut damage = SkippedLines::default();
    let mut lines = BoundedLines::new(file, longest);
    while let Some(line) = lines.read()? {
        match line.text.map(|text| (text, serde_json::from_slice(text))) {
            None => damage.long += 1,
            Some((_, Ok(row))) => take(row),
            Some((text, Err(_))) if text.trim_ascii().is_empty() => {}
            Some(_) => damage.add(|| line.number.to_string()),
        }
    }
    Ok(damage)
}

/// Opens a file; `None` if it is missing or unreadable. Only the latter leaves a note.
fn open(folder: &Path, name: &str, notes: &mut Vec<String>) -> Option<File> {
    let path = folder.join(name);
    match bounded_lines::open(&path) {
        Ok(file) => Some(file),
        // A dangling link is reported, unlike a missing file.
        Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => None,
        Err(error) => {
            notes.push(left_out(name, &error));
            None
        }
    }
}

pub(super) fn left_out(name: &str, error: &io::Error) -> String {
    format!("{name} is left out: {error}")
}
