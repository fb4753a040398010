//! Sessions for self-driven environments.
//!
//! A session is tied to one version of the weights: however late its environment sends a request, it is served by the
//! version that was stamped when the group was dispatched. Requests are retried and seeded as those of any other
//! rollout.

use crate::generate::{RolloutGenerator, seed};
use crate::policy::Policy;
use crate::service::retry::Retry;
use crate::telemetry::activity::ActivityKind;
use async_trait::async_trait;
use minds_core::datum::Datum;
use minds_core::environment::{
    AdapterLease, FrozenWeights, Item, LogprobDelta, Oracle, RolloutSession, SelfDrivenEnvironment,
    SessionError, SessionRollout,
};
use minds_core::ids::{RolloutId, Token};
use minds_core::reward::RewardError;
use minds_core::sampling::{SampleRequest, SampleResponse, SamplingParams};
use minds_core::service::{BackendError, SamplingBackend};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::oneshot;

/// Receives the result of a session.
pub type SessionReceiver = oneshot::Receiver<Result<SessionRollout, SessionError>>;

impl RolloutGenerator {
    /// A session and the receiver of its result. `again` counts earlier attempts, which used other seeds.
    #[must_use]
    pub fn session(
        &self,
        rollout: RolloutId,
        again: u32,
        policy: Arc<Policy>,
    ) -> (RolloutSession, SessionReceiver) {
        // No rollout sends enough requests to reach the numbers of the next attempt.
        let asked = Arc::new(AtomicU64::new(u64::from(again) << 32));
        let sampler =
            SessionSampler { generator: self.clone(), rollout, asked, inner: policy.sampler.clone() };
        let version = policy.version;
        let oracle = Arc::new(SessionOracle { sampler: sampler.clone(), policy });
        let (left, outcome) = oneshot::channel();
        // The receiver is gone if the group was dropped.
        let exit = move |result| drop(left.send(result));
        let mut session = RolloutSession::new(rollout, Arc::new(sampler), oracle, exit);
        session.attempt = again;
        session.policy = version;
        (session, outcome)
    }

    /// Runs one session to its result.
    ///
    /// # Errors
    /// The reason why there is no rollout with a reward.
    pub async fn run_session(
        &self,
        self_driven: &dyn SelfDrivenEnvironment,
        item: &Item,
        rollout: RolloutId,
        again: u32,
        policy: Arc<Policy>,
    ) -> Result<SessionRollout, SessionError> {
        let (session, outcome) = self.session(rollout, again, policy);
        self_driven.run_rollouts(item, vec![session]).await;
        session_result(outcome).await
    }
}

/// Waits until a session finishes.
///
/// # Errors
/// The reason why there is no rollout with a reward.
pub async fn session_result(outcome: SessionReceiver) -> Result<SessionRollout, SessionError> {
    let no_result = |_| Err(RewardError::Environment("it gave no result".into()).into());
    let performance = outcome.await.unwrap_or_else(no_result)?;
    if performance.turns.is_empty() {
        return Err(RewardError::Environment("it did not ask the policy once".into()).into());
    }
    Ok(performance)
}

/// Fixed weights, with the seeds of one session.
#[derive(Clone)]
struct SessionSampler {
    generator: RolloutGenerator,
    rollout: RolloutId,
    /// Requests of the session so far.
    asked: Arc<AtomicU64>,
    inner: Arc<dyn SamplingBackend>,
}

#[async_trait]
impl SamplingBackend for SessionSampler {
    /// A request that brings a seed of its own keeps it.
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        let RolloutId { group, member } = self.rollout;
        let stream = [u64::from(member) + 1, self.asked.fetch_add(1, Relaxed)];
        let own = seed(self.generator.seed, group.0, stream);
        let params = SamplingParams { seed: Some(request.params.seed.unwrap_or(own)), ..request.params };
        let record_stability_info = self.generator.record_stability_info;
        let request = SampleRequest { params, record_stability_info, ..request };
        let _busy = self.generator.activity.enter(ActivityKind::Sampling);
        self.generator.retry.run("sample", || self.inner.sample(request.clone())).await
    }

    async fn logprobs_from(
        &self,
        tokens: Arc<[Token]>,
        from: usize,
    ) -> Result<Vec<Option<f32>>, BackendError> {
        self.generator.retry.run("logprobs", || self.inner.logprobs_from(tokens.clone(), from)).await
    }
}

/// Answers the logprob queries of one session under its version of the weights.
struct SessionOracle {
    sampler: SessionSampler,
    policy: Arc<Policy>,
}

impl SessionOracle {
    fn retry(&self) -> &Retry {
        &self.sampler.generator.retry
    }
}

#[async_trait]
impl Oracle for SessionOracle {
    async fn logprobs(&self, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, RewardError> {
        let ask = || self.policy.oracle.logprobs(prefix.clone(), target.clone());
        self.retry().run("logprobs", ask).await
    }

    async fn next_tokens(&self, prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, RewardError> {
        self.retry().run("next_tokens", || self.policy.oracle.next_tokens(prefix.clone(), k)).await
    }

    async fn logprob_delta(
        &self,
        text: Datum,
        prefix: Arc<[Token]>,
        target: Arc<[Token]>,
    ) -> Result<LogprobDelta, RewardError> {
        self.policy.oracle.logprob_delta(text, prefix, target).await
    }

    async fn lease_adapter(&self) -> Result<AdapterLease, RewardError> {
        self.policy.oracle.lease_adapter().await
    }

    async fn frozen(&self, weights: FrozenWeights) -> Result<Arc<dyn SamplingBackend>, RewardError> {
        let ask = || self.policy.oracle.frozen(weights.clone());
        let inner = self.retry().run("weights", ask).await?;
        Ok(Arc::new(SessionSampler { inner, ..self.sampler.clone() }))
    }
}
