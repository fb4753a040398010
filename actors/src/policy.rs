//! The weights that play, and the questions rewards ask them.
//!
//! Every version carries its own memory of answers, so an answer can never come from other weights, and the memory
//! goes when the last episode of that version has been judged.

use crate::kit::Outlet;
use crate::memory::Memory;
use crate::shadow_trainer::Measure;
use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use minds_core::backend::SamplingBackend;
use minds_core::datum::Datum;
use minds_core::environment::{Oracle, Shift};
use minds_core::ids::{PolicyVersion, Token};
use minds_core::reward::Missing;
use minds_core::sampling::{SampleRequest, SamplingParams};
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use tokio::sync::oneshot;

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
    /// A version that has not been asked anything.
    #[must_use]
    pub fn new(version: PolicyVersion, sampler: Arc<dyn SamplingBackend>, queries: Arc<Queries>) -> Self {
        Self { version, oracle: Interviewer::new(sampler.clone(), queries), sampler }
    }
}

/// What all that ask share: how often they asked, and where questions about a gradient step go.
#[derive(Default)]
pub struct Queries {
    /// Questions sent to the service.
    pub sent: AtomicU64,
    /// Questions answered from memory, or by joining one under way.
    pub remembered: AtomicU64,
    /// Gradient steps measured.
    pub shifts: AtomicU64,
    /// The lane to the shadow trainer, once there is one.
    pub shadow: OnceLock<Outlet<Measure>>,
}

type Tokens = Arc<[Token]>;
/// Tokens with their log-probs, best first.
type Likely = Arc<[(Token, f32)]>;

/// Asks a sampler for log-probs; equal questions are asked once, also while the answer is under way.
pub struct Interviewer {
    sampler: Arc<dyn SamplingBackend>,
    queries: Arc<Queries>,
    logprobs: Memory<(Tokens, Tokens), Arc<[f32]>>,
    next: Memory<(Tokens, usize), Likely>,
}

impl Interviewer {
    /// Nothing asked yet.
    #[must_use]
    pub fn new(sampler: Arc<dyn SamplingBackend>, queries: Arc<Queries>) -> Self {
        Self { sampler, queries, logprobs: Memory::default(), next: Memory::default() }
    }

    async fn once<K, V>(
        &self,
        memory: &Memory<K, V>,
        key: K,
        ask: impl FnOnce() -> BoxFuture<'static, Result<V, Missing>>,
    ) -> Result<V, Missing>
    where
        K: Eq + Hash + Clone,
        V: Clone,
    {
        let (answer, sent) = memory.once(key, ask).await;
        let counter = if sent { &self.queries.sent } else { &self.queries.remembered };
        counter.fetch_add(1, Relaxed);
        answer
    }
}

#[async_trait]
impl Oracle for Interviewer {
    async fn logprobs(&self, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, Missing> {
        let sampler = self.sampler.clone();
        let key = (prefix.clone(), target.clone());
        let ask = move || {
            async move {
                let tokens: Arc<[Token]> = prefix.iter().chain(target.iter()).copied().collect();
                let scored = sampler.logprobs(tokens).await?;
                scored
                    .get(prefix.len()..)
                    .filter(|tail| tail.len() == target.len())
                    .and_then(|tail| tail.iter().map(|lp| lp.filter(|lp| lp.is_finite())).collect())
                    .ok_or_else(|| Missing::Service("a target token came back without a log-prob".into()))
            }
            .boxed()
        };
        self.once(&self.logprobs, key, ask).await
    }

    async fn next_tokens(&self, prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, Missing> {
        let sampler = self.sampler.clone();
        let key = (prefix.clone(), k);
        let ask = move || {
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
        let gone = || Missing::Service("the shadow trainer has ended".into());
        let (reply, answer) = oneshot::channel();
        shadow.send(Measure { text, probe_prefix, probe_target, reply }).await.map_err(|_| gone())?;
        let shift = answer.await.map_err(|_| gone())??;
        self.queries.shifts.fetch_add(1, Relaxed);
        Ok(shift)
    }
}
