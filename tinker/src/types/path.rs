//! Addresses of saved weights: `tinker://{training run}/{kind}/{name}`.

use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Maximum length of an address in bytes.
const LONGEST: usize = 1024;

/// Purpose of saved weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckpointKind {
    /// Weights and optimizer, to resume training.
    Training,
    /// Weights to sample from.
    Sampler,
    /// Weights to download from the server.
    External,
}

impl CheckpointKind {
    /// Name of the kind in an address.
    #[must_use]
    pub fn segment(self) -> &'static str {
        match self {
            Self::Training => "weights",
            Self::Sampler => "sampler_weights",
            Self::External => "external_weights",
        }
    }

    /// Name of the kind as a `checkpoint_type`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Sampler => "sampler",
            Self::External => "external",
        }
    }
}

/// A parsed address of saved weights.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CheckpointPath {
    /// Training run whose model was saved.
    pub run: String,
    /// Kind of the weights. Some servers omit it for sampler weights.
    pub kind: Option<CheckpointKind>,
    /// Name that the weights were saved under.
    pub name: String,
}

/// The text is not an address of saved weights.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not an address of saved weights: use tinker://RUN/weights/NAME")]
pub struct PathError(pub String);

impl CheckpointPath {
    /// Kind and name, as REST addresses contain them.
    #[must_use]
    pub fn checkpoint_id(&self) -> String {
        match self.kind {
            Some(kind) => format!("{}/{}", kind.segment(), self.name),
            None => self.name.clone(),
        }
    }
}

impl FromStr for CheckpointPath {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        let wrong = || PathError(text.into());
        let parts: Vec<&str> = text.strip_prefix("tinker://").ok_or_else(wrong)?.split('/').collect();
        // These characters are reserved in URLs or invalid in a name.
        let foreign = |c: char| c.is_control() || c.is_whitespace() || "?#%\\\"<>".contains(c);
        let bad = |part: &str| part.is_empty() || matches!(part, "." | "..") || part.contains(foreign);
        if text.len() > LONGEST || parts.iter().any(|part| bad(part)) {
            return Err(wrong());
        }
        let (run, kind, name) = match parts[..] {
            [run, "weights", name] => (run, Some(CheckpointKind::Training), name),
            [run, "sampler_weights", name] => (run, Some(CheckpointKind::Sampler), name),
            [run, "external_weights", name] => (run, Some(CheckpointKind::External), name),
            [run, name] => (run, None, name),
            _ => return Err(wrong()),
        };
        Ok(Self { run: run.into(), kind, name: name.into() })
    }
}

impl fmt::Display for CheckpointPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tinker://{}/{}", self.run, self.checkpoint_id())
    }
}
