//! Seats for environments that play by themselves.
//!
//! A seat is tied to one version of the weights: however late its environment asks, it is answered by the version
//! that was stamped when the group was dispatched. Requests are tried again and seeded as those of any other episode.

use crate::activity::Work;
use crate::play::{Player, seed};
use crate::policy::Policy;
use async_trait::async_trait;
use minds_core::backend::{BackendError, SamplingBackend};
use minds_core::datum::Datum;
use minds_core::environment::{Borrowed, Conductor, Item, Oracle, Performance, Seat, Shift};
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
        let asked = AtomicU64::new(u64::from(again) << 32);
        let voice = Arc::new(Voice { player: self.clone(), episode, policy, asked });
        let (left, outcome) = oneshot::channel();
        // Nobody waits any more for a seat whose group was given up.
        let exit = move |result| drop(left.send(result));
        (Seat::new(episode, voice.clone(), voice, exit), outcome)
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

/// One version of the weights as one seat asks it.
struct Voice {
    player: Player,
    episode: EpisodeId,
    policy: Arc<Policy>,
    asked: AtomicU64,
}

#[async_trait]
impl SamplingBackend for Voice {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        let EpisodeId { group, member } = self.episode;
        let stream = [u64::from(member) + 1, self.asked.fetch_add(1, Relaxed)];
        let params = SamplingParams { seed: Some(seed(self.player.seed, group.0, stream)), ..request.params };
        let request = SampleRequest { params, ..request };
        let _busy = self.player.activity.enter(Work::Sampling);
        self.player.retry.run("sample", || self.policy.sampler.sample(request.clone())).await
    }
}

#[async_trait]
impl Oracle for Voice {
    async fn logprobs(&self, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, Missing> {
        let ask = || self.policy.oracle.logprobs(prefix.clone(), target.clone());
        self.player.retry.run("logprobs", ask).await
    }

    async fn next_tokens(&self, prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, Missing> {
        self.player.retry.run("next_tokens", || self.policy.oracle.next_tokens(prefix.clone(), k)).await
    }

    async fn shift(&self, text: Datum, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Shift, Missing> {
        self.policy.oracle.shift(text, prefix, target).await
    }

    async fn borrow_adapter(&self) -> Result<Borrowed, Missing> {
        self.policy.oracle.borrow_adapter().await
    }
}
