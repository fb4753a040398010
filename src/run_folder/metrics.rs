//! `metrics.json`: a valid JSON array at any moment, one step a line.
//!
//! Each row replaces the closing bracket by itself and a new bracket in a single write, so readers see the array before
//! or after it.

use anyhow::{Context as _, ensure};
use minds_core::reward::Metrics;
use std::collections::BTreeMap;
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
        let rows = match super::text_of(&path)? {
            Some(text) => read_rows(&text).with_context(|| {
                format!(
                    "{} is damaged: repair it, or move it away to resume without the rows so far",
                    path.display()
                )
            })?,
            None => Vec::new(),
        };
        let kept: Vec<&String> = rows.iter().filter(|(s, _)| *s <= step).map(|(_, row)| row).collect();
        if kept.len() < rows.len() {
            let past: Vec<&String> = rows.iter().filter(|(s, _)| *s > step).map(|(_, row)| row).collect();
            super::write_whole(
                &super::aside(folder, &format!("metrics.past_{step:06}"), "json"),
                array(&past),
            )?;
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
pub(super) fn rows(folder: &Path) -> anyhow::Result<Vec<Metrics>> {
    let text = super::text_of(&folder.join(FILE))?.unwrap_or_else(|| "[]".into());
    parse(&text).with_context(|| format!("{}/{FILE} is damaged", folder.display()))
}

/// Whether a folder's file holds more than an empty array.
pub(super) fn any_rows(folder: &Path) -> bool {
    fs::metadata(folder.join(FILE)).is_ok_and(|file| file.len() > array(&[]).len() as u64)
}

/// Step and text of each row.
fn read_rows(text: &str) -> anyhow::Result<Vec<(u64, String)>> {
    parse(text)?
        .iter()
        .zip(1_u64..)
        .map(|(row, n)| {
            let step = row.get("step").copied().unwrap_or(f64::NAN);
            ensure!(step >= 0.0, "row {n} has no `step`");
            Ok((step as u64, serde_json::to_string(row)?))
        })
        .collect()
}

/// Parses all rows; a truncated last row and null values are left out.
fn parse(text: &str) -> anyhow::Result<Vec<Metrics>> {
    type JsonRow = BTreeMap<String, Option<f64>>;
    let rows: Vec<JsonRow> = match serde_json::from_str(text) {
        Ok(rows) => rows,
        Err(whole) => {
            // One row a line, after the opening bracket.
            let lines: Vec<&str> = text.lines().skip(1).map(|line| line.trim_end_matches(',')).collect();
            let row = |line: &&str| serde_json::from_str::<JsonRow>(line).ok();
            let rows: Vec<JsonRow> = lines.iter().map_while(row).collect();
            ensure!(text.starts_with('[') && rows.len() + 1 >= lines.len(), whole);
            tracing::warn!(rows = rows.len(), "the last row of metrics.json is incomplete and is left out");
            rows
        }
    };
    let known = |row: JsonRow| row.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    Ok(rows.into_iter().map(known).collect())
}

fn array(rows: &[&String]) -> String {
    let lines: Vec<String> = rows.iter().map(|row| format!("\n{row}")).collect();
    format!("[{}{END}", lines.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_stages::telemetry::names;
    use std::collections::BTreeSet;

    /// The rows of a table in `docs/metrics.md`: a name, its unit, its meaning.
    fn told(file: &str) -> BTreeSet<String> {
        let docs = include_str!("../../docs/metrics.md");
        let (_, section) = docs.split_once(&format!("## The rows of `{file}`\n")).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix('|'));
        let rows: Vec<Vec<&str>> = rows.map(|row| row.split('|').map(str::trim).collect()).collect();
        assert!(rows.iter().all(|row| row.len() == 3 && !row[2].is_empty()), "name, unit, meaning");
        let told: BTreeSet<String> = rows.iter().map(|row| row[0].trim_end_matches('`').into()).collect();
        assert_eq!(told.len(), rows.len(), "one is told twice");
        told
    }

    #[test]
    fn every_number_of_a_row_is_explained_and_nothing_else() {
        let under = |start: &str, names: &[&str]| -> BTreeSet<String> {
            names.iter().map(|name| format!("{start}{name}")).collect()
        };
        // Metrics of the embedded engine's passes and steps, and those of other services, which cannot be listed.
        let service = ["optim/grad_norm", "optim/grad_clip", "optim/<number>", "loss:sum", "<number>:<rule>"];
        let of_a_step = [
            under("", names::OF_A_STEP),
            under("", &service),
            under("env/<name>/", names::OF_AN_ENVIRONMENT),
            under("env/<name>/", &["<part>"]),
        ];
        assert_eq!(told(FILE), of_a_step.into_iter().flatten().collect::<BTreeSet<_>>());
        let of_an_evaluation = [
            under("", &[names::STEP]),
            under("eval/<name>/", names::OF_AN_EVALUATION),
            under("eval/<name>/", &["<part>"]),
        ];
        assert_eq!(
            told(crate::run_folder::EVALUATIONS),
            of_an_evaluation.into_iter().flatten().collect::<BTreeSet<_>>()
        );
    }

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
