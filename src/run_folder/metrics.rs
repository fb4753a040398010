//! `metrics.json`: a valid JSON array after every step, one step a line.
//!
//! Each row replaces the closing bracket by itself and a new bracket in a single write. A file system may show a reader
//! a part of that write, so who reads during a run must be ready to read again.

use anyhow::{Context as _, ensure};
use minds_core::record::StepRecord;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// File with one row per step.
pub const FILE: &str = "metrics.json";
const END: &str = "\n]\n";

pub(super) struct MetricsFile {
    file: File,
    /// Length of the file up to [`END`], in bytes.
    length: u64,
    empty: bool,
    /// Number of rows that moved aside when the file was opened.
    pub(super) past: usize,
}

impl MetricsFile {
    /// Opens the folder's file. Rows of steps after `step`, which the run will take again, move to
    /// `metrics.past_<step>.json`.
    pub(super) fn open(folder: &Path, step: u64) -> anyhow::Result<Self> {
        let path = folder.join(FILE);
        let rows = read(&path).with_context(|| {
            format!(
                "{} is damaged: repair it, or move it away to resume without the rows so far",
                path.display()
            )
        })?;
        let (kept, past): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.step <= step);
        if !past.is_empty() {
            let aside = super::aside(folder, &format!("metrics.past_{step:06}"), "json");
            super::write_whole(&aside, array(&past)?)?;
        }
        super::write_whole(&path, array(&kept)?)?;
        let file = OpenOptions::new().write(true).open(&path)?;
        let length = file.metadata()?.len() - END.len() as u64;
        Ok(Self { file, length, empty: kept.is_empty(), past: past.len() })
    }

    pub(super) fn append(&mut self, record: &StepRecord) -> anyhow::Result<()> {
        let row = serde_json::to_string(record).context("failed to write a row of metrics")?;
        let comma = if self.empty { "" } else { "," };
        let bytes = format!("{comma}\n{row}{END}");
        if let Err(error) = self.file.write_all_at(bytes.as_bytes(), self.length) {
            // The disk may be full: restore the previous end of the array, which takes no extra space.
            let mended = self.file.write_all_at(END.as_bytes(), self.length);
            drop(mended.and_then(|()| self.file.set_len(self.length + END.len() as u64)));
            return Err(error).context("failed to write metrics.json");
        }
        self.length += (bytes.len() - END.len()) as u64;
        self.empty = false;
        Ok(())
    }
}

/// Reads all rows of a folder's file.
pub(super) fn rows(folder: &Path) -> anyhow::Result<Vec<StepRecord>> {
    read(&folder.join(FILE)).with_context(|| format!("{}/{FILE} is damaged", folder.display()))
}

/// Whether a folder's file holds more than an empty array.
pub(super) fn any_rows(folder: &Path) -> bool {
    fs::metadata(folder.join(FILE)).is_ok_and(|file| file.len() > format!("[{END}").len() as u64)
}

/// Reads all rows of a file, none if it does not exist; a truncated last row is left out.
fn read(path: &Path) -> anyhow::Result<Vec<StepRecord>> {
    let Some(mut text) = super::text_of(path)? else { return Ok(Vec::new()) };
    if let Ok(rows) = serde_json::from_str(&text) {
        return Ok(rows);
    }
    // A row may have been written meanwhile: what differs on a second reading was not damage.
    while let Some(again) = super::text_of(path)?
        && again != text
    {
        text = again;
    }
    serde_json::from_str(&text).or_else(|whole| {
        // One row a line, after the opening bracket.
        let lines: Vec<&str> = text.lines().skip(1).map(|line| line.trim_end_matches(',')).collect();
        let rows: Vec<StepRecord> = lines.iter().map_while(|line| serde_json::from_str(line).ok()).collect();
        ensure!(text.starts_with('[') && rows.len() + 1 >= lines.len(), whole);
        tracing::warn!(rows = rows.len(), "the last row of metrics.json is incomplete and is left out");
        Ok(rows)
    })
}

fn array(rows: &[StepRecord]) -> serde_json::Result<String> {
    let rows: Vec<String> =
        rows.iter().map(|row| Ok(format!("\n{}", serde_json::to_string(row)?))).collect::<Result<_, _>>()?;
    Ok(format!("[{}{END}", rows.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: u64) -> StepRecord {
        StepRecord { step, entropy: Some(0.5), ..StepRecord::default() }
    }

    fn steps(path: &Path) -> Vec<u64> {
        let text = fs::read_to_string(path).unwrap();
        let rows: Vec<StepRecord> = serde_json::from_str(&text).unwrap();
        rows.iter().map(|row| row.step).collect()
    }

    #[test]
    fn the_file_is_an_array_after_every_row_and_one_row_is_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let mut file = MetricsFile::open(dir.path(), 0).unwrap();
        assert_eq!(steps(&path), [0_u64; 0]);
        for step in 1..=3 {
            file.append(&row(step)).unwrap();
            assert_eq!(steps(&path), (1..=step).collect::<Vec<_>>());
        }
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2 + 3);
    }

    #[test]
    fn a_row_that_was_cut_off_or_holds_a_null_costs_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        for (text, kept) in [
            ("[\n{\"step\":1},\n{\"step\":2,\"loss\":null}\n]\n", &[1, 2][..]),
            ("[\n{\"step\":1},\n{\"step\":2},\n{\"ste", &[1, 2]),
            ("[\n{\"step\":1},\n{\"step\":2}", &[1, 2]),
            ("[", &[]),
        ] {
            fs::write(&path, text).unwrap();
            MetricsFile::open(dir.path(), 9).unwrap();
            assert_eq!(steps(&path), kept, "{text}");
        }
        fs::write(&path, "[\n{\"step\":1},\n{\"st\n{\"step\":3}\n]\n").unwrap();
        assert!(MetricsFile::open(dir.path(), 9).is_err(), "that is more than a cut");
    }

    #[test]
    fn rows_past_the_resume_point_move_aside() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = MetricsFile::open(dir.path(), 0).unwrap();
        (1..=5).for_each(|step| file.append(&row(step)).unwrap());
        drop(file);
        let mut file = MetricsFile::open(dir.path(), 3).unwrap();
        file.append(&row(4)).unwrap();
        assert_eq!(steps(&dir.path().join(FILE)), [1, 2, 3, 4]);
        assert_eq!(steps(&dir.path().join("metrics.past_000003.json")), [4, 5]);
        drop(file);
        MetricsFile::open(dir.path(), 3).unwrap();
        assert_eq!(steps(&dir.path().join("metrics.past_000003.json")), [4, 5], "nothing is thrown away");
        assert_eq!(steps(&dir.path().join("metrics.past_000003-2.json")), [4]);
    }
}
