//! An environment whose rewards and rollouts are computed by workers.
//!
//! It replaces the local environment, so that the stages need no special case. Items, replies and the parsing of
//! completions stay in the run, because they are cheap or depend on their order.

use super::dispatcher::{Answerer, Dispatcher};
use super::message::{
    Answer, Job, JobResult, JobWork, LeasedAdapterRequest, Outcome, Query, SampledWeights, SessionStamp,
    encode,
};
use super::names::hash;
use async_trait::async_trait;
use futures::future::join_all;
use minds_core::chat::Message;
use minds_core::environment::{
    AdapterLease, Environment, EnvironmentReply, Item, Oracle, RolloutSession, ScoringContext,
    SelfDrivenEnvironment, SessionError, SessionRollout,
};
use minds_core::ids::RolloutId;
use minds_core::reward::{RewardError, Score};
use minds_core::service::{BackendError, SamplingBackend};
use std::borrow::Cow;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An environment of a run that sends its jobs to workers.
pub struct RemoteEnvironment {
    name: String,
    local: Arc<dyn Environment>,
    dispatcher: Dispatcher,
}

impl RemoteEnvironment {
    /// Sends the rewards and rollouts of `local` to workers. `name` is the environment's name in the run.
    #[must_use]
    pub fn new(name: impl Into<String>, local: Arc<dyn Environment>, dispatcher: Dispatcher) -> Self {
        Self { name: name.into(), local, dispatcher }
    }

    async fn submit(
        &self,
        rollout: RolloutId,
        attempt: u32,
        work: JobWork<'_>,
        answerer: &dyn Answerer,
    ) -> Outcome {
        let job = Job { environment: Cow::Borrowed(&self.name), work };
        let content = hash(&[self.dispatcher.salt().as_bytes(), self.name.as_bytes(), &encode(&job)]);
        let RolloutId { group, member } = rollout;
        let id = format!("{}-{member}-{attempt}-{}", group.0, &content[..32]);
        let JobResult { outcome, .. } = self.dispatcher.submit(&id, &job, answerer).await;
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

    /// The worker limits the time, so the time in the queue does not count.
    fn limits_reward_time(&self) -> bool {
        true
    }

    fn queries_policy(&self) -> bool {
        self.local.queries_policy()
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
        let work = JobWork::Score { item: Cow::Borrowed(scene.item), rollout: Cow::Borrowed(scene.rollout) };
        let answerer = RewardAnswerer(RolloutAnswerer::new(scene.oracle, None));
        match self.submit(scene.rollout.id, 0, work, &answerer).await {
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
    /// Generates the rollouts of these sessions, all of one group, in one job.
    async fn generate(&self, item: &Item, sessions: Vec<RolloutSession>) {
        let Some(first) = sessions.first() else { return };
        let stamp = |session: &RolloutSession| SessionStamp {
            rollout: session.rollout,
            attempt: session.attempt,
            policy: session.policy,
        };
        let stamps = sessions.iter().map(stamp).collect();
        let work = JobWork::Generate { item: Cow::Borrowed(item), sessions: stamps };
        let rollout = first.rollout;
        let attempt = first.attempt;
        let parts: Vec<_> =
            sessions.iter().map(|session| (session.oracle.clone(), session.sampler.clone())).collect();
        let answerers =
            parts.iter().map(|(oracle, sampler)| RolloutAnswerer::new(&**oracle, Some(sampler.clone())));
        let answerer = SessionAnswerer(answerers.collect());
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
    RewardError::Environment("its worker sent a result of the wrong kind".into())
}

fn dead(cause: &str) -> RewardError {
    RewardError::Environment(format!("no worker finished it: {cause}"))
}

fn without_weights(error: RewardError) -> BackendError {
    match error {
        RewardError::Service(why) => BackendError::Unavailable(why),
        RewardError::Away(why) => BackendError::Away(why),
        RewardError::Refused(why) => BackendError::Rejected(why),
        other => BackendError::Unsupported(other.to_string()),
    }
}

/// Answers the questions of a job about the model, with the sampler and the oracle of one rollout.
struct RolloutAnswerer<'a> {
    oracle: &'a dyn Oracle,
    /// Sampler of a self-driven environment; `None` for a reward, which may not sample from the policy.
    sampler: Option<Arc<dyn SamplingBackend>>,
    adapter: Mutex<SessionAdapter>,
}

/// The adapter that a session has leased, and its exports.
#[derive(Default)]
struct SessionAdapter {
    lease: Option<AdapterLease>,
    exports: Vec<Arc<dyn SamplingBackend>>,
}

impl<'a> RolloutAnswerer<'a> {
    fn new(oracle: &'a dyn Oracle, sampler: Option<Arc<dyn SamplingBackend>>) -> Self {
        Self { oracle, sampler, adapter: Mutex::default() }
    }

    fn adapter(&self) -> MutexGuard<'_, SessionAdapter> {
        self.adapter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer(&self, query: Query) -> Answer {
        match query {
            // The dispatcher handles both itself.
            Query::Wanted { .. } | Query::HandedBack => Answer::NotYours,
            Query::Logprobs(prefix, target) => Answer::Logprobs(self.oracle.logprobs(prefix, target).await),
            Query::NextTokens(prefix, k) => Answer::NextTokens(self.oracle.next_tokens(prefix, k).await),
            Query::LogprobDelta(text, prefix, target) => {
                Answer::LogprobDelta(self.oracle.logprob_delta(text, prefix, target).await)
            }
            Query::Sample(request, weights) => Answer::Sampled(match self.sampler(weights).await {
                Ok(sampler) => sampler.sample(request).await,
                Err(error) => Err(error),
            }),
            Query::TokenLogprobs { tokens, from, weights } => {
                Answer::TokenLogprobs(match self.sampler(weights).await {
                    Ok(sampler) => sampler.logprobs_from(tokens, from).await,
                    Err(error) => Err(error),
                })
            }
            Query::LeaseAdapter => Answer::Leased(self.oracle.lease_adapter().await.map(|lease| {
                self.adapter().lease = Some(lease);
            })),
            Query::Train(request) => self.train(request).await,
        }
    }

    async fn sampler(&self, weights: SampledWeights) -> Result<Arc<dyn SamplingBackend>, BackendError> {
        let missing = |what: &str| BackendError::Unsupported(format!("there is no {what}"));
        match weights {
            SampledWeights::Policy => self.sampler.clone().ok_or_else(|| missing("rollout to sample for")),
            SampledWeights::Frozen(weights) => self.oracle.frozen(weights).await.map_err(without_weights),
            SampledWeights::Exported(number) => {
                self.adapter().exports.get(number).cloned().ok_or_else(|| missing("such export"))
            }
        }
    }

    /// Submits a request to the adapter immediately, and waits for its result.
    async fn train(&self, request: LeasedAdapterRequest) -> Answer {
        let training = self.adapter().lease.as_ref().map(|lease| lease.training.clone());
        let missing = || BackendError::Unsupported("the job has leased no adapter".into());
        match request {
            LeasedAdapterRequest::Forward(data, loss) => Answer::Passed(match training {
                Some(training) => training.forward(data, loss).await,
                None => Err(missing()),
            }),
            LeasedAdapterRequest::ForwardBackward(data, loss) => Answer::Passed(match training {
                Some(training) => training.forward_backward(data, loss).await,
                None => Err(missing()),
            }),
            LeasedAdapterRequest::OptimStep(params) => Answer::Stepped(match training {
                Some(training) => training.optim_step(params).await,
                None => Err(missing()),
            }),
            LeasedAdapterRequest::Export => Answer::Exported(match training {
                Some(training) => training.export_sampler(None).await.map(|export| {
                    let exports = &mut self.adapter().exports;
                    exports.push(export.sampler);
                    exports.len() - 1
                }),
                None => Err(missing()),
            }),
        }
    }
}

/// Answers the questions of a reward.
struct RewardAnswerer<'a>(RolloutAnswerer<'a>);

#[async_trait]
impl Answerer for RewardAnswerer<'_> {
    async fn answer(&self, _session: usize, query: Query) -> Answer {
        self.0.answer(query).await
    }
}

/// Answers the questions of a self-driven environment; one answerer per session.
struct SessionAnswerer<'a>(Vec<RolloutAnswerer<'a>>);

#[async_trait]
impl Answerer for SessionAnswerer<'_> {
    async fn answer(&self, session: usize, query: Query) -> Answer {
        match self.0.get(session) {
            Some(answerer) => answerer.answer(query).await,
            None => Answer::NotYours,
        }
    }
}
