//! The service behind a server: runs with given names, and saved weights with their notes.

use crate::saved::SavedWeights;
use crate::service::SimulatedService;
use crate::state::SimulationState;
use crate::training::SimulatedTraining;
use async_trait::async_trait;
use minds_core::checkpoint::{CheckpointAddress, CheckpointNotes, StoredCheckpoint};
use minds_core::hosting::{HostedService, HostedTraining};
use minds_core::lora::LoraSpec;
use minds_core::service::{BackendError, Export, Pending};
use std::sync::Arc;

impl SimulationState {
    /// Changes saved weights if they exist. Returns whether they do.
    fn change_saved(&self, address: &CheckpointAddress, change: impl FnOnce(&mut SavedWeights)) -> bool {
        self.saved().get_mut(&address.to_string()).map(change).is_some()
    }
}

#[async_trait]
impl HostedService for SimulatedService {
    fn training_bytes(&self, _: &LoraSpec) -> usize {
        0
    }

    async fn create_run(&self, run: &str, spec: LoraSpec) -> Result<Arc<dyn HostedTraining>, BackendError> {
        spec.check().map_err(|error| BackendError::Rejected(error.to_string()))?;
        Ok(Arc::new(SimulatedTraining::start(self.0.clone(), Some(run), spec, 0)))
    }

    async fn resume_run(
        &self,
        run: &str,
        from: &CheckpointAddress,
        _with_optimizer: bool,
    ) -> Result<Arc<dyn HostedTraining>, BackendError> {
        let SavedWeights { steps, spec, .. } = self.0.find(&from.to_string())?;
        Ok(Arc::new(SimulatedTraining::start(self.0.clone(), Some(run), spec, steps)))
    }

    async fn checkpoints(&self, run: Option<&str>) -> Result<Vec<StoredCheckpoint>, BackendError> {
        let stored = |(path, weights): (&String, &SavedWeights)| StoredCheckpoint {
            address: path.parse().expect("weights are saved under addresses"),
            saved: weights.saved,
            bytes: 0,
            notes: weights.notes.clone(),
        };
        let mut all: Vec<StoredCheckpoint> = self.0.saved().iter().map(stored).collect();
        all.retain(|checkpoint| run.is_none_or(|run| checkpoint.address.run() == run));
        all.sort_by_key(|checkpoint| checkpoint.saved);
        Ok(all)
    }

    async fn has_checkpoint(&self, address: &CheckpointAddress) -> Result<bool, BackendError> {
        Ok(self.0.saved().contains_key(&address.to_string()))
    }

    async fn checkpoint_spec(&self, address: &CheckpointAddress) -> Result<Option<LoraSpec>, BackendError> {
        Ok(self.0.saved().get(&address.to_string()).map(|weights| weights.spec.clone()))
    }

    async fn set_expiry(
        &self,
        address: &CheckpointAddress,
        expires: Option<u64>,
    ) -> Result<bool, BackendError> {
        Ok(self.0.change_saved(address, |weights| weights.notes.expires = expires))
    }

    async fn remove_checkpoint(
        &self,
        address: &CheckpointAddress,
        expired_by: Option<u64>,
    ) -> Result<bool, BackendError> {
        let path = address.to_string();
        let mut saved = self.0.saved();
        let goes = saved.get(&path).is_some_and(|weights| match (expired_by, weights.notes.expires) {
            (None, _) => true,
            (Some(by), Some(expires)) => expires <= by,
            (Some(_), None) => false,
        });
        Ok(goes && saved.remove(&path).is_some())
    }
}

impl HostedTraining for SimulatedTraining {
    fn save_state_with(&self, name: &str, overwrite: bool, notes: CheckpointNotes) -> Pending<String> {
        self.save(name, overwrite, notes)
    }

    fn save_sampler_with(&self, name: &str, notes: CheckpointNotes) -> Pending<Export> {
        self.export(Some(name), notes)
    }
}
