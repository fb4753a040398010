//! What rewards ask of the shadow trainer.

use super::ShadowOrigin;
use minds_core::datum::Datum;
use minds_core::environment::{AdapterLease, LogprobDelta};
use minds_core::ids::Token;
use minds_core::reward::RewardError;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Reward → ShadowTrainer: a text to train on and a probe to measure.
pub struct LogprobDeltaRequest {
    /// The weights to start from; `None` for the base model.
    pub origin: Option<Arc<ShadowOrigin>>,
    /// What the step trains on; its weights select the trained tokens.
    pub text: Datum,
    /// The prefix of the probe.
    pub probe_prefix: Arc<[Token]>,
    /// The tokens whose logprobs are summed.
    pub probe_target: Arc<[Token]>,
    /// When the request was made.
    pub asked: Instant,
    /// Where the result is sent.
    pub reply: oneshot::Sender<Result<LogprobDelta, RewardError>>,
}

/// Reward → ShadowTrainer: a request for an adapter.
pub struct AdapterLeaseRequest {
    /// The weights to start from; `None` for the base model.
    pub origin: Option<Arc<ShadowOrigin>>,
    /// Where the adapter is sent.
    pub reply: oneshot::Sender<Result<AdapterLease, RewardError>>,
}
