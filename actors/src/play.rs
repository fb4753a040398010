//! How an episode is played and judged, whoever asks for it: training or evaluation.
//!
//! Nothing here knows groups, lanes or credits. A failure is always a cause in words, never a number.
//!
//! No request asks for more than the model reads: an answer has at most the tokens that its prompt leaves of the context.
//! A rollout whose next prompt leaves none ends there, as at its last turn, and is scored by the answers that it has; one
//! whose first prompt leaves none fails.

use crate::activity::{Activity, Work};
use crate::clock::{RewardClock, Unhurried};
use crate::kit::unpanicked;
use crate::meters::Meters;
use crate::parcels::{Component, RolloutFailure};
use crate::policy::Policy;
use crate::retry::Retry;
use minds_core::chat::{Message, Termination};
use minds_core::environment::{Item, Oracle, Reply, Scene};
use minds_core::episode::{Episode, Turn};
use minds_core::ids::{EpisodeId, GroupId, ItemKey, Token};
use minds_core::random::draws;
use minds_core::reward::{Missing, Score};
use minds_core::sampling::{SampleRequest, Sampled, SamplingParams};
use rand::Rng;
use std::sync::Arc;
use tracing::debug;

/// A sample, or why it cannot be trained.
pub type Answer = Result<Sampled, RolloutFailure>;

/// What is played: an item under a name that decides its seeds.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    /// How it is played.
    pub component: &'a Component,
    /// What is played.
    pub item: &'a Item,
    /// Which item that is.
    pub key: ItemKey,
    /// Equal names give equal seeds.
    pub group: GroupId,
    /// The weights that play.
    pub policy: &'a Policy,
}

/// Plays with one seed, and gives up as one config says.
#[derive(Clone)]
pub struct Player {
    /// Seed of all samples.
    pub seed: u64,
    /// What to do when the service fails.
    pub retry: Retry,
    /// Who is busy when.
    pub activity: Activity,
    /// What is counted.
    pub meters: Meters,
}

impl Player {
    /// The first prompt, and the first answers of so many members to it from one request.
    ///
    /// # Errors
    /// The request failed as a whole. A sample that cannot be trained costs only its own member.
    pub async fn open(
        &self,
        table: Table<'_>,
        members: u32,
    ) -> Result<(Arc<[Token]>, Vec<Answer>), RolloutFailure> {
        let prompt: Arc<[Token]> = table.component.renderer.prompt(&table.item.prompt).into();
        let answers = self.answer(table, prompt.clone(), members, [0, 0]).await?;
        Ok((prompt, answers))
    }

    /// Plays one member once more from the start, with other samples than before; `again` counts from 1.
    ///
    /// # Errors
    /// The environment or a request failed.
    pub async fn replay(&self, table: Table<'_>, member: u32, again: u32) -> Result<Episode, RolloutFailure> {
        let prompt: Arc<[Token]> = table.component.renderer.prompt(&table.item.prompt).into();
        // Turns count from 1, and no episode has so many that it meets these.
        let stream = [u64::from(member) + 1, u64::MAX - u64::from(again)];
        let mut answers = self.answer(table, prompt.clone(), 1, stream).await?;
        let first = answers.pop().ok_or("the service returned no sample")??;
        self.finish(table, member, prompt, first).await
    }

    /// Plays one member from its first answer to its end.
    ///
    /// # Errors
    /// The environment or a later request failed.
    pub async fn finish(
        &self,
        table: Table<'_>,
        member: u32,
        prompt: Arc<[Token]>,
        first: Sampled,
    ) -> Result<Episode, RolloutFailure> {
        let Table { component, item, key, group, policy } = table;
        let mut conversation = item.prompt.clone();
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
            let reply = component.environment.reply(item, &conversation);
            let limit = component.score_timeout;
            let reply = tokio::time::timeout(limit, reply)
                .await
                .map_err(|_| format!("the environment did not reply within {} s", limit.as_secs()))?;
            match reply.map_err(|missing| RolloutFailure::from(&missing))? {
                Reply::Done => break,
                Reply::Continue(messages) => conversation.extend(messages),
            }
            prompt = component.renderer.prompt(&conversation).into();
            if prompt.len() >= component.context {
                let tokens = prompt.len();
                let turns = turns.len();
                debug!(%group, member, tokens, turns, "the context is full: the rollout ends with the answers it has");
                break;
            }
            let stream = [u64::from(member) + 1, turns.len() as u64];
            let mut answers = self.answer(table, prompt.clone(), 1, stream).await?;
            answer = answers.pop().ok_or("the service returned no sample")??;
        }
        let id = EpisodeId { group, member };
        Ok(Episode { id, item: key, policy: policy.version, turns, opening: Arc::default() })
    }

    /// The reward of an episode.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn judge(
        &self,
        component: &Component,
        item: &Item,
        episode: &Episode,
        oracle: &dyn Oracle,
    ) -> Result<Score, Missing> {
        let limit = component.score_timeout;
        let once = || async move {
            let _busy = self.activity.enter(Work::Scoring);
            // What a reward asks of the service has limits of its own, and an outage is not the reward's fault.
            let clock = RewardClock::default();
            let oracle = Unhurried { oracle, clock: &clock };
            let scene = Scene { item, episode, renderer: &*component.renderer, oracle: &oracle };
            let scoring = unpanicked(component.environment.score(scene));
            match clock.limit(limit, scoring).await {
                Some(Ok(result)) => result,
                Some(Err(panic)) => Err(Missing::Environment(panic)),
                None => Err(Missing::TimedOut(limit.as_secs())),
            }
        };
        self.retry.run("score", once).await
    }

    /// One request; an error of one sample is no error of its siblings.
    async fn answer(
        &self,
        table: Table<'_>,
        prompt: Arc<[Token]>,
        count: u32,
        stream: [u64; 2],
    ) -> Result<Vec<Answer>, RolloutFailure> {
        let seed = seed(self.seed, table.group.0, stream);
        let Component { sampling, context, .. } = table.component;
        let room = context.checked_sub(prompt.len()).filter(|room| *room > 0).ok_or_else(|| {
            format!(
                "the prompt has {} tokens, and the model reads {context}, the answer included",
                prompt.len()
            )
        })?;
        let max_tokens = sampling.max_tokens.min(room);
        let params = SamplingParams { seed: Some(seed), max_tokens, ..sampling.clone() };
        let request = SampleRequest::new(prompt, count as usize, params);
        let busy = self.activity.enter(Work::Sampling);
        let response = self.retry.run("sample", || table.policy.sampler.sample(request.clone())).await;
        drop(busy);
        let sequences = response?.sequences;
        if sequences.len() != count as usize {
            return Err(format!("{count} samples were asked for, {} came back", sequences.len()).into());
        }
        Ok(sequences.into_iter().map(check).collect())
    }
}

fn check(sampled: Sampled) -> Answer {
    match sampled.check() {
        Ok(()) => Ok(sampled),
        Err(flaw) => Err(flaw.to_string().into()),
    }
}

/// An independent seed for each request of a run, the same on every play and on every service.
pub(crate) fn seed(run: u64, group: u64, stream: [u64; 2]) -> u64 {
    // Services take seeds as signed numbers of 32 bits, and some add a sample's place to them: 30 bits fit all.
    draws([run, group, stream[0], stream[1]]).next_u64() >> 34
}
