//! The addresses of checkpoints. No run or name can lead out of the folder of the store.

use super::CheckpointError;
use std::fmt;
use std::str::FromStr;

/// What a checkpoint is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointPurpose {
    /// To train on: weights and optimizer.
    Training,
    /// To sample from: weights only.
    Sampler,
}

impl CheckpointPurpose {
    pub(super) fn folder(self) -> &'static str {
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
    pub fn new(run: &str, kind: CheckpointPurpose, name: &str) -> Result<Self, CheckpointError> {
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
    type Err = CheckpointError;

    fn from_str(path: &str) -> Result<Self, CheckpointError> {
        let wrong = || CheckpointError::Path(path.into());
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
/// [`CheckpointError::Name`].
pub fn check_name(name: &str) -> Result<(), CheckpointError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let good = (1..=128).contains(&name.len())
        && name.chars().all(allowed)
        && !name.starts_with('.')
        && !name.contains("..");
    if good { Ok(()) } else { Err(CheckpointError::Name(name.into())) }
}

/// Refuses runs that a file system could take for something else. Servers name runs `<session>:train:<n>`, so a
/// colon may stand between plain parts.
pub(super) fn check_run(run: &str) -> Result<(), CheckpointError> {
    match run.len() <= 128 && run.split(':').all(|part| check_name(part).is_ok()) {
        true => Ok(()),
        false => Err(CheckpointError::Name(run.into())),
    }
}

/// The folder name of a run. Not every file system takes a colon; names have no `%`, so no two runs meet.
pub(super) fn folder_of(run: &str) -> String {
    run.replace(':', "%3A")
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
            assert!(matches!(bad.parse::<CheckpointAddress>(), Err(CheckpointError::Path(_))), "{bad}");
        }
    }
}
