//! The embedded service: the engine behind the same traits as a remote service.
//!
//! Requests are checked before they are queued. Training requests of an adapter run in the order of the calls;
//! samplers hold weights that later training does not change, but for in-flight samplers, which follow it.

mod adapter_store;
mod hosting;
mod training;

pub use training::EmbeddedTraining;

use crate::adapter::Adapter;
use crate::checkpoint::{CheckpointError, CheckpointStore};
use crate::model::Model;
use crate::optim::AdamState;
use crate::runtime::{
    AdapterSnapshot, Engine, EngineOptions, EngineStartError, EngineStats, SamplingWeights,
};
use crate::train::LogprobRows;
use adapter_store::AdapterStore;
use async_trait::async_trait;
use minds_core::chat::Tokenizer;
use minds_core::checkpoint::{CheckpointAddress, CheckpointPurpose};
use minds_core::lora::LoraSpec;
use minds_core::sampling::{SampleRequest, SampleResponse};
use minds_core::service::{BackendError, Pending, SamplingBackend, Service, ServiceInfo, TrainingBackend};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

/// Why the service failed to start.
#[derive(Debug, Error)]
pub enum EmbeddedError {
    /// The threads could not be started: try with fewer.
    #[error(transparent)]
    Engine(#[from] EngineStartError),
    /// The folder for weights is unusable: use another.
    #[error("the state folder is unusable")]
    Checkpoints(#[from] CheckpointError),
}

/// A model on this machine's processor, as a service.
pub struct EmbeddedService {
    engine: Arc<Engine>,
    adapter_store: Arc<AdapterStore>,
    runs: AtomicU64,
}

impl EmbeddedService {
    /// Starts the engine. Without a tokenizer, stop strings are not supported.
    ///
    /// # Errors
    /// The threads cannot be started, or the folder for weights is unusable.
    pub fn start(
        model: Arc<Model<f32>>,
        tokenizer: Option<Arc<dyn Tokenizer>>,
        options: &EngineOptions,
    ) -> Result<Self, EmbeddedError> {
        let store = options.checkpoint_dir.clone().map(CheckpointStore::new).transpose()?;
        let adapter_store = AdapterStore::new(model.clone(), options.base_model.clone(), store);
        let engine = Engine::start(model, tokenizer, options)?;
        Ok(Self { engine: Arc::new(engine), adapter_store: Arc::new(adapter_store), runs: AtomicU64::new(1) })
    }

    /// A sampler over the base model.
    #[must_use]
    pub fn base(&self) -> EmbeddedSampler {
        EmbeddedSampler { engine: self.engine.clone(), weights: SamplingWeights::Base }
    }

    /// A sampler over saved weights. They are loaded after the training requests that are already queued, so that it
    /// finds a save among them.
    pub fn open(&self, path: &str) -> Pending<EmbeddedSampler> {
        let address: CheckpointAddress = match path.parse() {
            Ok(address) => address,
            Err(error) => return Box::pin(std::future::ready(Err(BackendError::from(error)))),
        };
        let adapter_store = self.adapter_store.clone();
        let engine = self.engine.clone();
        self.engine.train(move |_| {
            let snapshot = Arc::new(AdapterSnapshot::new(adapter_store.load(&address)?.weights()));
            Ok(EmbeddedSampler { engine, weights: SamplingWeights::Snapshot(snapshot) })
        })
    }

    /// Totals of the engine so far.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.engine.stats()
    }

    /// A new adapter that keeps its weights under a run name of the caller's choice, or under a free one, and
    /// reports logprobs for `rows`.
    ///
    /// # Errors
    /// A spec that cannot be built, or an unusable or unwritable run name.
    pub async fn training(
        &self,
        run: Option<&str>,
        spec: LoraSpec,
        rows: LogprobRows,
    ) -> Result<EmbeddedTraining, BackendError> {
        spec.check().map_err(|e| BackendError::Rejected(e.to_string()))?;
        let run = self.run(run)?;
        let model = self.engine.model().clone();
        let make = move |_: &mut _| Adapter::new(model.architecture(), &spec).map_err(training::refused);
        let adapter = self.engine.train(make).await?;
        let optimizer = AdamState::new(&adapter);
        Ok(EmbeddedTraining::new(self, run, adapter, optimizer, rows))
    }

    /// Creates an adapter that resumes from saved weights, with the spec they were saved with.
    ///
    /// # Errors
    /// Weights that are missing, damaged or of another base model, or an unusable run name.
    pub async fn training_from(
        &self,
        run: Option<&str>,
        path: &str,
        with_optimizer: bool,
        rows: LogprobRows,
    ) -> Result<EmbeddedTraining, BackendError> {
        let address: CheckpointAddress = path.parse()?;
        let adapter_store = self.adapter_store.clone();
        let load = move |_: &mut _| adapter_store.load_training(&address, with_optimizer);
        let (adapter, optimizer) = self.engine.train(load).await?;
        let run = self.run(run)?;
        Ok(EmbeddedTraining::new(self, run, adapter, optimizer, rows))
    }

    fn run(&self, run: Option<&str>) -> Result<String, BackendError> {
        match run {
            Some(run) => {
                CheckpointAddress::new(run, CheckpointPurpose::Training, "any")?;
                Ok(run.into())
            }
            None => match self.adapter_store.claim_run()? {
                Some(run) => Ok(run),
                None => Ok(format!("run-{}", self.runs.fetch_add(1, Ordering::Relaxed))),
            },
        }
    }
}

#[async_trait]
impl Service for EmbeddedService {
    fn info(&self) -> ServiceInfo {
        let arch = self.engine.model().architecture();
        ServiceInfo {
            name: "embedded".into(),
            base_model: self.adapter_store.base_name().into(),
            context: arch.context,
            vocab: arch.vocab,
            topk_prompt_logprobs: true,
        }
    }

    async fn create_training(&self, spec: LoraSpec) -> Result<Arc<dyn TrainingBackend>, BackendError> {
        Ok(Arc::new(self.training(None, spec, LogprobRows::All).await?))
    }

    async fn base_sampler(&self) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        Ok(Arc::new(self.base()))
    }

    async fn sampler_from(&self, path: &str) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        Ok(Arc::new(self.open(path).await?))
    }

    async fn delete(&self, path: &str) -> Result<(), BackendError> {
        let (address, adapter_store): (CheckpointAddress, _) = (path.parse()?, self.adapter_store.clone());
        // After the requests that are already queued, one of which may load it.
        self.engine.train(move |_| Ok(adapter_store.store()?.remove(&address)?)).await
    }

    async fn import_weights(&self, folder: &Path, spec: &LoraSpec) -> Result<String, BackendError> {
        let adapter_store = self.adapter_store.clone();
        let spec = spec.clone();
        let folder = folder.to_owned();
        self.engine.train(move |_| Ok(adapter_store.import(&folder, &spec)?.to_string())).await
    }
}

/// Samples from one snapshot of an adapter, from the newest weights of one in training, or from the base model.
#[derive(Clone)]
pub struct EmbeddedSampler {
    pub(crate) engine: Arc<Engine>,
    pub(crate) weights: SamplingWeights,
}

#[async_trait]
impl SamplingBackend for EmbeddedSampler {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        self.engine.sample(self.weights.clone(), request)?.await
    }

    fn weight_bytes(&self) -> usize {
        self.weights.bytes()
    }
}
