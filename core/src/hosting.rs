//! What a server asks of the service behind it, beyond what a pipeline asks of [`Service`].
//!
//! A server has many clients. So it chooses the names of runs itself, counts the memory that adapters take, and shows
//! and deletes the checkpoints of all its clients, including those of earlier processes.

use crate::checkpoint::{CheckpointAddress, CheckpointNotes, StoredCheckpoint};
use crate::lora::LoraSpec;
use crate::service::{BackendError, Export, Pending, Service, TrainingBackend};
use async_trait::async_trait;
use std::sync::Arc;

/// A service that a server can offer to many clients.
#[async_trait]
pub trait HostedService: Service {
    /// Memory in bytes that an adapter takes while it is trained: weights, gradients and optimizer moments. 0 if it
    /// takes none in this process.
    fn training_bytes(&self, spec: &LoraSpec) -> usize;

    /// A new adapter that saves its weights under `run`.
    async fn create_run(&self, run: &str, spec: LoraSpec) -> Result<Arc<dyn HostedTraining>, BackendError>;

    /// A new adapter that saves its weights under `run` and starts from a checkpoint, with its spec; without the
    /// optimizer of the checkpoint, the optimizer starts afresh.
    async fn resume_run(
        &self,
        run: &str,
        from: &CheckpointAddress,
        with_optimizer: bool,
    ) -> Result<Arc<dyn HostedTraining>, BackendError>;

    /// The checkpoints of a run, or of all runs. Those of one run are ordered from oldest to newest. Empty if the run
    /// has saved none.
    async fn checkpoints(&self, run: Option<&str>) -> Result<Vec<StoredCheckpoint>, BackendError>;

    /// Whether a checkpoint exists. Its files may still turn out to be damaged.
    async fn has_checkpoint(&self, address: &CheckpointAddress) -> Result<bool, BackendError>;

    /// The spec of the adapter in a checkpoint; `None` if there is no such checkpoint.
    async fn checkpoint_spec(&self, address: &CheckpointAddress) -> Result<Option<LoraSpec>, BackendError>;

    /// Sets when a checkpoint expires, in seconds since 1970, or that it never does. Returns whether it exists.
    async fn set_expiry(
        &self,
        address: &CheckpointAddress,
        expires: Option<u64>,
    ) -> Result<bool, BackendError>;

    /// Deletes a checkpoint, with `expired_by` only if it expires by then. Returns whether it was deleted; `false`
    /// also if it does not exist.
    async fn remove_checkpoint(
        &self,
        address: &CheckpointAddress,
        expired_by: Option<u64>,
    ) -> Result<bool, BackendError>;
}

/// An adapter in training whose checkpoints carry notes.
pub trait HostedTraining: TrainingBackend {
    /// [`TrainingBackend::save_state`] with notes; `overwrite` replaces a checkpoint of this name.
    fn save_state_with(&self, name: &str, overwrite: bool, notes: CheckpointNotes) -> Pending<String>;

    /// [`TrainingBackend::export_sampler`] under a name, with notes.
    fn save_sampler_with(&self, name: &str, notes: CheckpointNotes) -> Pending<Export>;
}
