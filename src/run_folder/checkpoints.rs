//! `checkpoints.jsonl`: one saved state per line, appended when the state is whole.

use super::lines;
use super::spares::Kept;
use anyhow::Context as _;
use minds_stages::ledger::{Counts, Settled};
use minds_stages::trainer::Saved;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

/// One line per saved state.
pub const FILE: &str = "checkpoints.jsonl";

/// A state that a run can go on from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Name on the service.
    pub name: String,
    /// The next step, as tinker-cookbook counts batches.
    pub batch: u64,
    /// Steps done.
    pub step: u64,
    /// Weights and optimizer.
    pub state_path: String,
    /// Weights to sample from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampler_path: Option<String>,
    /// Which positions of the schedule these weights have behind them.
    pub settled: Settled,
    /// What had become of all groups of the run.
    #[serde(default)]
    pub groups: Counts,
    /// Groups that were ready and not yet trained, if their file was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) spares: Option<Kept>,
    /// What environments have learnt, by their name in metrics.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub memories: BTreeMap<String, serde_json::Value>,
}

impl Checkpoint {
    /// The line of a state, of a run whose earlier life left these numbers.
    pub(super) fn new(saved: &Saved, before: &Counts, spares: Option<Kept>) -> Self {
        Self {
            name: saved.name.clone(),
            batch: saved.step,
            step: saved.step,
            state_path: saved.state_path.clone(),
            sampler_path: saved.sampler_path.clone(),
            settled: saved.settled.clone(),
            groups: saved.counts.after(before),
            spares,
            memories: saved.memories.clone(),
        }
    }
}

/// All whole lines. A last line that was cut off is no checkpoint; one that only lacks its end, as an editor may leave
/// it, is one.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Checkpoint>> {
    let text = super::text_of(path)?.unwrap_or_default();
    let whole = lines::whole(&text);
    let last = Some(&text[whole.len()..]).filter(|last| serde_json::from_str::<Checkpoint>(last).is_ok());
    whole
        .lines()
        .chain(last)
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(n, line)| {
            serde_json::from_str(line)
                .with_context(|| format!("line {} of {} is damaged", n + 1, path.display()))
        })
        .collect()
}

pub(super) fn append(path: &Path, checkpoint: &Checkpoint) -> anyhow::Result<()> {
    // A line that was cut off must not swallow this one.
    if fs::read(path).is_ok_and(|bytes| bytes.last().is_some_and(|last| *last != b'\n')) {
        write(path, &read(path)?)?;
    }
    let line = format!("{}\n", serde_json::to_string(checkpoint)?);
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(line.as_bytes())
        .and_then(|()| file.sync_all())
        .context("failed to write checkpoints.jsonl")
}

/// All lines anew.
pub(super) fn write(path: &Path, all: &[Checkpoint]) -> anyhow::Result<()> {
    let lines: Vec<String> = all.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    super::write_whole(path, lines.iter().map(|line| format!("{line}\n")).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(step: u64) -> Checkpoint {
        let saved = Saved {
            name: format!("{step:06}"),
            step,
            state_path: format!("tinker://run/weights/{step:06}"),
            sampler_path: None,
            settled: Settled::default(),
            spares: Vec::new(),
            counts: Counts::default(),
            memories: BTreeMap::from([("intuition".into(), step.into())]),
        };
        Checkpoint::new(&saved, &Counts::default(), None)
    }

    #[test]
    fn a_line_that_was_cut_off_is_no_checkpoint_and_harms_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        append(&path, &checkpoint(5)).unwrap();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(br#"{"name":"000010","ba"#).unwrap();
        assert_eq!(read(&path).unwrap(), [checkpoint(5)]);
        append(&path, &checkpoint(15)).unwrap();
        assert_eq!(read(&path).unwrap(), [checkpoint(5), checkpoint(15)]);
        // As an editor may leave it: an empty line, and no end of the last one.
        let edited = fs::read_to_string(&path).unwrap().trim_end().replace('\n', "\n\n");
        fs::write(&path, edited).unwrap();
        assert_eq!(read(&path).unwrap(), [checkpoint(5), checkpoint(15)]);
    }
}
