//! Writes the rollouts of each step: `rollouts/step_000001.jsonl`, or `.jsonl.zst` where the text is long.
//!
//! The text is made and written on a thread for blocking work, one step at a time: the next step waits until the one
//! before it is on the disk. A file appears under its name only when it is complete.

use super::rollouts::{COMPRESSED, FOLDER, PLAIN};
use anyhow::Context as _;
use minds_core::record::{RolloutRow, WrittenRollouts};
use minds_stages::messages::CommittedStep;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use tokio::task::{JoinHandle, spawn_blocking};

/// Longest text in bytes that is not compressed.
const LONGEST_PLAIN: usize = 1 << 20;

/// Compression level of zstd: higher levels cost more time than they save space (`benches/README.md`).
const LEVEL: i32 = 1;

/// Writes one step at a time.
pub(super) struct RolloutWriter {
    folder: PathBuf,
    which: WrittenRollouts,
    /// The step that is being written.
    writing: Option<JoinHandle<anyhow::Result<()>>>,
}

impl RolloutWriter {
    /// A writer into this run folder.
    pub(super) fn new(run_folder: &Path, which: WrittenRollouts) -> Self {
        Self { folder: run_folder.join(FOLDER), which, writing: None }
    }

    /// Begins to write a step, once the step before it is written.
    ///
    /// # Errors
    /// The step before it could not be written.
    pub(super) async fn write(&mut self, step: &CommittedStep) -> anyhow::Result<()> {
        let Some(rollouts) = step.rollouts(self.which) else { return Ok(()) };
        self.finish().await?;
        let folder = self.folder.clone();
        self.writing = Some(spawn_blocking(move || write(&folder, rollouts.step(), rollouts.rows())));
        Ok(())
    }

    /// Returns the error of the last step, if it has already failed.
    ///
    /// # Errors
    /// The step could not be written.
    pub(super) async fn check(&mut self) -> anyhow::Result<()> {
        if self.writing.as_ref().is_some_and(JoinHandle::is_finished) { self.finish().await } else { Ok(()) }
    }

    /// Waits until the last step is written.
    ///
    /// # Errors
    /// It could not be written.
    pub(super) async fn finish(&mut self) -> anyhow::Result<()> {
        let Some(writing) = &mut self.writing else { return Ok(()) };
        let written = writing.await;
        self.writing = None;
        written.context("the thread that writes rollouts panicked")?
    }
}

/// Writes the rollouts of a step into a new file, then gives it its name.
fn write<'a>(folder: &Path, step: u64, rollouts: impl Iterator<Item = RolloutRow<'a>>) -> anyhow::Result<()> {
    let name = format!("step_{step:06}");
    let new = folder.join(format!("{name}.new"));
    let kept = write_lines(&new, rollouts)
        .and_then(|ending| Ok(fs::rename(&new, folder.join(format!("{name}{ending}")))?));
    kept.with_context(|| format!("failed to keep the rollouts of step {step}"))
}

/// Writes one line per rollout, and returns the ending of the file's name.
fn write_lines<'a>(
    path: &Path,
    rollouts: impl Iterator<Item = RolloutRow<'a>>,
) -> anyhow::Result<&'static str> {
    let mut text = Vec::new();
    let mut encoder = None;
    for row in rollouts {
        serde_json::to_writer(&mut text, &row)?;
        text.push(b'\n');
        if encoder.is_none() && text.len() > LONGEST_PLAIN {
            let mut begun = zstd::Encoder::new(File::create(path)?, LEVEL)?;
            begun.include_checksum(true)?;
            encoder = Some(begun);
        }
        if let Some(encoder) = &mut encoder {
            encoder.write_all(&text)?;
            text.clear();
        }
    }
    match encoder {
        Some(encoder) => {
            encoder.finish()?;
            Ok(COMPRESSED)
        }
        None => {
            fs::write(path, &text)?;
            Ok(PLAIN)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_folder::bounded_lines::SkippedLines;
    use crate::run_folder::rollouts::{StepFile, move_later_aside, step_files};
    use minds_core::record::TurnRow;

    fn rollout(step: u64, member: u32, text: &str) -> RolloutRow<'static> {
        let turn = TurnRow {
            text: text.to_owned().into(),
            complete: true,
            prompt_tokens: 2,
            tokens: vec![1, 2].into(),
            logprobs: vec![-0.5, -1.25].into(),
            versions: Vec::new().into(),
        };
        RolloutRow {
            step,
            environment: "e".into(),
            group: 7,
            item: 3,
            member,
            policy: 0,
            newest_policy: None,
            reward: 0.5,
            advantage: -0.25,
            metrics: std::borrow::Cow::Owned([("x".to_owned(), 1.0)].into()),
            prompt: Vec::new().into(),
            turns: vec![turn],
        }
    }

    /// Three rollouts of a step: just over the bound, or far below it.
    fn rollouts(step: u64, long: bool) -> Vec<RolloutRow<'static>> {
        let text = if long { "ab\n".repeat(LONGEST_PLAIN / 8) } else { "ab\n".into() };
        (0..3).map(|member| rollout(step, member, &text)).collect()
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder.join(FOLDER)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn folder_with(steps: &[(u64, bool)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(FOLDER);
        fs::create_dir(&folder).unwrap();
        for (step, long) in steps {
            write(&folder, *step, rollouts(*step, *long).into_iter()).unwrap();
        }
        dir
    }

    /// All rows of a file, each read by its position.
    fn rows(file: &StepFile) -> Vec<RolloutRow<'static>> {
        let mut positions = Vec::new();
        let mut damage = SkippedLines::default();
        assert!(file.scan(&mut damage, |_, position| positions.push(position)).unwrap(), "to its end");
        assert!(damage.is_none(), "{damage:?}");
        positions.into_iter().map(|position| file.read(position).unwrap()).collect()
    }

    #[test]
    fn a_long_step_is_compressed_and_reads_as_a_short_one() {
        let dir = folder_with(&[(1, false), (2, true)]);
        assert_eq!(names(dir.path()), ["step_000001.jsonl", "step_000002.jsonl.zst"]);
        let mut notes = Vec::new();
        let files = step_files(dir.path(), &mut notes);
        assert_eq!(files.iter().map(rows).collect::<Vec<_>>(), [rollouts(1, false), rollouts(2, true)]);
        assert!(notes.is_empty(), "{notes:?}");
    }

    #[test]
    fn a_step_that_is_taken_again_keeps_its_first_rollouts_aside_whatever_their_form() {
        let dir = folder_with(&[(1, true), (2, true), (3, false)]);
        move_later_aside(dir.path(), 1).unwrap();
        let left = ["step_000001.jsonl.zst", "step_000002.past.jsonl.zst", "step_000003.past.jsonl"];
        assert_eq!(names(dir.path()), left);
        assert_eq!(step_files(dir.path(), &mut Vec::new()).len(), 1);
    }

    #[test]
    fn a_step_that_is_there_in_both_forms_is_read_once() {
        let dir = folder_with(&[(2, true)]);
        let path = dir.path().join(FOLDER).join("step_000002.jsonl");
        fs::write(path, "{}\n").unwrap();
        let files = step_files(dir.path(), &mut Vec::new());
        assert_eq!(files.iter().map(|file| (file.step, file.compressed)).collect::<Vec<_>>(), [(2, false)]);
    }

    #[test]
    fn a_compressed_file_that_was_cut_off_is_an_error() {
        let dir = folder_with(&[(1, true)]);
        let [file] = &step_files(dir.path(), &mut Vec::new())[..] else { panic!("one file") };
        let bytes = fs::read(&file.path).unwrap();
        fs::write(&file.path, &bytes[..bytes.len() / 2]).unwrap();
        assert!(file.scan(&mut SkippedLines::default(), |_, _| ()).is_err());
    }

    #[test]
    fn a_step_that_cannot_be_written_is_named() {
        let dir = folder_with(&[]);
        fs::create_dir(dir.path().join(FOLDER).join("step_000004.new")).unwrap();
        for long in [false, true] {
            let error = write(&dir.path().join(FOLDER), 4, rollouts(4, long).into_iter()).unwrap_err();
            assert_eq!(error.to_string(), "failed to keep the rollouts of step 4");
        }
    }
}
