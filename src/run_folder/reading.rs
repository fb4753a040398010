//! Reads the files of a run folder in any state: of a run in progress, finished, or cut off.
//!
//! Nothing is written or locked. What is damaged, unreadable or no regular file is skipped and leaves a note.

use super::bounded_lines::{BoundedLines, NUMBERS, SkippedLines, TEXTS};
use super::metrics_reader::{read_array, read_lines};
use super::{CHECKPOINTS, CONFIG, CheckpointRecord, EVALUATIONS, METRICS, QUARANTINE};
use crate::regular_file;
use anyhow::{Context as _, ensure};
use minds_core::record::{EvaluationRecord, QuarantineRow};
use minds_observe::CheckpointSummary;
use minds_observe::report::{MOST_METRICS, MetricsTable};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read as _};
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
    let (mut table, mut damage) = match read_lines(BufReader::new(file)) {
        Ok(read) => read,
        Err(error) => {
            notes.push(left_out(METRICS, &error));
            return (MetricsTable::default(), written);
        }
    };
    // Another program may have rewritten the array in another layout.
    if table.steps().is_empty()
        && !damage.is_none()
        && let Ok(again) = regular_file::open(&folder.join(METRICS))
        && let Some(whole) = read_array(BufReader::new(again))
    {
        (table, damage) = whole;
    }
    notes.extend(damage.notes(METRICS, NUMBERS));
    if table.left_out() > 0 {
        let numbers = table.left_out();
        notes.push(format!(
            "{METRICS}: {numbers} numbers are left out because their names come after the first {MOST_METRICS}"
        ));
    }
    (table, written)
}

/// Text of the config; bytes that are not UTF-8 become U+FFFD.
///
/// # Errors
/// The folder does not exist, is not a run folder, or its config cannot be read.
pub fn config(folder: &Path) -> anyhow::Result<String> {
    ensure!(folder.is_dir(), "{} is not a folder: name the run folder that `run` prints", folder.display());
    super::ensure_run_folder(folder)?;
    let path = folder.join(CONFIG);
    let mut bytes = Vec::new();
    let read = regular_file::open(&path).and_then(|file| file.take(TEXTS).read_to_end(&mut bytes));
    read.with_context(|| format!("failed to read {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Records of all evaluations, in the order of their file.
pub fn evaluations(folder: &Path, notes: &mut Vec<String>) -> Vec<EvaluationRecord> {
    let mut all = Vec::new();
    lines(folder, (EVALUATIONS, NUMBERS), notes, |row| all.push(row));
    all
}

/// All checkpoints, in the order of their file.
pub fn checkpoints(folder: &Path, notes: &mut Vec<String>) -> Vec<CheckpointSummary> {
    let mut all = Vec::new();
    lines(folder, (CHECKPOINTS, TEXTS), notes, |row: CheckpointRecord| all.push(row.summary()));
    all
}

/// Passes each quarantined rollout to `take`.
pub fn quarantine(folder: &Path, notes: &mut Vec<String>, take: impl FnMut(QuarantineRow<'static>)) {
    lines(folder, (QUARANTINE, TEXTS), notes, take);
}

/// Parses the lines of an optional file, each of at most `longest` bytes.
fn lines<T: DeserializeOwned>(
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
    match regular_file::open(&path) {
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

/// One note for all of these: the first, and how many more there are.
pub(super) fn first_of(notes: &[String]) -> Option<String> {
    let (first, rest) = notes.split_first()?;
    Some(match rest.len() {
        0 => first.clone(),
        1 => format!("{first}, and 1 more such file"),
        more => format!("{first}, and {more} more such files"),
    })
}
