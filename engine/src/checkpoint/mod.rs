//! Adapters on disk: saved completely or not at all, and checked when they are loaded.
//!
//! A checkpoint is a folder in PEFT's format (`adapter_config.json`, `adapter_model.safetensors`), with
//! `optimizer.safetensors` beside it if training can resume from it. It is written under another name, synced and
//! renamed, so a name either has all of its files or does not exist. Reading checks names, shapes, types and
//! values, and that the base model is the one the adapter was trained on.

mod adapter;
mod base_model;
mod notes;
mod optimizer;
mod store;
mod tensors;

pub use adapter::{read_adapter, read_spec, write_adapter};
pub use base_model::BaseModelIdentity;
pub use notes::{read_notes, write_notes};
pub use optimizer::{has_optimizer, read_optimizer, write_optimizer};
pub use store::CheckpointStore;

use minds_core::checkpoint::CheckpointAddressError;
use minds_core::service::BackendError;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error as ThisError;

/// Why weights were not saved or loaded.
#[derive(Debug, ThisError)]
pub enum CheckpointError {
    /// No checkpoint can have this name or address: choose another.
    #[error(transparent)]
    Address(#[from] CheckpointAddressError),
    /// The name is taken: choose another.
    #[error("the name is taken: `{0}` exists, choose another")]
    Taken(String),
    /// Nothing was saved there.
    #[error("no weights are saved at `{0}`")]
    Missing(String),
    /// The disk failed: free space or repair it, then try again.
    #[error("failed to {doing} `{file}`")]
    Io {
        /// Operation that failed, as a verb phrase.
        doing: &'static str,
        /// File or folder of the operation.
        file: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file is damaged or of another kind: use another checkpoint.
    #[error("`{file}` is damaged or foreign: {why}")]
    File {
        /// Path of the rejected file.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A tensor is invalid: use another checkpoint.
    #[error("the tensor `{tensor}` of `{file}` {why}")]
    Tensor {
        /// Name of the rejected tensor.
        tensor: String,
        /// Path of the file with the tensor.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl CheckpointError {
    pub(crate) fn io(doing: &'static str, file: &Path) -> impl FnOnce(io::Error) -> Self {
        let file = file.to_owned();
        move |source| Self::Io { doing, file, source }
    }

    pub(crate) fn file(file: &Path, why: impl Into<String>) -> Self {
        Self::File { file: file.to_owned(), why: why.into() }
    }

    pub(crate) fn tensor(file: &Path, tensor: &str, why: impl Into<String>) -> Self {
        Self::Tensor { tensor: tensor.into(), file: file.to_owned(), why: why.into() }
    }
}

impl From<CheckpointError> for BackendError {
    fn from(error: CheckpointError) -> Self {
        match error.source() {
            Some(source) => Self::Unavailable(format!("{error}: {source}")),
            None => Self::Rejected(error.to_string()),
        }
    }
}
