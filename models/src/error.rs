//! What can go wrong with model files, by what the caller can do about it.
//!
//! Every message names the file and the key or tensor, says what is wrong with it, and what would be right.

use std::path::{Path, PathBuf};
use thiserror::Error;

/// A model that cannot be had or read.
#[derive(Debug, Error)]
pub enum ModelError {
    /// The operating system refused: look at the path, the permissions, the disk.
    #[error("failed to {action} {}: {source}", path.display())]
    Io {
        /// What was attempted, as a verb.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is no room: free some and run again, nothing finished is fetched twice.
    #[error("the disk of {} is full: free about {} MB and run again, finished files are kept", path.display(), needed / 1_000_000 + 1)]
    DiskFull {
        /// Where it should have been written.
        path: PathBuf,
        /// Roughly how many bytes the model takes.
        needed: u64,
    },
    /// The file is damaged or not what it claims to be: fetch it again.
    #[error("{} is damaged: {reason}; remove it and fetch the model again", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },
    /// The file is sound but asks for something that is not built.
    #[error("{} cannot be used: {reason}", path.display())]
    Unsupported {
        /// Which file.
        path: PathBuf,
        /// What is not supported, and what is.
        reason: String,
    },
    /// A file that the model needs is not there.
    #[error("{} is missing: {hint}", path.display())]
    Missing {
        /// Which file or folder.
        path: PathBuf,
        /// What it is for, or how to get it.
        hint: String,
    },
    /// The model has no tensor of this name.
    #[error("{} has no tensor `{name}`", path.display())]
    NoTensor {
        /// Which file or folder.
        path: PathBuf,
        /// The Hugging Face name that was asked for.
        name: String,
    },
    /// The name is neither a path nor a model name.
    #[error("`{name}` is not a model: {hint}")]
    UnknownName {
        /// What was asked for.
        name: String,
        /// What would be understood.
        hint: String,
    },
    /// Nothing that was tried delivered the model.
    #[error("failed to fetch `{name}`:{}\nwhat helps: {advice}", attempts.iter().map(ToString::to_string).collect::<String>())]
    Fetch {
        /// Which model.
        name: String,
        /// Each way that was tried, in order.
        attempts: Vec<FetchAttempt>,
        /// What to do.
        advice: String,
    },
}

/// One way to get a model, and why it failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("\n  {way}: {reason}")]
pub struct FetchAttempt {
    /// What was tried.
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
