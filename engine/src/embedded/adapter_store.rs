//! The service's checkpoints: a store, and the base model that they belong to.

use super::training::refused;
use crate::adapter::Adapter;
use crate::checkpoint::{
    BaseModelIdentity, CheckpointStore, has_optimizer, read_adapter, read_optimizer, write_adapter,
    write_notes, write_optimizer,
};
use crate::model::Model;
use crate::optim::AdamState;
use minds_core::checkpoint::{CheckpointAddress, CheckpointNotes, CheckpointPurpose};
use minds_core::lora::LoraSpec;
use minds_core::service::BackendError;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The run under which the store keeps an adapter from elsewhere.
const IMPORTED: &str = "imported";

/// What to save, and how.
pub(super) struct CheckpointSave {
    pub(super) address: CheckpointAddress,
    /// Whether the save may replace an existing checkpoint.
    pub(super) overwrite: bool,
    pub(super) notes: CheckpointNotes,
}

/// Saves and loads for one base model. The methods run the model and access the disk: call them in a training job.
pub(super) struct AdapterStore {
    model: Arc<Model<f32>>,
    name: String,
    base: OnceLock<BaseModelIdentity>,
    store: Option<CheckpointStore>,
}

impl AdapterStore {
    pub(super) fn new(model: Arc<Model<f32>>, name: String, store: Option<CheckpointStore>) -> Self {
        Self { model, name, base: OnceLock::new(), store }
    }

    pub(super) fn base_name(&self) -> &str {
        &self.name
    }

    /// A free run name, if there is a store.
    pub(super) fn claim_run(&self) -> Result<Option<String>, BackendError> {
        Ok(self.store.as_ref().map(|store| store.claim_run("run")).transpose()?)
    }

    /// Saves an adapter, with its optimizer for a training checkpoint.
    pub(super) fn save(
        &self,
        save: &CheckpointSave,
        adapter: &Adapter<f32>,
        optimizer: &AdamState<f32>,
    ) -> Result<(), BackendError> {
        let base = self.base()?;
        let store = self.store()?;
        let write = |folder: &Path| {
            write_adapter(folder, adapter, base)?;
            write_notes(folder, &save.notes)?;
            match save.address.kind() {
                CheckpointPurpose::Training => write_optimizer(folder, adapter, optimizer),
                CheckpointPurpose::Sampler => Ok(()),
            }
        };
        Ok(if save.overwrite {
            store.replace(&save.address, write)
        } else {
            store.save(&save.address, write)
        }?)
    }

    /// Saves the adapter in a foreign folder as the checkpoint [`IMPORTED`], in the place of an earlier one. The optimizer's
    /// state comes along if there is one for the same layers; otherwise it is that of a new adapter.
    pub(super) fn import(&self, folder: &Path, spec: &LoraSpec) -> Result<CheckpointAddress, BackendError> {
        let base = self.base()?;
        let found = read_adapter(folder, base)?;
        let mut adapter = Adapter::new(&base.architecture, spec).map_err(refused)?;
        let own = adapter.spec();
        let given = found.spec();
        if (own.rank, own.alpha.to_bits()) != (given.rank, given.alpha.to_bits()) {
            return Err(BackendError::Rejected(format!(
                "the adapter has rank {} and alpha {}, this run rank {} and alpha {}",
                given.rank, given.alpha, own.rank, own.alpha
            )));
        }
        if let Some(foreign) = given.targets.iter().find(|target| !own.targets.contains(target)) {
            let problem = format!("the adapter changes {}, which this run does not train", foreign.name());
            return Err(BackendError::Rejected(problem));
        }
        let same_layers = given.targets.len() == own.targets.len();
        for tensors in found.tensors() {
            adapter.set(tensors.layer, tensors.target, tensors.a, tensors.b).map_err(refused)?;
        }
        let optimizer = match same_layers && has_optimizer(folder) {
            true => read_optimizer(folder, &adapter)?,
            false => AdamState::new(&adapter),
        };
        let address = CheckpointAddress::new(IMPORTED, CheckpointPurpose::Training, "start")?;
        let save =
            CheckpointSave { address: address.clone(), overwrite: true, notes: CheckpointNotes::default() };
        self.save(&save, &adapter, &optimizer)?;
        Ok(address)
    }

    pub(super) fn load(&self, address: &CheckpointAddress) -> Result<Adapter<f32>, BackendError> {
        let base = self.base()?;
        Ok(self.store()?.read(address, |folder| read_adapter(folder, base))?)
    }

    /// An adapter to train, with the optimizer state of the same save or with a fresh one.
    pub(super) fn load_training(
        &self,
        address: &CheckpointAddress,
        with_optimizer: bool,
    ) -> Result<(Adapter<f32>, AdamState<f32>), BackendError> {
        let base = self.base()?;
        Ok(self.store()?.read(address, |folder| {
            let adapter = read_adapter(folder, base)?;
            let optimizer = match with_optimizer {
                true => read_optimizer(folder, &adapter)?,
                false => AdamState::new(&adapter),
            };
            Ok((adapter, optimizer))
        })?)
    }

    pub(super) fn store(&self) -> Result<&CheckpointStore, BackendError> {
        self.store.as_ref().ok_or_else(|| {
            BackendError::Unsupported("weights are kept only if the engine has a state folder".into())
        })
    }

    fn base(&self) -> Result<&BaseModelIdentity, BackendError> {
        if let Some(base) = self.base.get() {
            return Ok(base);
        }
        let base =
            BaseModelIdentity::of(&self.name, &self.model).map_err(|e| BackendError::Lost(e.to_string()))?;
        Ok(self.base.get_or_init(|| base))
    }
}
