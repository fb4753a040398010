//! The engine behind a server: runs with given names, and the checkpoints of all runs in its folder.

use super::{EmbeddedService, EmbeddedTraining};
use crate::adapter;
use crate::checkpoint::{CheckpointError, CheckpointStore, read_notes, read_spec, write_notes};
use crate::train::LogprobRows;
use async_trait::async_trait;
use minds_core::checkpoint::{CheckpointAddress, CheckpointNotes, CheckpointPurpose, StoredCheckpoint};
use minds_core::hosting::{HostedService, HostedTraining};
use minds_core::lora::LoraSpec;
use minds_core::service::{BackendError, Export, Pending};
use std::path::Path;
use std::sync::Arc;

impl EmbeddedService {
    /// Runs `work` on a blocking thread of the caller's runtime, because it accesses the disk.
    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&CheckpointStore) -> Result<T, CheckpointError> + Send + 'static,
    ) -> Result<T, BackendError> {
        let store = self.adapter_store.store()?.clone();
        match tokio::task::spawn_blocking(move || work(&store)).await {
            Ok(done) => Ok(done?),
            Err(_) => Err(BackendError::Lost("internal error during disk access".into())),
        }
    }
}

#[async_trait]
impl HostedService for EmbeddedService {
    fn training_bytes(&self, spec: &LoraSpec) -> usize {
        adapter::training_bytes(self.engine.model().architecture(), spec)
    }

    async fn create_run(&self, run: &str, spec: LoraSpec) -> Result<Arc<dyn HostedTraining>, BackendError> {
        Ok(Arc::new(self.training(Some(run), spec, LogprobRows::All).await?))
    }

    async fn resume_run(
        &self,
        run: &str,
        from: &CheckpointAddress,
        with_optimizer: bool,
    ) -> Result<Arc<dyn HostedTraining>, BackendError> {
        let path = from.to_string();
        Ok(Arc::new(self.training_from(Some(run), &path, with_optimizer, LogprobRows::All).await?))
    }

    async fn checkpoints(&self, run: Option<&str>) -> Result<Vec<StoredCheckpoint>, BackendError> {
        let run = run.map(str::to_owned);
        self.on_disk(move |store| match run {
            Some(run) => store.list(&run),
            None => {
                let mut all = Vec::new();
                for run in store.runs()? {
                    all.extend(store.list(&run)?);
                }
                Ok(all)
            }
        })
        .await
    }

    async fn has_checkpoint(&self, address: &CheckpointAddress) -> Result<bool, BackendError> {
        let address = address.clone();
        let found = self.on_disk(move |store| if_exists(store.read(&address, |_| Ok(())))).await?;
        Ok(found.is_some())
    }

    async fn checkpoint_spec(&self, address: &CheckpointAddress) -> Result<Option<LoraSpec>, BackendError> {
        let address = address.clone();
        self.on_disk(move |store| if_exists(store.read(&address, read_spec))).await
    }

    async fn set_expiry(
        &self,
        address: &CheckpointAddress,
        expires: Option<u64>,
    ) -> Result<bool, BackendError> {
        let address = address.clone();
        let write =
            move |folder: &Path| write_notes(folder, &CheckpointNotes { expires, ..read_notes(folder)? });
        let written = self.on_disk(move |store| if_exists(store.read(&address, write))).await?;
        Ok(written.is_some())
    }

    async fn remove_checkpoint(
        &self,
        address: &CheckpointAddress,
        expired_by: Option<u64>,
    ) -> Result<bool, BackendError> {
        let address = address.clone();
        let may_go = move |folder: &Path| match expired_by {
            None => true,
            Some(now) => read_notes(folder).is_ok_and(|notes| notes.expires.is_some_and(|at| at <= now)),
        };
        let removed = self.on_disk(move |store| if_exists(store.remove_if(&address, may_go))).await?;
        Ok(removed == Some(true))
    }
}

impl HostedTraining for EmbeddedTraining {
    fn save_state_with(&self, name: &str, overwrite: bool, notes: CheckpointNotes) -> Pending<String> {
        let saved = self.save(CheckpointPurpose::Training, name, overwrite, notes);
        Box::pin(async move { Ok(saved.await?.1) })
    }

    fn save_sampler_with(&self, name: &str, notes: CheckpointNotes) -> Pending<Export> {
        let saved = self.save(CheckpointPurpose::Sampler, name, false, notes);
        Box::pin(async move {
            let (sampler, path) = saved.await?;
            Ok(Export { sampler: Arc::new(sampler), path: Some(path) })
        })
    }
}

/// `None` instead of the error of a checkpoint that does not exist.
fn if_exists<T>(found: Result<T, CheckpointError>) -> Result<Option<T>, CheckpointError> {
    match found {
        Err(CheckpointError::Missing(_)) => Ok(None),
        found => found.map(Some),
    }
}
