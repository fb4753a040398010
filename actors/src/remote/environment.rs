//! An environment whose rewards and rollouts are made by workers.
//!
//! It takes the place of the environment itself, so that the stages do not know the difference. Items, replies and what
//! is read in a completion stay in the run: they are cheap, or must come in one order.

use super::dispatcher::{Answerer, Dispatcher};
use super::message::{Answer, Job, JobResult, Outcome, Query, SessionStamp, Work, encode};
use super::names::hash;
use async_trait::async_trait;
use futures::future::join_all;
use minds_core::chat::Message;
use minds_core::environment::{
    Environment, EnvironmentReply, Item, Oracle, RolloutSession, ScoringContext, SelfDrivenEnvironment,
    SessionError, SessionRollout,
};
use minds_core::ids::RolloutId;
use minds_core::reward::{RewardError, Score};
use minds_core::service::{BackendError, SamplingBackend};
use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::Arc;

/// An environment of a run whose jobs go to workers.
pub struct RemoteEnvironment {
    name: String,
    local: Arc<dyn Environment>,
    dispatcher: Dispatcher,
}

impl RemoteEnvironment {
    /// Hands the rewards and rollouts of `local`, which has this name in the run, to workers.
    #[must_use]
    pub fn new(name: impl Into<String>, local: Arc<dyn Environment>, dispatcher: Dispatcher) -> Self {
        Self { name: name.into(), local, dispatcher }
    }

    async fn submit(
        &self,
        rollout: RolloutId,
        attempt: u32,
        work: Work<'_>,
        answerer: &dyn Answerer,
    ) -> Outcome {
        let job = encode(&Job { environment: Cow::Borrowed(&self.name), work });
        let content = hash(&[self.dispatcher.salt().as_bytes(), self.name.as_bytes(), &job]);
        let RolloutId { group, member } = rollout;
        let id = format!("{}-{member}-{attempt}-{}", group.0, &content[..32]);
        let JobResult { outcome, .. } = self.dispatcher.submit(id, &self.name, job, answerer).await;
        outcome
    }
}

#[async_trait]
impl Environment for RemoteEnvironment {
    fn id(&self) -> &str {
        self.local.id()
    }

    fn items(&self) -> NonZeroU64 {
        self.local.items()
    }

    fn strata(&self) -> NonZeroU64 {
        self.local.strata()
    }

    fn item(&self, index: u64) -> Item {
        self.local.item(index)
    }

    /// The worker does; the time in the queue does not count.
    fn limits_reward_time(&self) -> bool {
        true
    }

    fn needs_shadow_adapters(&self) -> bool {
        self.local.needs_shadow_adapters()
    }

    fn parse(&self, item: &Item, answer: &str) -> Option<serde_json::Value> {
        self.local.parse(item, answer)
    }

    async fn reply(&self, item: &Item, conversation: &[Message]) -> Result<EnvironmentReply, RewardError> {
        self.local.reply(item, conversation).await
    }

    async fn score(&self, scene: ScoringContext<'_>) -> Result<Score, RewardError> {
        let work = Work::Score { item: Cow::Borrowed(scene.item), rollout: Cow::Borrowed(scene.rollout) };
        match self.submit(scene.rollout.id, 0, work, &RewardAnswerer(scene.oracle)).await {
            Outcome::Scored(score) => score,
            Outcome::Generated(_) => Err(wrong_kind()),
            Outcome::Dead(cause) => Err(dead(&cause)),
        }
    }

    fn self_driven(&self) -> Option<&dyn SelfDrivenEnvironment> {
        self.local.self_driven().map(|_| self as &dyn SelfDrivenEnvironment)
    }
}

#[async_trait]
impl SelfDrivenEnvironment for RemoteEnvironment {
    async fn run_rollouts(&self, item: &Item, sessions: Vec<RolloutSession>) {
        if self.compares_rollouts() {
            self.generate(item, sessions).await;
        } else {
            join_all(sessions.into_iter().map(|session| self.generate(item, vec![session]))).await;
        }
    }

    fn compares_rollouts(&self) -> bool {
        self.local.self_driven().is_some_and(SelfDrivenEnvironment::compares_rollouts)
    }
}

impl RemoteEnvironment {
    /// Generates rollouts of one group in one job.
    async fn generate(&self, item: &Item, sessions: Vec<RolloutSession>) {
        let Some(first) = sessions.first() else { return };
        let stamp = |session: &RolloutSession| SessionStamp {
            rollout: session.rollout,
            attempt: session.attempt,
            policy: session.policy,
        };
        let stamps = sessions.iter().map(stamp).collect();
        let work = Work::Generate { item: Cow::Borrowed(item), sessions: stamps };
        let (rollout, attempt) = (first.rollout, first.attempt);
        let answerer = SessionAnswerer(
            sessions.iter().map(|session| (session.sampler.clone(), session.oracle.clone())).collect(),
        );
        let outcome = self.submit(rollout, attempt, work, &answerer).await;
        let failed = |why: RewardError| Err::<SessionRollout, SessionError>(why.into());
        let results = match outcome {
            Outcome::Generated(results) if results.len() == sessions.len() => results,
            Outcome::Generated(_) | Outcome::Scored(_) => vec![failed(wrong_kind()); sessions.len()],
            Outcome::Dead(cause) => vec![failed(dead(&cause)); sessions.len()],
        };
        for (session, result) in sessions.into_iter().zip(results) {
            session.finish(result);
        }
    }
}

fn wrong_kind() -> RewardError {
    RewardError::Environment("its worker sent the result of another kind of job".into())
}

fn dead(cause: &str) -> RewardError {
    RewardError::Environment(format!("no worker finished it: {cause}"))
}

fn unsupported() -> BackendError {
    BackendError::Unsupported("a reward has no rollout to sample for".into())
}

/// What `oracle` answers to a query about the weights; `None` if it is none.
async fn ask_oracle(oracle: &dyn Oracle, query: Query) -> Result<Answer, Query> {
    Ok(match query {
        Query::Wanted { .. } => Answer::Wanted(true),
        Query::Logprobs(prefix, target) => Answer::Logprobs(oracle.logprobs(prefix, target).await),
        Query::NextTokens(prefix, k) => Answer::NextTokens(oracle.next_tokens(prefix, k).await),
        Query::LogprobDelta(text, prefix, target) => {
            Answer::LogprobDelta(oracle.logprob_delta(text, prefix, target).await)
        }
        Query::Sample(request, Some(weights)) => Answer::Sampled(match oracle.frozen(weights).await {
            Ok(sampler) => sampler.sample(request).await,
            Err(error) => Err(without_weights(error)),
        }),
        Query::TokenLogprobs(tokens, Some(weights)) => {
            Answer::TokenLogprobs(match oracle.frozen(weights).await {
                Ok(sampler) => sampler.logprobs(tokens).await,
                Err(error) => Err(without_weights(error)),
            })
        }
        query @ (Query::Sample(_, None) | Query::TokenLogprobs(_, None)) => return Err(query),
    })
}

fn without_weights(error: RewardError) -> BackendError {
    match error {
        RewardError::Service(why) => BackendError::Unavailable(why),
        RewardError::Away(why) => BackendError::Away(why),
        RewardError::Refused(why) => BackendError::Rejected(why),
        other => BackendError::Unsupported(other.to_string()),
    }
}

/// Answers what a reward asks.
struct RewardAnswerer<'a>(&'a dyn Oracle);

#[async_trait]
impl Answerer for RewardAnswerer<'_> {
    async fn answer(&self, _session: usize, query: Query) -> Answer {
        match ask_oracle(self.0, query).await {
            Ok(answer) => answer,
            Err(Query::TokenLogprobs(..)) => Answer::TokenLogprobs(Err(unsupported())),
            Err(_) => Answer::Sampled(Err(unsupported())),
        }
    }
}

/// Answers what a self-driven environment asks: the sampler and the oracle of each session.
struct SessionAnswerer(Vec<(Arc<dyn SamplingBackend>, Arc<dyn Oracle>)>);

#[async_trait]
impl Answerer for SessionAnswerer {
    async fn answer(&self, session: usize, query: Query) -> Answer {
        let Some((sampler, oracle)) = self.0.get(session) else { return Answer::NotYours };
        match ask_oracle(&**oracle, query).await {
            Ok(answer) => answer,
            Err(Query::TokenLogprobs(tokens, _)) => Answer::TokenLogprobs(sampler.logprobs(tokens).await),
            Err(Query::Sample(request, _)) => Answer::Sampled(sampler.sample(request).await),
            Err(_) => Answer::NotYours,
        }
    }
}
