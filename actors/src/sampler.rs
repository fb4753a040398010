//! Plays groups: one request for the first answer of all members, then each member on its own.
//!
//! Every member leaves exactly once, as an episode or as the cause of its failure. The policy version is stamped
//! when the group's first request is sent. A sample that cannot be trained costs only its own
//! member. A group's slot is kept until its last member has left.

use crate::activity::{Activity, Work};
use crate::kit::{Board, Outlet, Parcel, unpanicked};
use crate::parcels::{Group, Played};
use crate::policy::Policy;
use crate::retry::Retry;
use actix::prelude::{Actor, Context, Handler};
use futures::future::join_all;
use minds_core::chat::{Message, Termination};
use minds_core::environment::Reply;
use minds_core::episode::{Episode, Turn};
use minds_core::ids::{EpisodeId, Token};
use minds_core::sampling::{SampleRequest, Sampled, SamplingParams};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use tokio::sync::watch;

const NAME: &str = "sampler";

/// The second stage. Cheap to clone: each group is played by a task of its own.
#[derive(Clone)]
pub struct Sampler {
    /// The newest weights.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// Seed of the run's samples.
    pub seed: u64,
    /// What to do when the service fails.
    pub retry: Retry,
    /// Who is busy when.
    pub activity: Activity,
    /// Where the stage tells how it is.
    pub board: Board,
    /// To the scorer.
    pub episodes: Outlet<Played>,
}

impl Actor for Sampler {
    type Context = Context<Self>;
}

impl Handler<Parcel<Arc<Group>>> for Sampler {
    type Result = ();

    fn handle(&mut self, parcel: Parcel<Arc<Group>>, _: &mut Self::Context) {
        let (group, slot) = parcel.open();
        let stage = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = stage.play(group) => {}
                () = stage.episodes.closed() => {} // nobody will take the episodes
            }
            drop(slot);
        });
    }
}

impl Sampler {
    async fn play(&self, group: Arc<Group>) {
        self.board.update(NAME, |s| s.busy += 1);
        // The version is stamped here, before the first await.
        let policy = self.policy.borrow().clone();
        group.credit.playing(policy.version);
        let size = group.component.group_size.get();
        let (prompt, firsts) = match unpanicked(self.open(&group, &policy)).await.and_then(|opened| opened) {
            Ok(opened) => opened,
            Err(why) => (Arc::default(), vec![Err(why); size as usize]),
        };
        join_all((0_u32..).zip(firsts).map(|(member, first)| {
            let (group, policy, prompt) = (group.clone(), policy.clone(), prompt.clone());
            async move {
                let outcome = match first {
                    Ok(first) => unpanicked(self.finish(&group, &policy, member, prompt, first))
                        .await
                        .and_then(|episode| episode),
                    Err(why) => Err(why),
                };
                self.board.update(NAME, |s| if outcome.is_ok() { s.done += 1 } else { s.failed += 1 });
                // A refusal means that the run is over; dropping the last member gives the credit back.
                drop(self.episodes.send(Played { group, member, policy, outcome }).await);
            }
        }))
        .await;
        self.board.update(NAME, |s| s.busy -= 1);
    }

    /// The first prompt, and every member's first answer to it from one request.
    async fn open(&self, group: &Group, policy: &Policy) -> Result<(Arc<[Token]>, Vec<Answer>), String> {
        let prompt: Arc<[Token]> = group.component.renderer.prompt(&group.item.prompt).into();
        let size = group.component.group_size.get();
        let answers = self.answer(group, policy, prompt.clone(), size, [0, 0]).await?;
        Ok((prompt, answers))
    }

    /// Plays one member from its first answer to its end.
    async fn finish(
        &self,
        group: &Arc<Group>,
        policy: &Arc<Policy>,
        member: u32,
        prompt: Arc<[Token]>,
        first: Sampled,
    ) -> Result<Episode, String> {
        let component = &group.component;
        let mut conversation = group.item.prompt.clone();
        let (mut prompt, mut answer) = (prompt, first);
        let mut turns = Vec::new();
        loop {
            let parsed = component.renderer.parse(&answer);
            conversation.push(Message::assistant(parsed.text.clone()));
            let complete = parsed.termination == Termination::Stop;
            turns.push(Turn { prompt, answer, text: parsed.text, complete });
            if turns.len() as u32 >= component.max_turns {
                break;
            }
            let reply = component.environment.reply(&group.item, &conversation);
            let limit = component.score_timeout;
            let reply = tokio::time::timeout(limit, reply)
                .await
                .map_err(|_| format!("the environment did not reply within {} s", limit.as_secs()))?;
            match reply.map_err(|e| e.to_string())? {
                Reply::Done => break,
                Reply::Continue(messages) => conversation.extend(messages),
            }
            prompt = component.renderer.prompt(&conversation).into();
            let stream = [u64::from(member) + 1, turns.len() as u64];
            let mut answers = self.answer(group, policy, prompt.clone(), 1, stream).await?;
            answer = answers.pop().ok_or("the service returned no sample")??;
        }
        let id = EpisodeId { group: group.id, member };
        Ok(Episode { id, item: group.key, policy: policy.version, turns })
    }

    /// One request; an error of one sample is no error of its siblings.
    async fn answer(
        &self,
        group: &Group,
        policy: &Policy,
        prompt: Arc<[Token]>,
        count: u32,
        stream: [u64; 2],
    ) -> Result<Vec<Answer>, String> {
        let seed = seed(self.seed, group.id.0, stream);
        let params = SamplingParams { seed: Some(seed), ..group.component.sampling.clone() };
        let request = SampleRequest::new(prompt, count as usize, params);
        let busy = self.activity.enter(Work::Sampling);
        let response = self.retry.run("sample", || policy.sampler.sample(request.clone())).await;
        drop(busy);
        let sequences = response.map_err(|e| e.to_string())?.sequences;
        if sequences.len() != count as usize {
            return Err(format!("{count} samples were asked for, {} came back", sequences.len()));
        }
        Ok(sequences.into_iter().map(check).collect())
    }
}

/// A sample, or why it cannot be trained.
type Answer = Result<Sampled, String>;

fn check(sampled: Sampled) -> Answer {
    let Sampled { tokens, logprobs, .. } = &sampled;
    if tokens.is_empty() || tokens.len() != logprobs.len() {
        return Err(format!(
            "a sample of {} tokens came back with {} log-probs",
            tokens.len(),
            logprobs.len()
        ));
    }
    match logprobs.iter().position(|lp| !lp.is_finite()) {
        Some(at) => Err(format!("token {at} of a sample came back with the log-prob {}", logprobs[at])),
        None => Ok(sampled),
    }
}

/// An independent seed for each request of a run, the same on every play.
fn seed(run: u64, group: u64, stream: [u64; 2]) -> u64 {
    let mut key = [0_u8; 32];
    for (bytes, word) in key.chunks_exact_mut(8).zip([run, group, stream[0], stream[1]]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    // Services take seeds as signed numbers.
    ChaCha8Rng::from_seed(key).next_u64() >> 1
}
