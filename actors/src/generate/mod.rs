//! Samples and scores one rollout, for training and for evaluation.
//!
//! Nothing here depends on groups, mailboxes or credits. A failure is always an error with its cause, never a number.
//!
//! No request exceeds the model's context: a completion has at most the tokens that its prompt leaves of the context.
//! A rollout whose next prompt leaves none ends there, as at its last turn, and is scored by the completions it has;
//! one whose first prompt leaves none fails.

mod partial;
mod reward_timer;
pub mod session;

use crate::mailbox::catch_panic;
use crate::messages::{MixtureComponent, RolloutError};
use crate::policy::Policy;
use crate::service::retry::Retry;
use crate::telemetry::activity::{Activity, ActivityKind};
use crate::telemetry::meters::PipelineMeters;
use futures::future::join_all;
use minds_core::chat::{Message, Termination};
use minds_core::continuation::next_prompt;
use minds_core::environment::{EnvironmentReply, Item, Oracle, ScoringContext};
use minds_core::ids::{GroupId, ItemKey, RolloutId, Token};
use minds_core::random::seeded_rng;
use minds_core::reward::{RewardError, Score};
use minds_core::rollout::{Rollout, Turn};
use minds_core::sampling::{Completion, SampleRequest, SamplingParams};
use rand::Rng;
use reward_timer::{RewardTimer, TimerPausingOracle};
use std::sync::Arc;
use tracing::debug;

/// A sample, or why it cannot be trained.
pub type SampleResult = Result<Completion, RolloutError>;

/// One item to sample, with the group id that decides its seeds.
#[derive(Clone, Copy)]
pub struct GenerationRequest<'a> {
    /// Environment and sampling settings of the item.
    pub component: &'a MixtureComponent,
    /// The item to sample.
    pub item: &'a Item,
    /// Key of the item in the schedule.
    pub key: ItemKey,
    /// Equal ids give equal seeds.
    pub group: GroupId,
    /// The weights that sample the rollouts.
    pub policy: &'a Policy,
}

/// Samples rollouts with one seed and one retry policy.
#[derive(Clone)]
pub struct RolloutGenerator {
    /// Seed from which all sampling seeds derive.
    pub seed: u64,
    /// What to do when the service fails.
    pub retry: Retry,
    /// Busy times of the stages.
    pub activity: Activity,
    /// Counters of rollouts, rewards and tokens.
    pub meters: PipelineMeters,
    /// Whether the service records of each sample what `stable_reinforce` trains on.
    pub record_stability_info: bool,
}

impl RolloutGenerator {
    /// The first prompt, and one first completion per member, all from one request.
    ///
    /// # Errors
    /// The request failed as a whole. A sample that cannot be trained costs only its own member.
    pub async fn open(
        &self,
        task: GenerationRequest<'_>,
        members: u32,
    ) -> Result<(Arc<[Token]>, Vec<SampleResult>), RolloutError> {
        let prompt: Arc<[Token]> = task.component.renderer.prompt(&task.item.prompt)?.into();
        let answers = self.answer(task, prompt.clone(), members, [0, 0]).await?;
        Ok((prompt, answers))
    }

    /// Resamples one member from the start with other seeds; `again` counts from 1.
    ///
    /// # Errors
    /// The environment or a request failed.
    pub async fn resample(
        &self,
        task: GenerationRequest<'_>,
        member: u32,
        again: u32,
    ) -> Result<Rollout, RolloutError> {
        let prompt: Arc<[Token]> = task.component.renderer.prompt(&task.item.prompt)?.into();
        // Turns count from 1, and no rollout has enough turns to collide with these streams.
        let stream = [u64::from(member) + 1, u64::MAX - u64::from(again)];
        let mut answers = self.answer(task, prompt.clone(), 1, stream).await?;
        let first = answers.pop().ok_or_else(no_sample)??;
        self.finish(task, member, prompt, first).await
    }

    /// Samples one member from its first completion to its end.
    ///
    /// # Errors
    /// The environment or a later request failed.
    pub async fn finish(
        &self,
        task: GenerationRequest<'_>,
        member: u32,
        prompt: Arc<[Token]>,
        first: Completion,
    ) -> Result<Rollout, RolloutError> {
        let GenerationRequest { component, item, key, group, policy } = task;
        let mut rollout = Rollout::new(RolloutId { group, member }, key, policy.version);
        let mut conversation = item.prompt.clone();
        let mut prompt = prompt;
        let mut answer = first;
        loop {
            let parsed = component.renderer.parse(&answer);
            conversation.push(Message::assistant(parsed.text.clone()));
            let answered = conversation.len();
            let complete = parsed.termination == Termination::Stop;
            rollout.turns.push(Turn { prompt, completion: answer, text: parsed.text, complete });
            let turns = rollout.turns.len();
            if turns as u32 >= component.max_turns {
                break;
            }
            let reply = component.environment.reply(item, &conversation);
            let limit = component.score_timeout;
            let reply = tokio::time::timeout(limit, reply)
                .await
                .map_err(|_| RolloutError::ReplyTimedOut(limit.as_secs()))?;
            match reply.map_err(RolloutError::Reply)? {
                EnvironmentReply::Done => break,
                EnvironmentReply::Continue(messages) => conversation.extend(messages),
            }
            // The environment may have added messages after the completion, and none before it.
            prompt = match rollout.turns.last() {
                Some(before) => next_prompt(&*component.renderer, before, answered, &conversation)?.into(),
                None => component.renderer.prompt(&conversation)?.into(),
            };
            if prompt.len() >= component.context {
                let tokens = prompt.len();
                debug!(%group, member, tokens, turns, "the context is full: the rollout ends with the answers it has");
                break;
            }
            let stream = [u64::from(member) + 1, turns as u64];
            let mut answers = self.answer(task, prompt.clone(), 1, stream).await?;
            answer = answers.pop().ok_or_else(no_sample)??;
        }
        Ok(rollout)
    }

    /// The reward of a rollout.
    ///
    /// # Errors
    /// The reason why the reward is missing.
    pub async fn score(
        &self,
        component: &MixtureComponent,
        item: &Item,
        rollout: &Rollout,
        oracle: &dyn Oracle,
    ) -> Result<Score, RewardError> {
        let limit = component.score_timeout;
        let once = || async move {
            let _busy = self.activity.enter(ActivityKind::Scoring);
            // Requests of a reward to the service have limits of their own, and an outage is not the reward's fault.
            let clock = RewardTimer::default();
            let oracle = TimerPausingOracle { oracle, clock: &clock };
            let scene = ScoringContext { item, rollout, renderer: &*component.renderer, oracle: &oracle };
            let scoring = catch_panic(component.environment.score(scene));
            let limited = !component.environment.limits_reward_time();
            let scored = if limited { clock.limit(limit, scoring).await } else { Some(scoring.await) };
            match scored {
                Some(Ok(result)) => result,
                Some(Err(panic)) => Err(RewardError::Environment(panic)),
                None => Err(RewardError::TimedOut(limit.as_secs())),
            }
        };
        self.retry.run("score", once).await
    }

    /// One request; an error of one sample does not affect its siblings.
    async fn answer(
        &self,
        task: GenerationRequest<'_>,
        prompt: Arc<[Token]>,
        count: u32,
        stream: [u64; 2],
    ) -> Result<Vec<SampleResult>, RolloutError> {
        let seed = seed(self.seed, task.group.0, stream);
        let MixtureComponent { sampling, context, .. } = task.component;
        let room = context.checked_sub(prompt.len()).filter(|room| *room > 0).ok_or_else(|| {
            let tokens = prompt.len();
            RolloutError::Sampling(format!(
                "the prompt has {tokens} tokens, and the model reads {context}, the answer included"
            ))
        })?;
        let max_tokens = sampling.max_tokens.min(room);
        let params = SamplingParams { seed: Some(seed), max_tokens, ..sampling.clone() };
        let record_stability_info = self.record_stability_info;
        let request =
            SampleRequest { record_stability_info, ..SampleRequest::new(prompt, count as usize, params) };
        let busy = self.activity.enter(ActivityKind::Sampling);
        let response = self.retry.run("sample", || task.policy.sampler.sample(request.clone())).await;
        let sequences = response?.sequences;
        if sequences.len() != count as usize {
            let came = sequences.len();
            return Err(RolloutError::Sampling(format!("{count} samples were requested, {came} arrived")));
        }
        let sampler = &*task.policy.sampler;
        let continued = (0_u64..).zip(sequences).map(|(index, sampled)| {
            let request = &request;
            async move { check(self.continued(sampler, request, index, sampled).await?) }
        });
        let answers = join_all(continued).await;
        drop(busy);
        Ok(answers)
    }
}

fn check(sampled: Completion) -> SampleResult {
    match sampled.check() {
        Ok(()) => Ok(sampled),
        Err(flaw) => Err(RolloutError::Sampling(flaw.to_string())),
    }
}

pub(crate) fn no_sample() -> RolloutError {
    RolloutError::Sampling("the service returned no sample".into())
}

/// An independent seed for each request of a run, the same on every attempt and on every service.
pub(crate) fn seed(run: u64, group: u64, stream: [u64; 2]) -> u64 {
    // Services take seeds as signed numbers of 32 bits, and some add a sample's index to them: 30 bits fit all.
    seeded_rng([run, group, stream[0], stream[1]]).next_u64() >> 34
}
