//! Checkpoints as a service names and lists them: address, purpose, notes. No run or name can lead out of a folder.

use crate::service::BackendError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;
use thiserror::Error;

/// Why a text does not name a checkpoint.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CheckpointAddressError {
    /// The name could be mistaken for a path: choose another.
    #[error(
        "`{0}` cannot be a name: use 1 to 128 of A-Z, a-z, 0-9, `.`, `_` and `-`, no `..` and no dot at the beginning"
    )]
    Name(String),
    /// The text is not an address of weights.
    #[error(
        "`{0}` is not a path of weights: use tinker://<run>/weights/<name> or tinker://<run>/sampler_weights/<name>"
    )]
    Path(String),
}

impl From<CheckpointAddressError> for BackendError {
    fn from(error: CheckpointAddressError) -> Self {
        Self::Rejected(error.to_string())
    }
}

/// What a checkpoint is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointPurpose {
    /// To train on: weights and optimizer.
    Training,
    /// To sample from: weights only.
    Sampler,
}

impl CheckpointPurpose {
    /// The part of an address between run and name.
    #[must_use]
    pub fn folder(self) -> &'static str {
        match self {
            Self::Training => "weights",
            Self::Sampler => "sampler_weights",
        }
    }
}

/// The address of a checkpoint, written `tinker://<run>/weights/<name>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointAddress {
    run: String,
    kind: CheckpointPurpose,
    name: String,
}

impl CheckpointAddress {
    /// A checked address.
    ///
    /// # Errors
    /// A run or a name that could be mistaken for a path.
    pub fn new(run: &str, kind: CheckpointPurpose, name: &str) -> Result<Self, CheckpointAddressError> {
        check_run(run)?;
        check_name(name)?;
        Ok(Self { run: run.into(), kind, name: name.into() })
    }

    /// Name of the run that saved the checkpoint.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.run
    }

    /// What the checkpoint is for.
    #[must_use]
    pub fn kind(&self) -> CheckpointPurpose {
        self.kind
    }

    /// The name under which it was saved.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The part after the run, `weights/<name>`.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}/{}", self.kind.folder(), self.name)
    }
}

impl fmt::Display for CheckpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tinker://{}/{}/{}", self.run, self.kind.folder(), self.name)
    }
}

impl FromStr for CheckpointAddress {
    type Err = CheckpointAddressError;

    fn from_str(path: &str) -> Result<Self, CheckpointAddressError> {
        let wrong = || CheckpointAddressError::Path(path.into());
        let rest = path.strip_prefix("tinker://").ok_or_else(wrong)?;
        let parts: Vec<&str> = rest.split('/').collect();
        let [run, kind, name] = parts[..] else { return Err(wrong()) };
        let kind = [CheckpointPurpose::Training, CheckpointPurpose::Sampler]
            .into_iter()
            .find(|k| k.folder() == kind)
            .ok_or_else(wrong)?;
        Self::new(run, kind, name).map_err(|_| wrong())
    }
}

/// Refuses names that a file system could take for something else.
///
/// # Errors
/// [`CheckpointAddressError::Name`].
pub fn check_name(name: &str) -> Result<(), CheckpointAddressError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let good = (1..=128).contains(&name.len())
        && name.chars().all(allowed)
        && !name.starts_with('.')
        && !name.contains("..");
    if good { Ok(()) } else { Err(CheckpointAddressError::Name(name.into())) }
}

/// Refuses runs that a file system could take for something else. Servers name runs `<session>:train:<n>`, so a
/// colon may stand between plain parts.
///
/// # Errors
/// [`CheckpointAddressError::Name`].
pub fn check_run(run: &str) -> Result<(), CheckpointAddressError> {
    match run.len() <= 128 && run.split(':').all(|part| check_name(part).is_ok()) {
        true => Ok(()),
        false => Err(CheckpointAddressError::Name(run.into())),
    }
}

/// Notes of a checkpoint's owner. They may change, the weights do not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointNotes {
    /// When it may be deleted, in seconds since 1970; never if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// JSON object of the user, stored as given; `None` if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Map<String, Value>>,
}

/// What a service lists of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredCheckpoint {
    /// Address of the checkpoint.
    pub address: CheckpointAddress,
    /// When it was saved.
    pub saved: SystemTime,
    /// Total size of its files, in bytes.
    pub bytes: u64,
    /// Notes of its owner; empty if they cannot be read.
    pub notes: CheckpointNotes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["a", "step-0001", "v1.2_final", "x".repeat(128).as_str()] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", ".a", "a..b", "a/b", "a\\b", "a b", "ä", "a\0", "x".repeat(129).as_str()]
        {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn paths_read_as_they_are_written() {
        for path in ["tinker://run-1/weights/a", "tinker://s:train:0/sampler_weights/b.2"] {
            assert_eq!(path.parse::<CheckpointAddress>().unwrap().to_string(), path);
        }
        for bad in [
            "run-1/weights/a",
            "tinker://run-1/a",
            "tinker://run-1/weights/a/b",
            "tinker://run-1/external_weights/a",
            "tinker://../weights/a",
            "tinker://run-1/weights/..",
            "tinker:///weights/a",
            "tinker://:/weights/",
            "tinker://a::b/weights/a",
            "tinker://a:../weights/a",
            "tinker://a%2Fb/weights/a",
        ] {
            assert!(
                matches!(bad.parse::<CheckpointAddress>(), Err(CheckpointAddressError::Path(_))),
                "{bad}"
            );
        }
    }
}
