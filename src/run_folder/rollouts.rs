//! `rollouts/step_000001.jsonl`: the rollouts trained in a step, one a line.

use super::bounded_lines::{self, BoundedLines, SkippedLines, TEXTS};
use super::reading::{first_of, left_out};
use anyhow::Context as _;
use minds_core::record::RolloutRow;
use minds_stages::messages::CommittedStep;
use serde::Deserialize;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufReader, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

/// Folder with a file of trained rollouts per step.
pub(super) const FOLDER: &str = "rollouts";

/// Maximum bytes read of one file.
pub const MOST_BYTES: u64 = 512 << 20;

pub(super) fn write(folder: &Path, step: &CommittedStep) -> anyhow::Result<()> {
    let mut lines = String::new();
    for row in step.rollouts() {
        writeln!(lines, "{}", serde_json::to_string(&row)?)?;
    }
    let step = step.record.step;
    let path = folder.join(FOLDER).join(format!("step_{step:06}.jsonl"));
    super::write_whole(&path, &lines).with_context(|| format!("failed to keep the rollouts of step {step}"))
}

/// Moves the rollouts of later steps aside, to `step_000007.past.jsonl`: these steps are taken again, but the first
/// rollouts are worth keeping.
pub(super) fn move_later_aside(folder: &Path, step: u64) -> anyhow::Result<()> {
    let folder = folder.join(FOLDER);
    let failed = || format!("failed to move rollouts after step {step} aside");
    for entry in fs::read_dir(&folder).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        if let Some(number) = step_of(&path).filter(|number| *number > step) {
            let past = super::aside(&folder, &format!("step_{number:06}.past"), "jsonl");
            fs::rename(&path, past).with_context(failed)?;
        }
    }
    Ok(())
}

/// Step of a rollout file; `None` for other files, such as one that a resumed run has replaced.
fn step_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("step_")?.strip_suffix(".jsonl")?.parse().ok()
}

/// Path of a rollout file in the run folder, for notes.
pub(super) fn place(path: &Path) -> String {
    format!("{FOLDER}/{}", path.file_name().unwrap_or_default().display())
}

/// The rollout file of a step.
#[derive(Debug)]
pub struct StepFile {
    /// Its step, from 1.
    pub step: u64,
    /// Path of the step's rollout file.
    pub path: PathBuf,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// Fields of a row that a choice among many rollouts depends on.
#[derive(Deserialize)]
pub struct RolloutHeader {
    /// Step that trained the rollout, from 1.
    pub step: u64,
    /// The environment's name in metrics.
    pub environment: String,
    /// Id of its group in the run.
    pub group: u64,
    /// Index of the rollout in its group.
    pub member: u64,
    /// Reward that the environment gave.
    pub reward: f32,
}

/// Position of a row in its file, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct RowPosition {
    at: u64,
    length: usize,
}

impl StepFile {
    /// Passes the header of each row to `take`, and returns what was left out. Of a file of more than [`MOST_BYTES`],
    /// only the first ones are read.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn scan(
        &self,
        damage: &mut SkippedLines,
        mut take: impl FnMut(RolloutHeader, RowPosition),
    ) -> io::Result<()> {
        let file = bounded_lines::open(&self.path)?.take(MOST_BYTES);
        let mut lines = BoundedLines::new(BufReader::new(file), TEXTS);
        while let Some(line) = lines.read()? {
            match line.text.map(|text| (text.len(), serde_json::from_slice(text))) {
                None => damage.long += 1,
                Some((length, Ok(header))) => take(header, RowPosition { at: line.at, length }),
                Some((_, Err(_))) => damage.add(|| format!("{}:{}", place(&self.path), line.number)),
            }
        }
        Ok(())
    }

    /// Reads a whole row.
    ///
    /// # Errors
    /// The file cannot be read, or was replaced since it was scanned.
    pub fn read(&self, position: RowPosition) -> io::Result<RolloutRow<'static>> {
        let mut line = vec![0; position.length];
        let mut file = bounded_lines::open(&self.path)?;
        file.seek(SeekFrom::Start(position.at))?;
        file.read_exact(&mut line)?;
        Ok(serde_json::from_slice(&line)?)
    }
}

/// Rollout files in the order of their steps; those that cannot be read leave a note.
pub fn step_files(folder: &Path, notes: &mut Vec<String>) -> Vec<StepFile> {
    let entries = match fs::read_dir(folder.join(FOLDER)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            notes.push(left_out(FOLDER, &error));
            return Vec::new();
        }
        Ok(entries) => entries,
    };
    let mut files = Vec::new();
    let mut unread = Vec::new();
    // An entry that cannot be listed has no name, and so no step.
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        let Some(step) = step_of(&path) else { continue };
        match bounded_lines::regular(&path) {
            Ok(meta) => files.push(StepFile { step, path, bytes: meta.len() }),
            Err(error) => unread.push((step, left_out(&place(&path), &error))),
        }
    }
    files.sort_by_key(|file| file.step);
    unread.sort();
    let unread: Vec<_> = unread.into_iter().map(|(_, note)| note).collect();
    notes.extend(first_of(&unread));
    files
}
