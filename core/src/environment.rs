//! What an environment is: items to play, replies to the policy, and rewards.
//!
//! An environment is immutable and shared; everything that belongs to one play travels as values. The members of a
//! group play the same [`Item`].
//!
//! Most environments are asked turn by turn. One that runs a program of its own, which asks the policy whenever it
//! likes, is a [`Conductor`]: it is given seats, and hands every seat back with an episode and its reward.

use crate::backend::{BackendError, SamplingBackend, TrainingBackend};
use crate::chat::{Message, Renderer, Role};
use crate::datum::Datum;
use crate::episode::{Episode, Turn};
use crate::ids::{EpisodeId, PolicyVersion, Token};
use crate::reward::{Metrics, Missing, Reward, Score};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;
use std::sync::Arc;

/// One task: what the policy is shown first, and what the reward needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Index within the environment's data.
    pub index: u64,
    /// The conversation so far; ends with a user message.
    pub prompt: Vec<Message>,
    /// The right answer, where there is one.
    pub answer: Option<String>,
    /// Whatever else the reward needs. Never shown to the policy.
    pub info: serde_json::Value,
}

/// What follows an answer of the policy.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// The episode is over.
    Done,
    /// The policy is asked again, with these messages appended to the conversation.
    Continue(Vec<Message>),
}

/// What a reward can ask: log-probs under the weights that the config names for scoring.
#[async_trait]
pub trait Oracle: Send + Sync {
    /// Log-prob of each token of `target` after `prefix`. Equal questions under equal weights are asked once.
    async fn logprobs(&self, prefix: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, Missing>;

    /// The most likely next tokens after `prefix`, best first, at most `k`.
    async fn next_tokens(&self, prefix: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, Missing>;

    /// What one gradient step on `text` would do to the summed log-prob of `target` after `prefix`.
    ///
    /// The step is taken aside, never on the weights in training. This is an optional ability: an oracle that has
    /// nobody to take the step answers [`Missing::Unsupported`], as this default does, and a reward that needs it
    /// stays missing.
    async fn shift(
        &self,
        _text: Datum,
        _prefix: Arc<[Token]>,
        _target: Arc<[Token]>,
    ) -> Result<Shift, Missing> {
        Err(Missing::Unsupported("what one gradient step would change".into()))
    }

    /// An adapter to try something out on, with the weights that are asked here, until it is dropped.
    ///
    /// It is never the one in training. This is an optional ability, too: the default answers
    /// [`Missing::Unsupported`].
    async fn borrow_adapter(&self) -> Result<Borrowed, Missing> {
        Err(Missing::Unsupported("an adapter of its own".into()))
    }

    /// A sampler of weights that training never changes.
    ///
    /// This is an optional ability, too: the default answers [`Missing::Unsupported`].
    async fn frozen(&self, _weights: FrozenWeights) -> Result<Arc<dyn SamplingBackend>, Missing> {
        Err(Missing::Unsupported("weights beside the policy".into()))
    }
}

/// Weights that training never changes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FrozenWeights {
    /// The base model of the run.
    Base,
    /// Saved sampler weights, by their path on the service.
    Saved(String),
}

/// An adapter on loan.
pub struct Borrowed {
    /// The adapter.
    pub training: Arc<dyn TrainingBackend>,
    /// Gives it back when dropped.
    pub lease: Box<dyn Send + Sync>,
}

/// Summed log-prob of a target on both sides of one gradient step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shift {
    /// Under the start weights.
    pub before: f64,
    /// After the step.
    pub after: f64,
}

impl Shift {
    /// How much the log-prob rose.
    #[must_use]
    pub fn change(self) -> f64 {
        self.after - self.before
    }
}

impl From<BackendError> for Missing {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Rejected(why) | BackendError::Unsupported(why) => Self::Environment(why),
            // What is lost may have been an adapter lent to one measurement: the next try gets another.
            BackendError::Unavailable(why) | BackendError::Lost(why) => Self::Service(why),
            BackendError::TimedOut(why) | BackendError::Away(why) => Self::Away(why),
        }
    }
}

/// Everything that a reward may use.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// The item that was played.
    pub item: &'a Item,
    /// What the policy did.
    pub episode: &'a Episode,
    /// How the model reads conversations.
    pub renderer: &'a dyn Renderer,
    /// Answers log-prob queries.
    pub oracle: &'a dyn Oracle,
}

impl Scene<'_> {
    /// The last answer, as text.
    #[must_use]
    pub fn answer(&self) -> &str {
        self.episode.turns.last().map_or("", |turn| turn.text.as_str())
    }

    /// Summed log-prob and number of tokens of `answer` as the assistant's reply to `messages`.
    ///
    /// # Errors
    /// The query failed or came back with another number of log-probs, or `answer` has no tokens.
    pub async fn answer_logprob(&self, messages: &[Message], answer: &str) -> Result<(f64, usize), Missing> {
        let prefix = self.renderer.prompt(messages);
        let target = self.renderer.answer(answer);
        let tokens = target.len();
        if tokens == 0 {
            return Err(Missing::Environment(format!("the answer {answer:?} has no tokens")));
        }
        let logprobs = self.oracle.logprobs(prefix.into(), target.into()).await?;
        // A sum over fewer tokens would look like a better answer.
        if logprobs.len() != tokens {
            return Err(Missing::Service(format!("{} log-probs came for {tokens} tokens", logprobs.len())));
        }
        Ok((logprobs.iter().map(|lp| f64::from(*lp)).sum(), tokens))
    }

    /// What one gradient step on `text` would do to the summed log-prob of `answer` as the assistant's reply to
    /// `messages`.
    ///
    /// # Errors
    /// The measurement failed, is not finite or is not supported here, or `answer` has no tokens.
    pub async fn answer_shift(
        &self,
        text: Datum,
        messages: &[Message],
        answer: &str,
    ) -> Result<Shift, Missing> {
        let (prefix, target) = (self.renderer.prompt(messages), self.renderer.answer(answer));
        if target.is_empty() {
            return Err(Missing::Environment(format!("the answer {answer:?} has no tokens")));
        }
        let shift = self.oracle.shift(text, prefix.into(), target.into()).await?;
        if shift.change().is_finite() {
            Ok(shift)
        } else {
            Err(Missing::NotFinite(format!("a probe went from {} to {}", shift.before, shift.after)))
        }
    }

    /// The version of the policy that played.
    #[must_use]
    pub fn policy(&self) -> PolicyVersion {
        self.episode.policy
    }
}

/// One weighted part of a [`Rubric`].
#[async_trait]
pub trait Criterion: Send + Sync {
    /// Its name in the metrics.
    fn name(&self) -> &str;

    /// Its value for one episode.
    async fn value(&self, scene: Scene<'_>) -> Result<f64, Missing>;
}

/// A reward that is a weighted sum of criteria.
#[derive(Clone, Default)]
pub struct Rubric {
    parts: Vec<(f64, Arc<dyn Criterion>)>,
}

impl Rubric {
    /// Adds a criterion.
    #[must_use]
    pub fn with(mut self, weight: f64, criterion: impl Criterion + 'static) -> Self {
        self.parts.push((weight, Arc::new(criterion)));
        self
    }

    /// The weighted sum; each criterion's value is a metric under its name. One missing value makes the whole
    /// reward missing.
    ///
    /// # Errors
    /// The first criterion that failed, or a sum that is not finite.
    pub async fn score(&self, scene: Scene<'_>) -> Result<Score, Missing> {
        let mut metrics = Metrics::new();
        let mut sum = 0.0;
        for (weight, criterion) in &self.parts {
            let value = criterion.value(scene).await?;
            sum += weight * value;
            metrics.insert(criterion.name().into(), value);
        }
        Ok(Score { reward: Reward::new(sum as f32)?, metrics })
    }
}

/// A task with its rewards.
#[async_trait]
pub trait Environment: Send + Sync {
    /// The id that configs use.
    fn id(&self) -> &str;

    /// Items in one cycle of its data.
    fn items(&self) -> NonZeroU64;

    /// Kinds of items that should take turns; item `i` is of kind `i % strata`.
    fn strata(&self) -> NonZeroU64 {
        NonZeroU64::MIN
    }

    /// The item at `index`, the same on every call. `index` is taken modulo [`Environment::items`].
    fn item(&self, index: u64) -> Item;

    /// Whether its rewards ask [`Oracle::shift`] or [`Oracle::borrow_adapter`]. Only then is somebody kept who can answer it.
    fn asks_shift(&self) -> bool {
        false
    }

    /// What the reward reads in an answer that ended, for people who debug it; `None` where it is not valid. An
    /// environment that reads nothing but the whole text has nothing to tell, as this default does.
    fn parse(&self, _item: &Item, _answer: &str) -> Option<serde_json::Value> {
        None
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
    fn recall(&self, _memory: &serde_json::Value) -> Result<(), Missing> {
        Err(Missing::Environment(format!("{} keeps nothing", self.id())))
    }

    /// What the environment says after the policy's answer. Single-turn environments are done.
    async fn reply(&self, item: &Item, conversation: &[Message]) -> Result<Reply, Missing> {
        debug_assert!(
            conversation.last().is_none_or(|m| m.role == Role::Assistant),
            "{} at {}",
            self.id(),
            item.index
        );
        Ok(Reply::Done)
    }

    /// The reward of a finished episode.
    async fn score(&self, scene: Scene<'_>) -> Result<Score, Missing>;

    /// The environment as one that plays its episodes by itself, if it does so.
    fn conductor(&self) -> Option<&dyn Conductor> {
        None
    }
}

/// An environment that plays its episodes by itself: it asks the policy whenever it likes, and its episodes come with
/// their rewards.
#[async_trait]
pub trait Conductor: Send + Sync {
    /// Plays one item, once for every seat. All seats belong to one group. Ends when every seat has been left;
    /// dropping it gives up what is under way.
    async fn play(&self, item: &Item, seats: Vec<Seat>);

    /// Whether rewards compare the members of a group. Then none of them can be played again without the others.
    fn compares(&self) -> bool {
        false
    }
}

/// A place in a group that is being played, with the weights that play. It is left exactly once: a seat that is
/// dropped counts as left without a result.
pub struct Seat {
    /// Who sits here.
    pub episode: EpisodeId,
    /// Samples from the weights of this episode, each request with a seed of its own.
    pub sampler: Arc<dyn SamplingBackend>,
    /// Answers questions about the same weights.
    pub oracle: Arc<dyn Oracle>,
    exit: Option<Exit>,
}

type Exit = Box<dyn FnOnce(Result<Performance, Missing>) + Send>;

/// What came out of a seat.
#[derive(Clone, Debug, PartialEq)]
pub struct Performance {
    /// What the policy did; at least one turn.
    pub turns: Vec<Turn>,
    /// The conversation to which the first answer was given.
    pub opening: Arc<[Message]>,
    /// What it earned.
    pub score: Score,
}

impl Seat {
    /// A seat; `exit` is told how it was left.
    #[must_use]
    pub fn new(
        episode: EpisodeId,
        sampler: Arc<dyn SamplingBackend>,
        oracle: Arc<dyn Oracle>,
        exit: impl FnOnce(Result<Performance, Missing>) + Send + 'static,
    ) -> Self {
        Self { episode, sampler, oracle, exit: Some(Box::new(exit)) }
    }

    /// Leaves the seat with what came out.
    pub fn leave(mut self, result: Result<Performance, Missing>) {
        if let Some(exit) = self.exit.take() {
            exit(result);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(exit) = self.exit.take() {
            exit(Err(Missing::Environment("it gave no result".into())));
        }
    }
}
