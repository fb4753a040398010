//! `broker.json`: the identity of a run on the broker, with which a resumed run finds the results of its jobs.

use super::{text_of, write_whole};
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use std::path::Path;

const FILE: &str = "broker.json";

/// Name and salt of a run on the broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerIdentity {
    /// Name of the run; one token of a subject.
    pub run: String,
    /// Secret part of job ids, which makes them impossible to guess.
    pub salt: String,
}

/// Returns the identity in the folder. If there is none, creates one with `make` and saves it.
///
/// # Errors
/// The file is damaged, or cannot be read or written.
pub(super) fn open(folder: &Path, make: impl FnOnce() -> BrokerIdentity) -> anyhow::Result<BrokerIdentity> {
    let path = folder.join(FILE);
    if let Some(text) = text_of(&path)? {
        let read = serde_json::from_str(&text);
        return read.with_context(|| {
            format!("{} is damaged: remove it to get a new identity on the broker", path.display())
        });
    }
    let made = make();
    write_whole(&path, serde_json::to_string_pretty(&made)?)?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_keeps_its_identity_and_a_damaged_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let made = |run: &str| BrokerIdentity { run: run.into(), salt: "s".into() };
        assert_eq!(open(dir.path(), || made("a")).unwrap(), made("a"));
        assert_eq!(open(dir.path(), || made("b")).unwrap(), made("a"));
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        let told = open(dir.path(), || made("c")).unwrap_err().to_string();
        assert!(told.contains("broker.json is damaged"), "{told}");
    }
}
