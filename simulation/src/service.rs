//! The public handle of a simulated service.

use crate::options::SimulationOptions;
use crate::sampler::SimulatedSampler;
use crate::state::{ServiceCounts, SimulationState};
use crate::training::SimulatedTraining;
use crate::weights::SimulatedWeights;
use async_trait::async_trait;
use minds_core::ids::PolicyVersion;
use minds_core::lora::LoraSpec;
use minds_core::service::{BackendError, SamplingBackend, Service, ServiceInfo, TrainingBackend};
use std::sync::Arc;
use tokio::sync::watch;

/// A service whose behavior is set by [`SimulationOptions`].
pub struct SimulatedService(pub(crate) Arc<SimulationState>);

impl SimulatedService {
    /// Starts a service. Its fault windows are relative to this moment.
    #[must_use]
    pub fn new(options: SimulationOptions) -> Self {
        Self(Arc::new(SimulationState::new(options)))
    }

    /// Counts of requests and results; the receiver is notified of each change.
    #[must_use]
    pub fn counts(&self) -> watch::Receiver<ServiceCounts> {
        self.0.counts.subscribe()
    }

    /// Creates a sampler of weights after `version` optimizer steps.
    #[must_use]
    pub fn sampler(&self, version: u64) -> Arc<dyn SamplingBackend> {
        Arc::new(SimulatedSampler { state: self.0.clone(), weights: SimulatedWeights::Fixed(version) })
    }

    /// Creates an adapter whose weights are those after `version` optimizer steps.
    ///
    /// Must be called on a tokio runtime.
    #[must_use]
    pub fn adapter(&self, version: u64) -> Arc<dyn TrainingBackend> {
        Arc::new(self.training(LoraSpec::all_linear(1, 0), version))
    }

    fn training(&self, spec: LoraSpec, version: u64) -> SimulatedTraining {
        SimulatedTraining::start(self.0.clone(), None, spec, version)
    }

    /// Creates an adapter as [`Self::adapter`] does, whose weights are published at once. Returns the in-flight sampler
    /// too.
    ///
    /// Must be called on a tokio runtime.
    #[must_use]
    pub fn adapter_in_flight(&self, version: u64) -> (Arc<dyn TrainingBackend>, Arc<dyn SamplingBackend>) {
        let training = self.training(LoraSpec::all_linear(1, 0), version);
        let sampler = training.publish_now(PolicyVersion(version), version);
        (Arc::new(training), Arc::new(sampler))
    }

    /// Paths of all saved weights, sorted.
    #[must_use]
    pub fn saved(&self) -> Vec<String> {
        self.0.saved().keys().cloned().collect()
    }

    /// Factor by which requests that start now take longer because of a fault; 1 without a fault.
    #[must_use]
    pub fn slowness(&self) -> f64 {
        self.0.slowness()
    }

    /// Releases the responses of passes with gradients if `answer`, else holds them back.
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
        Ok(Arc::new(self.training(spec, 0)))
    }

    async fn base_sampler(&self) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        Ok(self.sampler(0))
    }

    async fn sampler_from(&self, path: &str) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        Ok(self.sampler(self.0.find(path)?.steps))
    }

    async fn delete(&self, path: &str) -> Result<(), BackendError> {
        self.0.find(path)?;
        self.0.saved().remove(path);
        Ok(())
    }
}
