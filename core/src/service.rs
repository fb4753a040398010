//! The Tinker service as the pipeline uses it: sample, score, train, save.
//!
//! Submission and result are separate. A method of [`TrainingBackend`] fixes the request's place in the order
//! when it is *called*; the returned [`Pending`] only waits for the result and may be dropped. So a caller can
//! queue `forward_backward`, `optim_step` and an export back to back.

use crate::datum::Datum;
pub use crate::forward::{ForwardOutput, LOGPROB_ROUNDING};
use crate::ids::{PolicyVersion, Token};
use crate::lora::LoraSpec;
use crate::loss::Loss;
use crate::optim::AdamParams;
use crate::sampling::{SampleRequest, SampleResponse};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// The result of a submitted request.
pub type Pending<T> = Pin<Box<dyn Future<Output = Result<T, BackendError>> + Send + 'static>>;

/// Failures, by what the caller can do about them.
#[derive(Clone, Debug, Error, PartialEq, Serialize, Deserialize)]
pub enum BackendError {
    /// The request itself is wrong: never retry it.
    #[error("the service refused the request: {0}")]
    Rejected(String),
    /// The service does not offer this.
    #[error("the service cannot do this: {0}")]
    Unsupported(String),
    /// The service failed: the same request may succeed if it is sent again.
    #[error("the service failed: {0}")]
    Unavailable(String),
    /// The service is reachable, but did not answer within the time limit of the request. The request is not sent again
    /// for that reason: repeating the wait would multiply the limit.
    #[error("the service took too long: {0}")]
    TimedOut(String),
    /// The service has not answered within the longest wait allowed for it: give up.
    #[error("the service is away: {0}")]
    Away(String),
    /// The client, session or model is gone: give up.
    #[error("the service is lost: {0}")]
    Lost(String),
    /// The service denies the account what it asks for, or there is no key to ask with: give up. Nothing changes until a
    /// person acts.
    #[error("{}: {detail}", reason.problem())]
    Denied {
        /// What the account lacks.
        reason: DenialReason,
        /// Message of the service.
        detail: String,
    },
}

/// What an account lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DenialReason {
    /// The service knows no such key.
    Key,
    /// The source of the key gave none, so that the request was not sent.
    NoKey,
    /// There is no credit to pay with.
    Credit,
    /// The key does not permit this request.
    Permission,
}

impl DenialReason {
    /// What happened, as a clause.
    fn problem(self) -> &'static str {
        match self {
            Self::Key => "the service denied the request (the key is not valid)",
            Self::NoKey => "there is no key for the service",
            Self::Credit => "the service denied the request (the account has no credit)",
            Self::Permission => "the service denied the request (the key has no permission)",
        }
    }
}

impl BackendError {
    /// Whether the same request may succeed if it is sent again now.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// Whether the service gave no answer, and the same request may have one later. A session that is lost or a key
    /// that is denied does not recover.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::TimedOut(_) | Self::Away(_))
    }
}

/// What a service reports about itself.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceInfo {
    /// Display name: `embedded` or the server's address.
    pub name: String,
    /// The base model served.
    pub base_model: String,
    /// Longest sequence, prompt and samples together.
    pub context: usize,
    /// Tokens in the vocabulary.
    pub vocab: usize,
    /// Whether it supports `topk_prompt_logprobs`.
    pub topk_prompt_logprobs: bool,
}

/// A connection to a service for one base model.
#[async_trait]
pub trait Service: Send + Sync {
    /// Name, base model and limits of the service.
    fn info(&self) -> ServiceInfo;

    /// A new adapter to train.
    async fn create_training(&self, spec: LoraSpec) -> Result<Arc<dyn TrainingBackend>, BackendError>;

    /// A sampler over the base model, without an adapter.
    async fn base_sampler(&self) -> Result<Arc<dyn SamplingBackend>, BackendError>;

    /// A sampler over saved weights.
    async fn sampler_from(&self, path: &str) -> Result<Arc<dyn SamplingBackend>, BackendError>;

    /// Deletes saved weights. This is an optional ability: without it, saved weights stay.
    async fn delete(&self, path: &str) -> Result<(), BackendError> {
        Err(BackendError::Unsupported(format!("deleting {path}")))
    }

    /// Saves the adapter in a folder of this machine, in PEFT's format, as weights of the service that an adapter of this spec
    /// can load, and returns their path. Linear layers that it does not adapt start as in a new adapter, which leaves the
    /// model unchanged. This is an optional ability: the Tinker API takes no weights.
    async fn import_weights(&self, folder: &Path, _spec: &LoraSpec) -> Result<String, BackendError> {
        Err(BackendError::Unsupported(format!("taking up the weights in {}", folder.display())))
    }

    /// Has the service delete saved weights by itself after this time. This is an optional ability: without it, saved
    /// weights stay.
    async fn expire(&self, path: &str, after: Duration) -> Result<(), BackendError> {
        Err(BackendError::Unsupported(format!("deleting {path} after {} s", after.as_secs())))
    }
}

/// Weights to sample from. Training never changes them, but for those of [`TrainingBackend::publish_in_flight`].
///
/// ```
/// use minds_core::ids::Token;
/// use minds_core::sampling::{Completion, SampleRequest, SamplingParams};
/// use minds_core::service::{BackendError, SamplingBackend};
///
/// /// Four continuations of one prompt, of 16 tokens at most.
/// async fn continuations(
///     sampler: &dyn SamplingBackend,
///     prompt: Vec<Token>,
/// ) -> Result<Vec<Completion>, BackendError> {
///     let request = SampleRequest::new(prompt.into(), 4, SamplingParams::plain(16));
///     Ok(sampler.sample(request).await?.sequences)
/// }
/// ```
#[async_trait]
pub trait SamplingBackend: Send + Sync {
    /// Draws `num_samples` continuations of one prompt.
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError>;

    /// Logprob of each token given those before it; the first has none.
    async fn logprobs(&self, tokens: Arc<[Token]>) -> Result<Vec<Option<f32>>, BackendError> {
        self.logprobs_from(tokens, 0).await
    }

    /// Logprob of each token from position `from` on, given those before it. Earlier positions may have none: the service
    /// can take them from its prefix cache.
    async fn logprobs_from(
        &self,
        tokens: Arc<[Token]>,
        from: usize,
    ) -> Result<Vec<Option<f32>>, BackendError> {
        let response = self.sample(SampleRequest::score_from(tokens, from)).await?;
        response.prompt_logprobs.ok_or_else(|| {
            BackendError::Unsupported("it returned no prompt logprobs although they were asked for".into())
        })
    }

    /// Memory in bytes that these weights take in this process, without the base model; 0 if they lie elsewhere.
    fn weight_bytes(&self) -> usize {
        0
    }
}

/// Whether new weights reach the requests that are being sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SamplerWeights {
    /// A request is sampled by the weights that it started with.
    #[default]
    Snapshot,
    /// A request follows the newest weights, from one token to the next ([`TrainingBackend::publish_in_flight`]).
    InFlight,
}

/// Result of an optimizer step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OptimStep {
    /// Metrics that the service reports, by name, for example `grad_norm`.
    pub metrics: BTreeMap<String, f64>,
}

/// Sampler weights made from the adapter as it was when the export was submitted.
#[derive(Clone)]
pub struct Export {
    /// Sampler over these weights.
    pub sampler: Arc<dyn SamplingBackend>,
    /// Path of the saved weights, if the export has a name.
    pub path: Option<String>,
}

/// One adapter in training. Requests are executed in the order of the calls.
///
/// ```
/// use minds_core::datum::Datum;
/// use minds_core::loss::Loss;
/// use minds_core::optim::AdamParams;
/// use minds_core::service::{BackendError, SamplingBackend, TrainingBackend};
/// use std::sync::Arc;
///
/// /// One optimizer step, and a sampler over the new weights.
/// async fn step(
///     training: &dyn TrainingBackend,
///     data: Vec<Datum>,
/// ) -> Result<Arc<dyn SamplingBackend>, BackendError> {
///     // The calls fix the order; the service works on all three before the first result is awaited.
///     let pass = training.forward_backward(data, Loss::CrossEntropy);
///     let step = training.optim_step(AdamParams::default());
///     let export = training.export_sampler(None);
///     pass.await?;
///     step.await?;
///     Ok(export.await?.sampler)
/// }
/// ```
pub trait TrainingBackend: Send + Sync {
    /// Computes losses without gradients.
    fn forward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput>;

    /// Adds the gradients of the summed loss to those accumulated so far. Refuses values that are not finite and
    /// then leaves the gradients as they were.
    fn forward_backward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput>;

    /// Applies and clears the accumulated gradients. A step whose result is not finite is refused
    /// ([`BackendError::Rejected`]): weights and moments stay as they were, and the gradients are cleared all the same.
    /// The embedded engine changes nothing when there are no gradients; other services may move the weights by the
    /// optimizer's momentum.
    fn optim_step(&self, params: AdamParams) -> Pending<OptimStep>;

    /// Saves weights and optimizer under a name; returns the path.
    fn save_state(&self, name: &str) -> Pending<String>;

    /// Loads weights, and the optimizer's state if requested; otherwise the optimizer starts afresh.
    fn load_state(&self, path: &str, with_optimizer: bool) -> Pending<()>;

    /// Makes a sampler of the current weights; with a name it is also kept on the service.
    fn export_sampler(&self, name: Option<&str>) -> Pending<Export>;

    /// Replaces the weights of the adapter's in-flight samplers by the current ones, also for requests that are being
    /// sampled, and returns one of these samplers. A service that tells which weights sampled a token names them
    /// `version`. This is an optional ability.
    fn publish_in_flight(&self, version: PolicyVersion) -> Pending<Arc<dyn SamplingBackend>> {
        let problem = format!("replacing the weights of running requests by version {version}");
        Box::pin(std::future::ready(Err(BackendError::Unsupported(problem))))
    }

    /// Releases the adapter, so that the service can reuse its memory; no request may follow. A service
    /// that holds an adapter only as long as this value lives has nothing to do, as this default does.
    fn release(&self) -> Pending<()> {
        Box::pin(std::future::ready(Ok(())))
    }
}
