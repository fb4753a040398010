//! Frozen weights that rewards may query: the base model, or saved ones.

use crate::policy::AnswerCache;
use futures::FutureExt as _;
use minds_core::environment::FrozenWeights;
use minds_core::reward::RewardError;
use minds_core::service::{SamplingBackend, Service};
use std::sync::Arc;

/// Samplers of one service, each created when it is first requested.
pub struct FrozenSamplers {
    service: Arc<dyn Service>,
    made: AnswerCache<FrozenWeights, Arc<dyn SamplingBackend>>,
}

impl FrozenSamplers {
    /// Creates samplers over `service` when they are first requested.
    #[must_use]
    pub fn new(service: Arc<dyn Service>) -> Self {
        Self { service, made: AnswerCache::default() }
    }

    /// The sampler of these weights.
    ///
    /// # Errors
    /// The service does not have them, or failed.
    pub async fn sampler(&self, weights: FrozenWeights) -> Result<Arc<dyn SamplingBackend>, RewardError> {
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
