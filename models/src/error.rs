//! Errors of model files, grouped by what the caller can do about them.
//!
//! Every message names the file and the key or tensor, says what is wrong with it, and what would be right.

use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a model cannot be found, fetched or read.
#[derive(Debug, Error)]
pub enum ModelError {
    /// The operating system refused: look at the path, the permissions, the disk.
    #[error("failed to {action} {}: {source}", path.display())]
    Io {
        /// What was attempted, as a verb.
        action: &'static str,
        /// Path that the action was attempted on.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The disk is full: free some space and run again. Finished files are not fetched again.
    #[error("the disk of {} is full: free about {} MB and run again, finished files are kept", path.display(), needed / 1_000_000 + 1)]
    DiskFull {
        /// Path that was being written.
        path: PathBuf,
        /// Roughly how many bytes the model takes.
        needed: u64,
    },
    /// The file is damaged or not what it claims to be: fetch it again.
    #[error("{} is damaged: {reason}; remove it and fetch the model again", path.display())]
    Damaged {
        /// Path of the file or folder that has the problem.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },
    /// The file is valid but needs something that is not implemented.
    #[error("{} cannot be used: {reason}", path.display())]
    Unsupported {
        /// Path of the file or folder that has the problem.
        path: PathBuf,
        /// What is not supported, and what is.
        reason: String,
    },
    /// A file that the model needs is not there.
    #[error("{} is missing: {hint}", path.display())]
    Missing {
        /// Path of the file or folder.
        path: PathBuf,
        /// What it is for, or how to get it.
        hint: String,
    },
    /// The model has no tensor of this name.
    #[error("{} has no tensor `{name}`", path.display())]
    NoTensor {
        /// Path of the file or folder.
        path: PathBuf,
        /// Requested name, in the naming of Hugging Face.
        name: String,
    },
    /// The name is neither a path nor a model name.
    #[error("`{name}` is not a model: {hint}")]
    UnknownName {
        /// The string that was given as a name.
        name: String,
        /// Forms and names that are accepted.
        hint: String,
    },
    /// No source delivered the model.
    #[error("failed to fetch `{name}`:{}\nwhat helps: {advice}", attempts.iter().map(ToString::to_string).collect::<String>())]
    Fetch {
        /// Name of the model on the hub, `owner/name`.
        name: String,
        /// Each source that was tried, in order.
        attempts: Vec<FetchAttempt>,
        /// Remedies for the failed attempts, and alternatives to them.
        advice: String,
    },
}

/// One attempt to fetch a model, and why it failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("\n  {way}: {reason}")]
pub struct FetchAttempt {
    /// Source that was tried, for example `the hub`.
    pub way: String,
    /// Why it did not work.
    pub reason: String,
    /// What would make it work.
    pub advice: String,
}

impl ModelError {
    pub(crate) fn io(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }

    pub(crate) fn damaged(path: &Path, reason: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), reason: reason.into() }
    }

    pub(crate) fn unsupported(path: &Path, reason: impl Into<String>) -> Self {
        Self::Unsupported { path: path.to_owned(), reason: reason.into() }
    }

    pub(crate) fn missing(path: &Path, hint: impl Into<String>) -> Self {
        Self::Missing { path: path.to_owned(), hint: hint.into() }
    }
}
