//! The weights that sample, and the logprob queries of rewards.
//!
//! Every version carries its own cache of answers, so an answer can never come from other weights, and the cache
//! is dropped when the last rollout of that version has been scored.

mod budget;
mod cache;
mod frozen;
mod shadow_origin;
mod shadow_request;

use async_trait::async_trait;
pub use budget::{QueryBudget, QueryCounts, QueryLimits};
pub use cache::AnswerCache;
pub use frozen::FrozenSamplers;
use futures::FutureExt;
use futures::future::BoxFuture;
use minds_core::datum::Datum;
use minds_core::environment::{AdapterLease, FrozenWeights, LogprobDelta, Oracle};
use minds_core::ids::{PolicyVersion, Token};
use minds_core::reward::RewardError;
use minds_core::sampling::{SampleRequest, SamplingParams};
use minds_core::service::{BackendError, SamplingBackend};
pub(crate) use shadow_origin::ProbeText;
pub use shadow_origin::{ShadowCheckpoints, ShadowOrigin, SharedPath};
pub use shadow_request::{AdapterLeaseRequest, LogprobDeltaRequest};
use std::hash::Hash;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// One version of the weights.
pub struct Policy {
    /// Number of optimizer steps behind it.
    pub version: PolicyVersion,
    /// Sampler of rollouts: over these weights, or over in-flight ones, which newer versions replace.
    pub sampler: Arc<dyn SamplingBackend>,
    /// Answers logprob queries under these weights.
    pub oracle: LogprobOracle,
}

impl Policy {
    /// A version with an empty cache. Measured gradient steps start from `origin`, or from the base model.
    #[must_use]
    pub fn new(
        version: PolicyVersion,
        sampler: Arc<dyn SamplingBackend>,
        queries: Arc<QueryBudget>,
        origin: Option<Arc<ShadowOrigin>>,
    ) -> Self {
        Self { version, oracle: LogprobOracle::new(sampler.clone(), queries, origin), sampler }
    }

    /// The same version, whose rollouts this sampler of in-flight weights samples.
    #[must_use]
    pub fn sampled_by(self, in_flight: Arc<dyn SamplingBackend>) -> Self {
        Self { sampler: in_flight, ..self }
    }

    /// The same weights, which stay, with other limits and counts of queries.
    pub(crate) fn asked_by(&self, queries: Arc<QueryBudget>) -> Self {
        Self::new(self.version, self.oracle.sampler.clone(), queries, self.oracle.origin.clone())
    }
}

type Tokens = Arc<[Token]>;
/// Tokens with their logprobs, best first.
type Likely = Arc<[(Token, f32)]>;

/// Queries a sampler for logprobs; equal queries are sent once, also while the response is in flight.
pub struct LogprobOracle {
    sampler: Arc<dyn SamplingBackend>,
    queries: Arc<QueryBudget>,
    origin: Option<Arc<ShadowOrigin>>,
    logprobs: AnswerCache<(Tokens, Tokens), Arc<[f32]>>,
    next: AnswerCache<(Tokens, usize), Likely>,
}

impl LogprobOracle {
    /// An oracle with an empty cache. Measured gradient steps start from `origin`, or from the base model.
    #[must_use]
    pub fn new(
        sampler: Arc<dyn SamplingBackend>,
        queries: Arc<QueryBudget>,
        origin: Option<Arc<ShadowOrigin>>,
    ) -> Self {
        Self { sampler, queries, origin, logprobs: AnswerCache::default(), next: AnswerCache::default() }
    }

    /// The answer to a query, which is sent only if no equal one was sent before.
    async fn once<K, V>(
        &self,
        memory: &AnswerCache<K, V>,
        key: K,
        ask: impl FnOnce(Arc<dyn SamplingBackend>) -> BoxFuture<'static, Result<V, RewardError>> + Send + 'static,
    ) -> Result<V, RewardError>
    where
        K: Eq + Hash + Clone,
        V: Clone,
    {
        let queries = self.queries.clone();
        let sampler = self.sampler.clone();
        let send = move || {
            async move {
                let _permit = queries.admit().await?;
                ask(sampler).await
            }
            .boxed()
        };
        let (answer, sent) = memory.once(key, send).await;
        if !sent {
            self.queries.note_remembered();
        }
        answer
    }
}

#[async_trait]
impl Oracle for LogprobOracle {
    async fn logprobs(&self, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, RewardError> {
        let key = (prefix.clone(), target.clone());
        let ask = |sampler| async move { Ok(target_logprobs(sampler, prefix, target).await?) }.boxed();
        self.once(&self.logprobs, key, ask).await
    }

    async fn next_tokens(&self, prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, RewardError> {
        let key = (prefix.clone(), k);
        let ask = move |sampler: Arc<dyn SamplingBackend>| {
            async move {
                let request = SampleRequest {
                    topk_sample_logprobs: k,
                    ..SampleRequest::new(
                        prefix,
                        1,
                        SamplingParams { temperature: 0.0, ..SamplingParams::plain(1) },
                    )
                };
                let response = sampler.sample(request).await?;
                let topk = response.sequences.first().and_then(|s| s.topk.as_ref()?.first().cloned());
                topk.map(Into::into).ok_or_else(|| {
                    RewardError::Unsupported(
                        "this service returns no top-k logprobs: use a reward that needs none".into(),
                    )
                })
            }
            .boxed()
        };
        self.once(&self.next, key, ask).await
    }

    async fn logprob_delta(
        &self,
        text: Datum,
        probe_prefix: Arc<[Token]>,
        probe_target: Arc<[Token]>,
    ) -> Result<LogprobDelta, RewardError> {
        let Some(shadow) = self.queries.shadow.get() else {
            return Err(RewardError::Unsupported("what one gradient step would change".into()));
        };
        let gone = || RewardError::Unsupported("the shadow trainer has ended".into());
        let (reply, answer) = oneshot::channel();
        let origin = self.origin.clone();
        let asked = Instant::now();
        let measure = LogprobDeltaRequest { origin, text, probe_prefix, probe_target, asked, reply };
        shadow.send(measure).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    async fn lease_adapter(&self) -> Result<AdapterLease, RewardError> {
        let Some(leases) = self.queries.leases.get() else {
            return Err(RewardError::Unsupported("an adapter of its own".into()));
        };
        let gone = || RewardError::Unsupported("the shadow trainer has ended".into());
        let (reply, answer) = oneshot::channel();
        leases.send(AdapterLeaseRequest { origin: self.origin.clone(), reply }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    async fn frozen(&self, weights: FrozenWeights) -> Result<Arc<dyn SamplingBackend>, RewardError> {
        match self.queries.frozen.get() {
            Some(frozen) => frozen.sampler(weights).await,
            None => Err(RewardError::Unsupported("weights beside the policy".into())),
        }
    }
}

/// Logprob of each token of `target` after `prefix`; all of them, or an error.
pub(crate) async fn target_logprobs(
    sampler: Arc<dyn SamplingBackend>,
    prefix: Arc<[Token]>,
    target: Arc<[Token]>,
) -> Result<Arc<[f32]>, BackendError> {
    let tokens: Arc<[Token]> = prefix.iter().chain(target.iter()).copied().collect();
    let scored = sampler.logprobs_from(tokens, prefix.len()).await?;
    scored
        .get(prefix.len()..)
        .filter(|tail| tail.len() == target.len())
        .and_then(|tail| tail.iter().map(|lp| lp.filter(|lp| lp.is_finite())).collect())
        .ok_or_else(|| BackendError::Unavailable("a target token has no logprob".into()))
}
