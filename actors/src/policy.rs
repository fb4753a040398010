//! The weights that play, and the questions rewards ask them.
//!
//! Every version carries its own memory of answers, so an answer can never come from other weights, and the memory
//! goes when the last episode of that version has been judged.

use async_trait::async_trait;
use dashmap::DashMap;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use minds_core::backend::SamplingBackend;
use minds_core::environment::Oracle;
use minds_core::ids::{PolicyVersion, Token};
use minds_core::reward::Missing;
use minds_core::sampling::{SampleRequest, SamplingParams};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

/// How often rewards asked.
#[derive(Debug, Default)]
pub struct Queries {
    /// Questions sent to the service.
    pub sent: AtomicU64,
    /// Questions answered from memory, or by joining one under way.
    pub remembered: AtomicU64,
}

/// Most answers kept per version. A full memory starts anew; answers under way are not lost to those who wait.
const MEMORY: usize = 1 << 14;

type Answer<T> = Shared<BoxFuture<'static, Result<Arc<[T]>, Missing>>>;
type Memory<K, T> = DashMap<K, Answer<T>>;

/// Asks a sampler for log-probs; equal questions are asked once, also while the answer is under way.
pub struct Interviewer {
    sampler: Arc<dyn SamplingBackend>,
    queries: Arc<Queries>,
    logprobs: Memory<(Arc<[Token]>, Arc<[Token]>), f32>,
    next: Memory<(Arc<[Token]>, usize), (Token, f32)>,
}

impl Interviewer {
    /// Nothing asked yet.
    #[must_use]
    pub fn new(sampler: Arc<dyn SamplingBackend>, queries: Arc<Queries>) -> Self {
        Self { sampler, queries, logprobs: DashMap::new(), next: DashMap::new() }
    }

    async fn once<K, T>(
        &self,
        memory: &Memory<K, T>,
        key: K,
        ask: impl FnOnce() -> BoxFuture<'static, Result<Arc<[T]>, Missing>>,
    ) -> Result<Arc<[T]>, Missing>
    where
        K: Eq + std::hash::Hash + Clone,
    {
        if memory.len() >= MEMORY {
            memory.clear();
        }
        let mut first = false;
        let answer = memory
            .entry(key.clone())
            .or_insert_with(|| {
                first = true;
                ask().shared()
            })
            .clone();
        let counter = if first { &self.queries.sent } else { &self.queries.remembered };
        counter.fetch_add(1, Relaxed);
        let result = answer.await;
        if result.is_err() {
            memory.remove(&key); // whoever asks again, asks the service
        }
        result
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
}
