//! Reads `rollouts/step_000001.jsonl` and `.jsonl.zst`: the rollouts trained in a step, one a line.

use super::bounded_lines::{BoundedLines, SkippedLines, TEXTS};
use super::reading::{first_of, left_out};
use crate::regular_file;
use anyhow::Context as _;
use minds_core::record::RolloutRow;
use serde::Deserialize;
use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

/// Folder with a file of trained rollouts per step.
pub(super) const FOLDER: &str = "rollouts";

/// Ending of the name of a file of text.
pub(super) const PLAIN: &str = ".jsonl";

/// Ending of the name of a compressed file.
pub(super) const COMPRESSED: &str = ".jsonl.zst";

/// Maximum bytes of text read of one file.
pub const MOST_BYTES: u64 = 512 << 20;

/// Bytes of text per byte of a compressed file, about.
const EXPANSION: u64 = 3;

/// Moves the rollouts of later steps aside, to `step_000007.past.jsonl`: these steps are taken again, but the first
/// rollouts are worth keeping.
pub(super) fn move_later_aside(folder: &Path, step: u64) -> anyhow::Result<()> {
    let folder = folder.join(FOLDER);
    let failed = || format!("failed to move rollouts after step {step} aside");
    for entry in fs::read_dir(&folder).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        if let Some((number, ending)) = step_of(&path).filter(|(number, _)| *number > step) {
            let past = super::aside(&folder, &format!("step_{number:06}.past"), &ending[1..]);
            fs::rename(&path, past).with_context(failed)?;
        }
    }
    Ok(())
}

/// Step of a rollout file and the ending of its name; `None` for other files, such as one that a resumed run has
/// replaced.
fn step_of(path: &Path) -> Option<(u64, &'static str)> {
    let name = path.file_name()?.to_str()?.strip_prefix("step_")?;
    [PLAIN, COMPRESSED]
        .into_iter()
        .find_map(|ending| Some((name.strip_suffix(ending)?.parse().ok()?, ending)))
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
    /// Size of its text in bytes; an estimate if it is compressed.
    pub bytes: u64,
    /// Whether it is compressed with zstd.
    pub compressed: bool,
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

/// Position of a row in the text of its file, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct RowPosition {
    at: u64,
    length: usize,
}

impl StepFile {
    /// Passes the header of each row to `take`, and adds lines that were left out to `damage`. Of a text of more than
    /// [`MOST_BYTES`], only the first ones are read. Returns whether the text was read to its end.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn scan(
        &self,
        damage: &mut SkippedLines,
        mut take: impl FnMut(RolloutHeader, RowPosition),
    ) -> io::Result<bool> {
        let mut lines = BoundedLines::new(self.text(0)?.take(MOST_BYTES), TEXTS);
        while let Some(line) = lines.read()? {
            match line.text.map(|text| (text.len(), serde_json::from_slice(text))) {
                None => damage.long += 1,
                Some((length, Ok(header))) => take(header, RowPosition { at: line.at, length }),
                Some((_, Err(_))) => damage.add(|| format!("{}:{}", place(&self.path), line.number)),
            }
        }
        Ok(lines.into_inner().limit() > 0)
    }

    /// The text of the file from this byte on.
    fn text(&self, at: u64) -> io::Result<Box<dyn BufRead>> {
        let mut file = BufReader::new(regular_file::open(&self.path)?);
        if !self.compressed {
            file.seek(SeekFrom::Start(at))?;
            return Ok(Box::new(file));
        }
        let mut text = BufReader::new(zstd::Decoder::with_buffer(file)?);
        io::copy(&mut text.by_ref().take(at), &mut io::sink())?;
        Ok(Box::new(text))
    }

    /// Reads a whole row.
    ///
    /// # Errors
    /// The file cannot be read, or was replaced since it was scanned.
    pub fn read(&self, position: RowPosition) -> io::Result<RolloutRow<'static>> {
        let mut line = vec![0; position.length];
        self.text(position.at)?.read_exact(&mut line)?;
        Ok(serde_json::from_slice(&line)?)
    }
}

/// Rollout files in the order of their steps, one per step; those that cannot be read leave a note.
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
        let Some((step, ending)) = step_of(&path) else { continue };
        let compressed = ending == COMPRESSED;
        match regular_file::regular(&path) {
            Ok(meta) => {
                let bytes = if compressed { meta.len().saturating_mul(EXPANSION) } else { meta.len() };
                files.push(StepFile { step, path, bytes, compressed });
            }
            Err(error) => unread.push((step, left_out(&place(&path), &error))),
        }
    }
    // A file may have been decompressed by hand, and then both are there.
    files.sort_by_key(|file| (file.step, file.compressed));
    files.dedup_by_key(|file| file.step);
    unread.sort();
    let unread: Vec<_> = unread.into_iter().map(|(_, note)| note).collect();
    notes.extend(first_of(&unread));
    files
}
