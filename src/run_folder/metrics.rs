//! `metrics.json`: a valid JSON array at any moment, one step a line.
//!
//! A row replaces the closing bracket by itself and a new one in a single write, so whoever reads sees the array
//! before or after it.

use anyhow::{Context as _, ensure};
use minds_core::reward::Metrics;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

const FILE: &str = "metrics.json";
const END: &str = "\n]\n";

pub(super) struct MetricsFile {
    file: File,
    /// Bytes before [`END`].
    length: u64,
    empty: bool,
    /// Rows that moved aside when the file was opened.
    pub(super) past: usize,
}

impl MetricsFile {
    /// Opens the folder's file. Rows of steps after `step`, which the run will take again, move to
    /// `metrics.past_<step>.json`.
    pub(super) fn open(folder: &Path, step: u64) -> anyhow::Result<Self> {
        let path = folder.join(FILE);
        let rows = match super::text_of(&path)? {
            Some(text) => read_rows(&text).with_context(|| {
                format!(
                    "{} is damaged: mend it, or move it away to go on without the rows so far",
                    path.display()
                )
            })?,
            None => Vec::new(),
        };
        let kept: Vec<&String> = rows.iter().filter(|(s, _)| *s <= step).map(|(_, row)| row).collect();
        if kept.len() < rows.len() {
            let past: Vec<&String> = rows.iter().filter(|(s, _)| *s > step).map(|(_, row)| row).collect();
            super::write_whole(&folder.join(format!("metrics.past_{step:06}.json")), array(&past))?;
        }
        super::write_whole(&path, array(&kept))?;
        let file = OpenOptions::new().write(true).open(&path)?;
        let length = file.metadata()?.len() - END.len() as u64;
        Ok(Self { file, length, empty: kept.is_empty(), past: rows.len() - kept.len() })
    }

    pub(super) fn append(&mut self, metrics: &Metrics) -> anyhow::Result<()> {
        let row = serde_json::to_string(metrics).context("failed to write a row of metrics")?;
        let comma = if self.empty { "" } else { "," };
        let bytes = format!("{comma}\n{row}{END}");
        self.file.write_all_at(bytes.as_bytes(), self.length).context("failed to write metrics.json")?;
        self.length += (bytes.len() - END.len()) as u64;
        self.empty = false;
        Ok(())
    }
}

/// Whether a folder's file holds more than an empty array.
pub(super) fn any_rows(folder: &Path) -> bool {
    fs::metadata(folder.join(FILE)).is_ok_and(|file| file.len() > array(&[]).len() as u64)
}

/// Step and text of each row.
fn read_rows(text: &str) -> anyhow::Result<Vec<(u64, String)>> {
    let rows: Vec<Metrics> = serde_json::from_str(text)?;
    rows.iter()
        .map(|row| {
            let step = row.get("step").copied().unwrap_or(f64::NAN);
            ensure!(step >= 0.0, "a row has no `step`");
            Ok((step as u64, serde_json::to_string(row)?))
        })
        .collect()
}

fn array(rows: &[&String]) -> String {
    let lines: Vec<String> = rows.iter().map(|row| format!("\n{row}")).collect();
    format!("[{}{END}", lines.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: u64) -> Metrics {
        Metrics::from([("step".into(), step as f64), ("reward".into(), 0.5)])
    }

    fn steps(path: &Path) -> Vec<u64> {
        let text = fs::read_to_string(path).unwrap();
        let rows: Vec<Metrics> = serde_json::from_str(&text).unwrap();
        rows.iter().map(|row| row["step"] as u64).collect()
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
    fn rows_past_the_resume_point_move_aside() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = MetricsFile::open(dir.path(), 0).unwrap();
        (1..=5).for_each(|step| file.append(&row(step)).unwrap());
        drop(file);
        let mut file = MetricsFile::open(dir.path(), 3).unwrap();
        file.append(&row(4)).unwrap();
        assert_eq!(steps(&dir.path().join(FILE)), [1, 2, 3, 4]);
        assert_eq!(steps(&dir.path().join("metrics.past_000003.json")), [4, 5]);
    }
}
