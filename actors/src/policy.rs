//! The weights that play, and the questions rewards ask them.
//!
//! Every version carries its own memory of answers, so an answer can never come from other weights, and the memory
//! goes when the last episode of that version has been judged.

use crate::memory::Memory;
use crate::queries::Queries;
use crate::shadow_trainer::{Loan, Measure, Origin};
use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use minds_core::backend::{BackendError, SamplingBackend};
use minds_core::datum::Datum;
use minds_core::environment::{Borrowed, FrozenWeights, Oracle, Shift};
use minds_core::ids::{PolicyVersion, Token};
use minds_core::reward::Missing;
use minds_core::sampling::{SampleRequest, SamplingParams};
use std::hash::Hash;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// One version of the weights.
pub struct Policy {
    /// Its number.
    pub version: PolicyVersion,
    /// Samples from it.
    pub sampler: Arc<dyn SamplingBackend>,
    /// Answers log-prob queries about it.
    pub oracle: Interviewer,
}

impl Policy {
    /// A version that has not been asked anything. Measured gradient steps start from `origin`, or from the base model.
    #[must_use]
    pub fn new(
        version: PolicyVersion,
        sampler: Arc<dyn SamplingBackend>,
        queries: Arc<Queries>,
        origin: Option<Arc<Origin>>,
    ) -> Self {
        Self { version, oracle: Interviewer::new(sampler.clone(), queries, origin), sampler }
    }

    /// The same weights for somebody who keeps books of his own.
    pub(crate) fn asked_by(&self, queries: Arc<Queries>) -> Self {
        Self::new(self.version, self.sampler.clone(), queries, self.oracle.origin.clone())
    }
}

type Tokens = Arc<[Token]>;
/// Tokens with their log-probs, best first.
type Likely = Arc<[(Token, f32)]>;

/// Asks a sampler for log-probs; equal questions are asked once, also while the answer is under way.
pub struct Interviewer {
    sampler: Arc<dyn SamplingBackend>,
    queries: Arc<Queries>,
    origin: Option<Arc<Origin>>,
    logprobs: Memory<(Tokens, Tokens), Arc<[f32]>>,
    next: Memory<(Tokens, usize), Likely>,
}

impl Interviewer {
    /// Nothing asked yet. Measured gradient steps start from `origin`, or from the base model.
    #[must_use]
    pub fn new(
        sampler: Arc<dyn SamplingBackend>,
        queries: Arc<Queries>,
        origin: Option<Arc<Origin>>,
    ) -> Self {
        Self { sampler, queries, origin, logprobs: Memory::default(), next: Memory::default() }
    }

    /// The answer to a question, which is sent only if nobody has sent it.
    async fn once<K, V>(
        &self,
        memory: &Memory<K, V>,
        key: K,
        ask: impl FnOnce(Arc<dyn SamplingBackend>) -> BoxFuture<'static, Result<V, Missing>> + Send + 'static,
    ) -> Result<V, Missing>
    where
        K: Eq + Hash + Clone,
        V: Clone,
    {
        let (queries, sampler) = (self.queries.clone(), self.sampler.clone());
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
impl Oracle for Interviewer {
    async fn logprobs(&self, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, Missing> {
        let key = (prefix.clone(), target.clone());
        let ask = |sampler| async move { Ok(target_logprobs(sampler, prefix, target).await?) }.boxed();
        self.once(&self.logprobs, key, ask).await
    }

    async fn next_tokens(&self, prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, Missing> {
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
                    Missing::Environment(
                        "this service returns no top-k log-probs: use a reward that needs none".into(),
                    )
                })
            }
            .boxed()
        };
        self.once(&self.next, key, ask).await
    }

    async fn shift(
        &self,
        text: Datum,
        probe_prefix: Arc<[Token]>,
        probe_target: Arc<[Token]>,
    ) -> Result<Shift, Missing> {
        let Some(shadow) = self.queries.shadow.get() else {
            return Err(Missing::Unsupported("what one gradient step would change".into()));
        };
        let gone = || Missing::Unsupported("the shadow trainer has ended".into());
        let (reply, answer) = oneshot::channel();
        let (origin, asked) = (self.origin.clone(), Instant::now());
        let measure = Measure { origin, text, probe_prefix, probe_target, asked, reply };
        shadow.send(measure).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    async fn borrow_adapter(&self) -> Result<Borrowed, Missing> {
        let Some(loans) = self.queries.loans.get() else {
            return Err(Missing::Unsupported("an adapter of its own".into()));
        };
        let gone = || Missing::Unsupported("the shadow trainer has ended".into());
        let (reply, answer) = oneshot::channel();
        loans.send(Loan { origin: self.origin.clone(), reply }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    async fn frozen(&self, weights: FrozenWeights) -> Result<Arc<dyn SamplingBackend>, Missing> {
        match self.queries.frozen.get() {
            Some(frozen) => frozen.sampler(weights).await,
            None => Err(Missing::Unsupported("weights beside the policy".into())),
        }
    }
}

/// Log-prob of each token of `target` after `prefix`; all of them, or an error.
pub(crate) async fn target_logprobs(
    sampler: Arc<dyn SamplingBackend>,
    prefix: Arc<[Token]>,
    target: Arc<[Token]>,
) -> Result<Arc<[f32]>, BackendError> {
    let tokens: Arc<[Token]> = prefix.iter().chain(target.iter()).copied().collect();
    let scored = sampler.logprobs(tokens).await?;
    scored
        .get(prefix.len()..)
        .filter(|tail| tail.len() == target.len())
        .and_then(|tail| tail.iter().map(|lp| lp.filter(|lp| lp.is_finite())).collect())
        .ok_or_else(|| BackendError::Unavailable("a target token came back without a log-prob".into()))
}
