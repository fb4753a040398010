//! Weights beside the policy that rewards may ask: the base model, or saved ones.

use crate::memory::Memory;
use futures::FutureExt as _;
use minds_core::backend::{SamplingBackend, Service};
use minds_core::environment::FrozenWeights;
use minds_core::reward::Missing;
use std::sync::Arc;

/// Samplers of one service, each made once, when it is first asked for.
pub struct FrozenSamplers {
    service: Arc<dyn Service>,
    made: Memory<FrozenWeights, Arc<dyn SamplingBackend>>,
}

impl FrozenSamplers {
    /// Creates samplers over `service` when they are first requested.
    #[must_use]
    pub fn new(service: Arc<dyn Service>) -> Self {
        Self { service, made: Memory::default() }
    }

    /// The sampler of these weights.
    ///
    /// # Errors
    /// The service does not have them, or failed.
    pub async fn sampler(&self, weights: FrozenWeights) -> Result<Arc<dyn SamplingBackend>, Missing> {
        let service = self.service.clone();
        let key = weights.clone();
        let make = move || {
            async move {
                Ok(match weights {
                    FrozenWeights::Base => service.base_sampler().await?,
                    FrozenWeights::Saved(path) => service.sampler_from(&path).await?,
                })
            }
            .boxed()
        };
        self.made.once(key, make).await.0
    }
}
