//! What an environment is: items, replies to the policy, and rewards.
//!
//! An environment is immutable and shared; everything that belongs to one rollout is passed as values. The members of a
//! group share one [`Item`].
//!
//! Most environments are called turn by turn. One that runs a program of its own, which sends requests to the policy at
//! any time, is a [`SelfDrivenEnvironment`]: it receives sessions, and finishes each with a rollout and its reward.

use crate::chat::{Message, Renderer, Role};
use crate::datum::Datum;
use crate::demonstration::Demonstrations;
use crate::ids::{PolicyVersion, RolloutId, Token};
pub use crate::item::Item;
use crate::reward::{RewardError, Score};
use crate::rollout::{Rollout, Turn};
use crate::service::{SamplingBackend, TrainingBackend};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;
use std::sync::Arc;
use thiserror::Error;

/// What follows a completion of the policy.
#[derive(Clone, Debug, PartialEq)]
pub enum EnvironmentReply {
    /// The rollout is over.
    Done,
    /// The policy samples another turn, with these messages appended to the conversation.
    Continue(Vec<Message>),
}

/// What a reward can query: logprobs under the weights that the config names for scoring.
#[async_trait]
pub trait Oracle: Send + Sync {
    /// Logprob of each token of `target` after `prefix`. Equal queries under equal weights are sent once.
    async fn logprobs(&self, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, RewardError>;

    /// The most likely next tokens after `prefix`, best first, at most `k`.
    async fn next_tokens(&self, prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, RewardError>;

    /// What one gradient step on `text` would do to the summed logprob of `target` after `prefix`.
    ///
    /// The step is taken on a separate adapter, never on the weights in training. This is an optional ability: an
    /// oracle that cannot take the step returns [`RewardError::Unsupported`], as this default does, and a reward that
    /// needs it fails with that error.
    async fn logprob_delta(
        &self,
        _text: Datum,
        _prefix: Arc<[Token]>,
        _target: Arc<[Token]>,
    ) -> Result<LogprobDelta, RewardError> {
        Err(RewardError::Unsupported("what one gradient step would change".into()))
    }

    /// An adapter for experiments, which starts from the weights of this oracle and is leased until it is dropped.
    ///
    /// It is never the adapter in training. This is an optional ability, too: the default returns
    /// [`RewardError::Unsupported`].
    async fn lease_adapter(&self) -> Result<AdapterLease, RewardError> {
        Err(RewardError::Unsupported("an adapter of its own".into()))
    }

    /// A sampler of weights that training never changes.
    ///
    /// This is an optional ability, too: the default returns [`RewardError::Unsupported`].
    async fn frozen(&self, _weights: FrozenWeights) -> Result<Arc<dyn SamplingBackend>, RewardError> {
        Err(RewardError::Unsupported("weights beside the policy".into()))
    }
}

/// Weights that training never changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FrozenWeights {
    /// The base model of the run.
    Base,
    /// Saved sampler weights, by their path on the service.
    Saved(String),
}

/// An adapter leased to one reward.
pub struct AdapterLease {
    /// The leased shadow adapter, never the one in training.
    pub training: Arc<dyn TrainingBackend>,
    /// Returns the adapter to the pool when dropped.
    pub guard: Box<dyn Send + Sync>,
}

/// Summed logprob of a target on both sides of one gradient step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogprobDelta {
    /// Under the weights before the step.
    pub before: f64,
    /// Under the weights after the step.
    pub after: f64,
}

impl LogprobDelta {
    /// How much the logprob rose, in nats.
    #[must_use]
    pub fn change(self) -> f64 {
        self.after - self.before
    }
}

/// Everything that a reward may use.
#[derive(Clone, Copy)]
pub struct ScoringContext<'a> {
    /// The item of the rollout.
    pub item: &'a Item,
    /// The turns that the policy sampled.
    pub rollout: &'a Rollout,
    /// How conversations become tokens of the model.
    pub renderer: &'a dyn Renderer,
    /// Answers logprob queries of the reward.
    pub oracle: &'a dyn Oracle,
}

impl ScoringContext<'_> {
    /// Text of the last completion.
    #[must_use]
    pub fn answer(&self) -> &str {
        self.rollout.turns.last().map_or("", |turn| turn.text.as_str())
    }

    /// Summed logprob and number of tokens of `answer` as the assistant's reply to `messages`.
    ///
    /// # Errors
    /// The query failed or returned another number of logprobs, or `answer` has no tokens.
    pub async fn answer_logprob(
        &self,
        messages: &[Message],
        answer: &str,
    ) -> Result<(f64, usize), RewardError> {
        let prefix = self.renderer.prompt(messages)?;
        let target = self.renderer.answer(answer);
        let tokens = target.len();
        if tokens == 0 {
            return Err(RewardError::Environment(format!("the answer {answer:?} has no tokens")));
        }
        let logprobs = self.oracle.logprobs(prefix.into(), target.into()).await?;
        // A sum over fewer tokens would look like a better answer.
        if logprobs.len() != tokens {
            return Err(RewardError::Service(format!("{} logprobs for {tokens} tokens", logprobs.len())));
        }
        Ok((logprobs.iter().map(|lp| f64::from(*lp)).sum(), tokens))
    }

    /// What one gradient step on `text` would do to the summed logprob of `answer` as the assistant's reply to
    /// `messages`.
    ///
    /// # Errors
    /// The measurement failed, is not finite or is not supported here, or `answer` has no tokens.
    pub async fn answer_logprob_delta(
        &self,
        text: Datum,
        messages: &[Message],
        answer: &str,
    ) -> Result<LogprobDelta, RewardError> {
        let prefix = self.renderer.prompt(messages)?;
        let target = self.renderer.answer(answer);
        if target.is_empty() {
            return Err(RewardError::Environment(format!("the answer {answer:?} has no tokens")));
        }
        let shift = self.oracle.logprob_delta(text, prefix.into(), target.into()).await?;
        if shift.change().is_finite() {
            Ok(shift)
        } else {
            Err(RewardError::NotFinite(format!("a probe went from {} to {}", shift.before, shift.after)))
        }
    }

    /// The version of the policy that sampled the rollout.
    #[must_use]
    pub fn policy(&self) -> PolicyVersion {
        self.rollout.policy
    }
}

/// A task with its rewards.
///
/// ```
/// use async_trait::async_trait;
/// use minds_core::chat::Message;
/// use minds_core::environment::{Environment, Item, ScoringContext};
/// use minds_core::reward::{Metrics, Reward, RewardError, Score};
/// use std::num::NonZeroU64;
///
/// /// Rewards short answers.
/// struct Brevity;
///
/// #[async_trait]
/// impl Environment for Brevity {
///     fn id(&self) -> &str {
///         "brevity"
///     }
///
///     fn items(&self) -> NonZeroU64 {
///         NonZeroU64::MIN
///     }
///
///     fn item(&self, index: u64) -> Item {
///         let prompt = vec![Message::user("Why is the sky blue?")];
///         Item { index, prompt, answer: None, info: serde_json::Value::Null }
///     }
///
///     async fn score(&self, context: ScoringContext<'_>) -> Result<Score, RewardError> {
///         let words = context.answer().split_whitespace().count();
///         Ok(Score { reward: Reward::new(-(words as f32))?, metrics: Metrics::new() })
///     }
/// }
///
/// assert!(Brevity.self_driven().is_none());
/// ```
#[async_trait]
pub trait Environment: Send + Sync {
    /// The id that configs use.
    fn id(&self) -> &str;

    /// Items in one cycle of its data.
    fn items(&self) -> NonZeroU64;

    /// Kinds of items that should alternate; item `i` is of kind `i % strata`.
    fn strata(&self) -> NonZeroU64 {
        NonZeroU64::MIN
    }

    /// The item at `index`, the same on every call. `index` is taken modulo [`Environment::items`].
    fn item(&self, index: u64) -> Item;

    /// Whether it limits the time of each reward itself, so that the pipeline must not.
    fn limits_reward_time(&self) -> bool {
        false
    }

    /// Whether rewards call [`Oracle::logprob_delta`] or [`Oracle::lease_adapter`]. Only then are shadow adapters
    /// available.
    fn needs_shadow_adapters(&self) -> bool {
        false
    }

    /// Whether rewards may query logprobs under the policy, or sample from it: `false` where none does. With in-flight
    /// weights, a run exports each version a second time for such rewards, because one version answers all queries of a
    /// reward.
    fn queries_policy(&self) -> bool {
        true
    }

    /// What the reward reads in a complete completion, for debugging; `None` where it is not valid. This default is for
    /// rewards that read the whole text.
    fn parse(&self, _item: &Item, answer: &str) -> Option<serde_json::Value> {
        Some(answer.into())
    }

    /// What its rewards have learnt so far, for a checkpoint. Most environments never change and have nothing to
    /// keep, as this default does.
    fn memory(&self) -> Option<serde_json::Value> {
        None
    }

    /// Takes up what [`Environment::memory`] of the same environment gave in an earlier run.
    ///
    /// # Errors
    /// It is not of that form.
    fn restore_memory(&self, _memory: &serde_json::Value) -> Result<(), RewardError> {
        Err(RewardError::Environment(format!("{} keeps nothing", self.id())))
    }

    /// The environment's reply to the policy's completion. Single-turn environments are done.
    async fn reply(&self, item: &Item, conversation: &[Message]) -> Result<EnvironmentReply, RewardError> {
        debug_assert!(
            conversation.last().is_none_or(|m| m.role == Role::Assistant),
            "{} at {}",
            self.id(),
            item.index
        );
        Ok(EnvironmentReply::Done)
    }

    /// The reward of a finished rollout.
    async fn score(&self, scene: ScoringContext<'_>) -> Result<Score, RewardError>;

    /// The environment as one whose items are imitated, if nothing is sampled from them.
    fn demonstrations(&self) -> Option<&dyn Demonstrations> {
        None
    }

    /// The environment as one that runs its own rollouts, if it does so.
    fn self_driven(&self) -> Option<&dyn SelfDrivenEnvironment> {
        None
    }
}

/// An environment that runs its own rollouts: it sends requests to the policy at any time, and returns rollouts with
/// their rewards.
#[async_trait]
pub trait SelfDrivenEnvironment: Send + Sync {
    /// Runs one item, once per session. All sessions belong to one group. Ends when every session has finished;
    /// dropping the future cancels what is under way.
    async fn run_rollouts(&self, item: &Item, sessions: Vec<RolloutSession>);

    /// Whether rewards compare the members of a group. Then none of them can be resampled without the others.
    fn compares_rollouts(&self) -> bool {
        false
    }
}

/// One rollout of a group that is being sampled, with the weights that sample it. It finishes exactly once: a session
/// that is dropped counts as finished without a result.
pub struct RolloutSession {
    /// The rollout that this session produces.
    pub rollout: RolloutId,
    /// How often the rollout was sampled before, without a result.
    pub attempt: u32,
    /// The weights that sample the rollout.
    pub policy: PolicyVersion,
    /// Samples from the weights of this rollout, each request with a seed of its own.
    pub sampler: Arc<dyn SamplingBackend>,
    /// Answers logprob queries about the same weights.
    pub oracle: Arc<dyn Oracle>,
    on_finish: Option<OnFinish>,
}

type OnFinish = Box<dyn FnOnce(Result<SessionRollout, SessionError>) + Send>;

/// The result of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionRollout {
    /// The sampled turns; at least one.
    pub turns: Vec<Turn>,
    /// The conversation before the first completion.
    pub opening: Arc<[Message]>,
    /// The reward with its metrics.
    pub score: Score,
}

/// Why a session has no result.
#[derive(Clone, Debug, Error, PartialEq, Serialize, Deserialize)]
#[error("{cause}")]
pub struct SessionError {
    /// Why there is no reward.
    pub cause: RewardError,
    /// The turns that were sampled until then, as far as the environment knows them.
    pub turns: Vec<Turn>,
}

impl From<RewardError> for SessionError {
    fn from(cause: RewardError) -> Self {
        Self { cause, turns: Vec::new() }
    }
}

impl RolloutSession {
    /// The first attempt at a rollout of the first weights; `on_finish` receives its result.
    #[must_use]
    pub fn new(
        rollout: RolloutId,
        sampler: Arc<dyn SamplingBackend>,
        oracle: Arc<dyn Oracle>,
        on_finish: impl FnOnce(Result<SessionRollout, SessionError>) + Send + 'static,
    ) -> Self {
        Self {
            rollout,
            attempt: 0,
            policy: PolicyVersion::default(),
            sampler,
            oracle,
            on_finish: Some(Box::new(on_finish)),
        }
    }

    /// Finishes the session with its result.
    pub fn finish(mut self, result: Result<SessionRollout, SessionError>) {
        if let Some(on_finish) = self.on_finish.take() {
            on_finish(result);
        }
    }
}

impl Drop for RolloutSession {
    fn drop(&mut self) {
        if let Some(on_finish) = self.on_finish.take() {
            on_finish(Err(RewardError::Environment("it gave no result".into()).into()));
        }
    }
}
