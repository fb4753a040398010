//! Seats for environments that play by themselves.
//!
//! A seat is tied to one version of the weights: however late its environment asks, it is answered by the version
//! that was stamped when the group was dispatched. Requests are tried again and seeded as those of any other episode.

use crate::activity::Work;
use crate::play::{Player, seed};
use crate::policy::Policy;
use crate::retry::Retry;
use async_trait::async_trait;
use minds_core::backend::{BackendError, SamplingBackend};
use minds_core::datum::Datum;
use minds_core::environment::{Borrowed, Conductor, FrozenWeights, Item, Oracle, Performance, Seat, Shift};
use minds_core::ids::{EpisodeId, Token};
use minds_core::reward::Missing;
use minds_core::sampling::{SampleRequest, SampleResponse, SamplingParams};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::oneshot;

/// What will come out of a seat.
pub type Outcome = oneshot::Receiver<Result<Performance, Missing>>;

impl Player {
    /// A seat, and what will come out of it. `again` says how often it was played before: its samples are others.
    #[must_use]
    pub fn seat(&self, episode: EpisodeId, again: u32, policy: Arc<Policy>) -> (Seat, Outcome) {
        // No episode has so many requests that it meets those of the next time.
        let asked = Arc::new(AtomicU64::new(u64::from(again) << 32));
        let sampler = SeatSampler { player: self.clone(), episode, asked, inner: policy.sampler.clone() };
        let oracle = Arc::new(Voice { sampler: sampler.clone(), policy });
        let (left, outcome) = oneshot::channel();
        // Nobody waits any more for a seat whose group was given up.
        let exit = move |result| drop(left.send(result));
        (Seat::new(episode, Arc::new(sampler), oracle, exit), outcome)
    }

    /// Has one seat played.
    ///
    /// # Errors
    /// Why there is no episode with a reward.
    pub async fn perform(
        &self,
        conductor: &dyn Conductor,
        item: &Item,
        episode: EpisodeId,
        again: u32,
        policy: Arc<Policy>,
    ) -> Result<Performance, Missing> {
        let (seat, outcome) = self.seat(episode, again, policy);
        conductor.play(item, vec![seat]).await;
        left(outcome).await
    }
}

/// Waits until a seat is left.
///
/// # Errors
/// Why there is no episode with a reward.
pub async fn left(outcome: Outcome) -> Result<Performance, Missing> {
    let result = outcome.await.unwrap_or_else(|_| Err(Missing::Environment("it gave no result".into())));
    let performance = result?;
    if performance.turns.is_empty() {
        return Err(Missing::Environment("it did not ask the policy once".into()));
    }
    Ok(performance)
}

/// Fixed weights as one seat samples from them.
#[derive(Clone)]
struct SeatSampler {
    player: Player,
    episode: EpisodeId,
    /// Requests of the seat so far.
    asked: Arc<AtomicU64>,
    inner: Arc<dyn SamplingBackend>,
}

#[async_trait]
impl SamplingBackend for SeatSampler {
    /// A request that brings a seed of its own keeps it.
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        let EpisodeId { group, member } = self.episode;
        let stream = [u64::from(member) + 1, self.asked.fetch_add(1, Relaxed)];
        let own = seed(self.player.seed, group.0, stream);
        let params = SamplingParams { seed: Some(request.params.seed.unwrap_or(own)), ..request.params };
        let request = SampleRequest { params, ..request };
        let _busy = self.player.activity.enter(Work::Sampling);
        self.player.retry.run("sample", || self.inner.sample(request.clone())).await
    }

    async fn logprobs(&self, tokens: Arc<[Token]>) -> Result<Vec<Option<f32>>, BackendError> {
        self.player.retry.run("logprobs", || self.inner.logprobs(tokens.clone())).await
    }
}

/// One version of the weights as the rewards of one seat ask it.
struct Voice {
    sampler: SeatSampler,
    policy: Arc<Policy>,
}

impl Voice {
    fn retry(&self) -> &Retry {
        &self.sampler.player.retry
    }
}

#[async_trait]
impl Oracle for Voice {
    async fn logprobs(&self, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, Missing> {
        let ask = || self.policy.oracle.logprobs(prefix.clone(), target.clone());
        self.retry().run("logprobs", ask).await
    }

    async fn next_tokens(&self, prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, Missing> {
        self.retry().run("next_tokens", || self.policy.oracle.next_tokens(prefix.clone(), k)).await
    }

    async fn shift(&self, text: Datum, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Shift, Missing> {
        self.policy.oracle.shift(text, prefix, target).await
    }

    async fn borrow_adapter(&self) -> Result<Borrowed, Missing> {
        self.policy.oracle.borrow_adapter().await
    }

    async fn frozen(&self, weights: FrozenWeights) -> Result<Arc<dyn SamplingBackend>, Missing> {
        let ask = || self.policy.oracle.frozen(weights.clone());
        let inner = self.retry().run("weights", ask).await?;
        Ok(Arc::new(SeatSampler { inner, ..self.sampler.clone() }))
    }
}
