//! `checkpoints.jsonl`: one checkpoint per line, appended when the checkpoint is complete.
//!
//! A line that is damaged or inconsistent is an error that names its number and its key: a run that resumed from it
//! would skip positions that it has not trained.

use super::lines;
use super::saved_groups::SavedGroupsFile;
use anyhow::{Context as _, anyhow, bail};
use minds_observe::CheckpointSummary;
use minds_stages::ledger::{GroupCounts, SettledPositions, count};
use minds_stages::trainer::SavedCheckpoint;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

/// File with one line per checkpoint.
pub const FILE: &str = "checkpoints.jsonl";

/// A checkpoint that a run can resume from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointRecord {
    /// Name of the checkpoint on the service.
    pub name: String,
    /// The next step, as tinker-cookbook counts batches.
    #[serde(deserialize_with = "count")]
    pub batch: u64,
    /// Optimizer steps done when it was saved.
    #[serde(deserialize_with = "count")]
    pub step: u64,
    /// Service path of weights and optimizer.
    pub state_path: String,
    /// Service path of the weights for sampling, if they were exported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampler_path: Option<String>,
    /// Positions of the schedule that are settled at this checkpoint.
    pub settled: SettledPositions,
    /// Number of groups of the whole run, by outcome.
    #[serde(default)]
    pub groups: GroupCounts,
    /// File of the groups that were ready and not yet trained, if one was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) spares: Option<SavedGroupsFile>,
    /// State that environments have learned, by their names in metrics.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub memories: BTreeMap<String, serde_json::Value>,
    /// Gradient norms of the latest optimizer steps, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gradient_norms: Vec<f64>,
}

impl CheckpointRecord {
    /// Record of a saved checkpoint; `before` counts the groups of earlier processes of the run.
    pub(super) fn new(
        saved: &SavedCheckpoint,
        before: &GroupCounts,
        spares: Option<SavedGroupsFile>,
    ) -> Self {
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
            gradient_norms: saved.gradient_norms.clone(),
        }
    }

    /// What is shown of the checkpoint.
    #[must_use]
    pub fn summary(&self) -> CheckpointSummary {
        CheckpointSummary {
            name: self.name.clone(),
            step: self.step,
            state_path: self.state_path.clone(),
            sampler_path: self.sampler_path.clone(),
            groups: self.groups,
        }
    }

    /// Parses and validates one line.
    fn parse(line: &str) -> anyhow::Result<Self> {
        let mut json = serde_json::Deserializer::from_str(line);
        let checkpoint: Self = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let key = error.path().to_string();
            let said = error.inner().to_string();
            // The caller adds the line number to the error.
            let said = said.rsplit_once(" at line ").map_or(&*said, |(said, _)| said);
            if key == "." { anyhow!("{said}") } else { anyhow!("`{key}`: {said}") }
        })?;
        json.end()?;
        let Self { step, groups, settled, .. } = &checkpoint;
        let settled = settled.count();
        let in_steps = groups.trained + groups.filtered;
        // Lines of older versions lack the outcomes of the groups.
        if groups.opened > 0 && settled > groups.opened {
            bail!("`settled`: {settled} positions are settled, and {} groups were opened", groups.opened);
        }
        if groups.opened > 0 && *step > in_steps {
            bail!("`step`: {step} steps are done, and {in_steps} groups were trained or filtered");
        }
        Ok(checkpoint)
    }
}

/// Reads all complete lines. A truncated last line is ignored; one that only lacks its newline, as an editor may leave
/// it, counts.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<CheckpointRecord>> {
    let text = super::text_of(path)?.unwrap_or_default();
    let whole = lines::whole(&text);
    // A truncated line is not JSON; JSON that is not a checkpoint is damaged like any other line.
    let last = Some(&text[whole.len()..]).filter(|last| serde_json::from_str::<IgnoredAny>(last).is_ok());
    whole
        .lines()
        .chain(last)
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(n, line)| {
            CheckpointRecord::parse(line)
                .with_context(|| format!("line {} of {} is damaged", n + 1, path.display()))
        })
        .collect()
}

pub(super) fn append(path: &Path, checkpoint: &CheckpointRecord) -> anyhow::Result<()> {
    // A truncated last line must not merge with this one.
    if fs::read(path).is_ok_and(|bytes| bytes.last().is_some_and(|last| *last != b'\n')) {
        write(path, &read(path)?)?;
    }
    let line = format!("{}\n", serde_json::to_string(checkpoint)?);
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(line.as_bytes())
        .and_then(|()| file.sync_all())
        .context("failed to write checkpoints.jsonl")
}

/// Rewrites the file with these checkpoints.
pub(super) fn write(path: &Path, all: &[CheckpointRecord]) -> anyhow::Result<()> {
    let lines: Vec<String> = all.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    super::write_whole(path, lines.iter().map(|line| format!("{line}\n")).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(step: u64) -> CheckpointRecord {
        let saved = SavedCheckpoint {
            name: format!("{step:06}"),
            step,
            state_path: format!("tinker://run/weights/{step:06}"),
            sampler_path: None,
            settled: SettledPositions::default(),
            saved_groups: Vec::new(),
            counts: GroupCounts::default(),
            memories: BTreeMap::from([("intuition".into(), step.into())]),
            gradient_norms: vec![1.5, 0.25],
        };
        CheckpointRecord::new(&saved, &GroupCounts::default(), None)
    }

    #[test]
    fn a_truncated_line_is_ignored_and_harms_no_other() {
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

    #[test]
    fn a_line_that_no_run_has_written_is_an_error_by_its_number_and_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let good = serde_json::to_string(&checkpoint(5)).unwrap();
        for (was, is, said) in [
            (
                r#""below":0"#,
                r#""below":18446744073709551615"#,
                "`settled.below`: 18446744073709551615 is more than",
            ),
            (r#""below":0"#, r#""below":-1"#, "`settled.below`: invalid value: integer `-1`"),
            (
                r#""also":[]"#,
                r#""also":[1,18446744073709551615]"#,
                "`settled.also[1]`: 18446744073709551615 is more",
            ),
            (r#""step":5"#, r#""step":1e19"#, "`step`: "),
            (
                r#""step":5"#,
                r#""step":18446744073709551615"#,
                "`step`: 18446744073709551615 is more than any",
            ),
            (
                r#""opened":0"#,
                r#""opened":18446744073709551615"#,
                "18446744073709551615 is more than any run counts",
            ),
            (r#""trained":0"#, r#""trained":7"#, "`groups`: 0 groups were opened, and 7 have left"),
            (r#""state_path":"#, r#""state":"#, "missing field `state_path`"),
        ] {
            assert!(good.contains(was), "{good}");
            // Whole, and as an editor may leave it.
            for end in ["\n", ""] {
                fs::write(&path, format!("{good}\n{}{end}", good.replace(was, is))).unwrap();
                let error = format!("{:#}", read(&path).unwrap_err());
                let place = format!("line 2 of {} is damaged: ", path.display());
                assert!(error.starts_with(&place) && error.contains(said), "{is}: {error}");
                assert!(!error.contains("at line 1"), "{error}");
            }
        }
    }

    /// A step has at least one group, and a position that is settled was opened.
    #[test]
    fn steps_and_positions_are_bounded_by_the_number_of_groups() {
        let said = |step: u64, below: u64, groups: [u64; 3]| {
            let [opened, trained, filtered] = groups;
            let groups = GroupCounts { opened, trained, filtered, ..GroupCounts::default() };
            let good = serde_json::to_string(&CheckpointRecord { groups, ..checkpoint(step) }).unwrap();
            let line = good.replace(r#""below":0"#, &format!(r#""below":{below}"#));
            CheckpointRecord::parse(&line).map_err(|error| error.to_string()).map(|read| read.step)
        };
        assert_eq!(said(5, 9, [10, 4, 1]), Ok(5));
        assert_eq!(said(1000, 1_000_000, [0, 0, 0]), Ok(1000), "of an older version, which did not tell");
        let error = said(5, 1_000_000, [10, 5, 0]).unwrap_err();
        assert_eq!(error, "`settled`: 1000000 positions are settled, and 10 groups were opened");
        let error = said(1000, 10, [10, 4, 1]).unwrap_err();
        assert_eq!(error, "`step`: 1000 steps are done, and 5 groups were trained or filtered");
    }
}
