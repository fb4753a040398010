//! The service itself.

use crate::options::SimulationOptions;
use crate::sampler::SimulatedSampler;
use crate::state::{ServiceCounts, SimulationState};
use crate::training::SimulatedTraining;
use async_trait::async_trait;
use minds_core::lora::LoraSpec;
use minds_core::service::{BackendError, SamplingBackend, Service, ServiceInfo, TrainingBackend};
use std::sync::Arc;
use tokio::sync::watch;

/// A service that follows its options.
pub struct SimulatedService(Arc<SimulationState>);

impl SimulatedService {
    /// Starts a service; its fault windows count from now.
    #[must_use]
    pub fn new(options: SimulationOptions) -> Self {
        Self(Arc::new(SimulationState::new(options)))
    }

    /// What it was asked and did so far.
    #[must_use]
    pub fn counts(&self) -> watch::Receiver<ServiceCounts> {
        self.0.counts.subscribe()
    }

    /// A sampler of weights with `version` optimizer steps behind them.
    #[must_use]
    pub fn sampler(&self, version: u64) -> Arc<dyn SamplingBackend> {
        Arc::new(SimulatedSampler { state: self.0.clone(), version })
    }

    /// An adapter whose weights have `version` optimizer steps behind them. Must be called on a runtime.
    #[must_use]
    pub fn adapter(&self, version: u64) -> Arc<dyn TrainingBackend> {
        Arc::new(SimulatedTraining::start(self.0.clone(), version))
    }

    /// Paths of all saved weights, in their order.
    #[must_use]
    pub fn saved(&self) -> Vec<String> {
        self.0.saved().keys().cloned().collect()
    }

    /// Factor by which everything that begins now takes longer than otherwise.
    #[must_use]
    pub fn slowness(&self) -> f64 {
        self.0.slowness()
    }

    /// Holds the answers of passes with gradients back, or lets them go.
    pub fn answer_passes(&self, answer: bool) {
        self.0.passes.send_replace(answer);
    }
}

#[async_trait]
impl Service for SimulatedService {
    fn info(&self) -> ServiceInfo {
        self.0.options.info.clone()
    }

    async fn create_training(&self, spec: LoraSpec) -> Result<Arc<dyn TrainingBackend>, BackendError> {
        spec.check().map_err(|error| BackendError::Rejected(error.to_string()))?;
        Ok(self.adapter(0))
    }

    async fn base_sampler(&self) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        Ok(self.sampler(0))
    }

    async fn sampler_from(&self, path: &str) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        Ok(self.sampler(self.0.find(path)?))
    }

    async fn delete(&self, path: &str) -> Result<(), BackendError> {
        self.0.find(path)?;
        self.0.saved().remove(path);
        Ok(())
    }
}
