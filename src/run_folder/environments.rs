//! `environments.json`: fingerprints of the environments at the time of the last checkpoint.
//!
//! The settled positions of a checkpoint say nothing about the rows at these positions. Rows, prompts or rewards that
//! have changed under the same config are reported when the run is resumed; it continues, since the change may be
//! intended.

use super::{text_of, write_whole};
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// File with a fingerprint per environment, by name in metrics.
pub const FILE: &str = "environments.json";

/// Fingerprint of the data and the code of an environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentFingerprint {
    /// Number of rows in one cycle.
    pub rows: u64,
    /// Digest of a sample of rows, spread over all: prompts, answers, and the data that rewards read.
    pub data: String,
    /// Digest of the files of a Python package that has a folder; for a native environment, the program's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

/// Fingerprints of all environments of a run, by name.
pub type EnvironmentFingerprints = BTreeMap<String, EnvironmentFingerprint>;

/// Reads the fingerprints of the last checkpoint, if there are any.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(folder: &Path) -> anyhow::Result<Option<EnvironmentFingerprints>> {
    let path = folder.join(FILE);
    let Some(text) = text_of(&path)? else { return Ok(None) };
    let read = serde_json::from_str(&text);
    read.map(Some).with_context(|| format!("{} is damaged: remove it to resume without it", path.display()))
}

pub(super) fn write(folder: &Path, all: &EnvironmentFingerprints) -> anyhow::Result<()> {
    write_whole(&folder.join(FILE), serde_json::to_string_pretty(all)?)
}

/// Describes each environment that has changed, one line each.
pub(super) fn changes(then: &EnvironmentFingerprints, now: &EnvironmentFingerprints) -> Vec<String> {
    then.iter()
        .filter_map(|(name, then)| Some((name, then, now.get(name)?)))
        .filter_map(|(name, then, now)| {
            let mut said = Vec::new();
            if then.rows != now.rows {
                said.push(format!("{} rows then, {} now", then.rows, now.rows));
            } else if then.data != now.data {
                said.push("its rows have changed".to_owned());
            }
            if let (Some(then), Some(now)) = (&then.code, &now.code)
                && then != now
            {
                said.push("its code has changed".to_owned());
            }
            (!said.is_empty()).then(|| {
                format!("environment `{name}` is not what it was at the last checkpoint: {}", said.join(", "))
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file::ConfigFile;
    use crate::run_folder::{ResumeTerms, RunFolder};
    use futures::FutureExt as _;
    use minds_stages::ledger::{GroupCounts, SettledPositions};
    use minds_stages::trainer::SavedCheckpoint;

    fn fingerprint(rows: u64, data: &str, code: Option<&str>) -> EnvironmentFingerprint {
        EnvironmentFingerprint { rows, data: data.into(), code: code.map(Into::into) }
    }

    #[test]
    fn every_change_names_its_environment() {
        let then = EnvironmentFingerprints::from([
            ("same".into(), fingerprint(5, "d", Some("c"))),
            ("shorter".into(), fingerprint(5, "d", Some("c"))),
            ("other".into(), fingerprint(5, "d", Some("c"))),
            ("unknown".into(), fingerprint(5, "d", None)),
            ("gone".into(), fingerprint(5, "d", None)),
        ]);
        let now = EnvironmentFingerprints::from([
            ("same".into(), fingerprint(5, "d", Some("c"))),
            ("shorter".into(), fingerprint(4, "e", Some("c"))),
            ("other".into(), fingerprint(5, "e", Some("f"))),
            ("unknown".into(), fingerprint(5, "d", Some("c"))),
        ]);
        let was = "is not what it was at the last checkpoint";
        let expected = [
            format!("environment `other` {was}: its rows have changed, its code has changed"),
            format!("environment `shorter` {was}: 5 rows then, 4 now"),
        ];
        assert_eq!(changes(&then, &now), expected);
    }

    #[test]
    fn what_was_written_is_read_and_what_is_damaged_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        let all = EnvironmentFingerprints::from([("a".into(), fingerprint(5, "d", None))]);
        write(dir.path(), &all).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(all));
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("environments.json is damaged"));
    }

    #[test]
    fn a_change_is_reported_at_every_resume_until_the_next_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let life = |data: &str, step: Option<u64>| {
            let mut folder =
                RunFolder::open(dir.path(), &ConfigFile::default(), ResumeTerms::SameConfig).unwrap();
            let now = EnvironmentFingerprints::from([("task".into(), fingerprint(5, data, None))]);
            let changes = folder.compare(now).unwrap();
            if let Some(step) = step {
                let saved = SavedCheckpoint {
                    name: format!("{step:06}"),
                    step,
                    state_path: "tinker://run/weights/a".into(),
                    sampler_path: None,
                    settled: SettledPositions::default(),
                    saved_groups: Vec::new(),
                    counts: GroupCounts::default(),
                    memories: BTreeMap::new(),
                    gradient_norms: Vec::new(),
                };
                let kept =
                    folder.add_checkpoint(&saved).now_or_never().expect("no rollouts are being written");
                kept.unwrap();
            }
            changes.len()
        };
        assert_eq!(life("old", None), 0);
        assert_eq!(life("new", None), 0, "nothing was trained yet");
        assert_eq!(life("new", Some(1)), 0);
        assert_eq!(life("newer", None), 1);
        assert_eq!(life("newer", Some(2)), 1, "the checkpoint is still that of the old rows");
        assert_eq!(life("newer", None), 0);
        assert_eq!(life("new", None), 1);
    }
}
