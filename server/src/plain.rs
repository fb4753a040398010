//! Any service behind the server, by the traits of every backend alone.
//!
//! The service chooses the names of runs. Its checkpoints can be saved, loaded, sampled and deleted by their paths, but
//! not listed, and they carry no notes.

use async_trait::async_trait;
use minds_core::checkpoint::{CheckpointAddress, CheckpointNotes, StoredCheckpoint};
use minds_core::datum::Datum;
use minds_core::hosting::{HostedService, HostedTraining};
use minds_core::ids::PolicyVersion;
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::service::{
    BackendError, Export, ForwardOutput, OptimStep, Pending, SamplingBackend, Service, ServiceInfo,
    TrainingBackend,
};
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

/// A service that keeps no list of its checkpoints.
pub struct PlainService(Arc<dyn Service>);

impl PlainService {
    /// Puts a service behind the server as it is.
    #[must_use]
    pub fn new(service: Arc<dyn Service>) -> Self {
        Self(service)
    }
}

fn unsupported<T>(what: &str) -> Result<T, BackendError> {
    Err(BackendError::Unsupported(format!("the service behind this server {what}")))
}

#[async_trait]
impl Service for PlainService {
    fn info(&self) -> ServiceInfo {
        self.0.info()
    }

    async fn create_training(&self, spec: LoraSpec) -> Result<Arc<dyn TrainingBackend>, BackendError> {
        self.0.create_training(spec).await
    }

    async fn base_sampler(&self) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        self.0.base_sampler().await
    }

    async fn sampler_from(&self, path: &str) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        self.0.sampler_from(path).await
    }

    async fn delete(&self, path: &str) -> Result<(), BackendError> {
        self.0.delete(path).await
    }

    async fn expire(&self, path: &str, after: Duration) -> Result<(), BackendError> {
        self.0.expire(path, after).await
    }
}

#[async_trait]
impl HostedService for PlainService {
    fn training_bytes(&self, _: &LoraSpec) -> usize {
        0
    }

    async fn create_run(&self, _: &str, spec: LoraSpec) -> Result<Arc<dyn HostedTraining>, BackendError> {
        Ok(Arc::new(PlainTraining(self.0.create_training(spec).await?)))
    }

    async fn resume_run(
        &self,
        _: &str,
        _: &CheckpointAddress,
        _: bool,
    ) -> Result<Arc<dyn HostedTraining>, BackendError> {
        unsupported("does not tell the spec of saved weights: create a model, then load them into it")
    }

    async fn checkpoints(&self, _: Option<&str>) -> Result<Vec<StoredCheckpoint>, BackendError> {
        unsupported("does not list its checkpoints")
    }

    /// Opens the checkpoint, because there is no other way to know.
    async fn has_checkpoint(&self, address: &CheckpointAddress) -> Result<bool, BackendError> {
        match self.0.sampler_from(&address.to_string()).await {
            Ok(_) => Ok(true),
            Err(BackendError::Rejected(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn checkpoint_spec(&self, _: &CheckpointAddress) -> Result<Option<LoraSpec>, BackendError> {
        unsupported("does not tell the spec of saved weights: create a model, then load them into it")
    }

    async fn set_expiry(&self, _: &CheckpointAddress, _: Option<u64>) -> Result<bool, BackendError> {
        unsupported("does not change when checkpoints expire")
    }

    async fn remove_checkpoint(
        &self,
        address: &CheckpointAddress,
        expired_by: Option<u64>,
    ) -> Result<bool, BackendError> {
        // Without notes, nothing expires.
        if expired_by.is_some() {
            return Ok(false);
        }
        self.0.delete(&address.to_string()).await.map(|()| true)
    }
}

/// An adapter of any service; it saves without notes and overwrites nothing.
struct PlainTraining(Arc<dyn TrainingBackend>);

impl HostedTraining for PlainTraining {
    fn save_state_with(&self, name: &str, overwrite: bool, notes: CheckpointNotes) -> Pending<String> {
        if overwrite {
            return Box::pin(ready(unsupported("does not overwrite checkpoints")));
        }
        match check_notes(&notes) {
            Ok(()) => self.0.save_state(name),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }

    fn save_sampler_with(&self, name: &str, notes: CheckpointNotes) -> Pending<Export> {
        match check_notes(&notes) {
            Ok(()) => self.0.export_sampler(Some(name)),
            Err(error) => Box::pin(ready(Err(error))),
        }
    }
}

/// Refuses notes instead of losing them.
fn check_notes(notes: &CheckpointNotes) -> Result<(), BackendError> {
    match *notes == CheckpointNotes::default() {
        true => Ok(()),
        false => unsupported("keeps neither ttl_seconds nor user_metadata with checkpoints"),
    }
}

impl TrainingBackend for PlainTraining {
    fn forward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        self.0.forward(data, loss)
    }

    fn forward_backward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        self.0.forward_backward(data, loss)
    }

    fn optim_step(&self, params: AdamParams) -> Pending<OptimStep> {
        self.0.optim_step(params)
    }

    fn save_state(&self, name: &str) -> Pending<String> {
        self.0.save_state(name)
    }

    fn load_state(&self, path: &str, with_optimizer: bool) -> Pending<()> {
        self.0.load_state(path, with_optimizer)
    }

    fn export_sampler(&self, name: Option<&str>) -> Pending<Export> {
        self.0.export_sampler(name)
    }

    fn publish_in_flight(&self, version: PolicyVersion) -> Pending<Arc<dyn SamplingBackend>> {
        self.0.publish_in_flight(version)
    }

    fn release(&self) -> Pending<()> {
        self.0.release()
    }
}
