//! The messages that travel through the pipeline, in the order of the stages.

use crate::ledger::Credit;
use crate::policy::Policy;
use minds_core::chat::Renderer;
use minds_core::datum::Datum;
use minds_core::environment::{Environment, Item, SessionError};
use minds_core::ids::{GroupId, ItemKey, PolicyVersion, RolloutId};
use minds_core::reward::{Metrics, RewardError, Score};
use minds_core::rollout::{Rollout, Turn};
use minds_core::sampling::SamplingParams;
use minds_core::service::BackendError;
use serde::{Deserialize, Serialize};
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::Span;

/// One environment of the mixture, with its sampling settings.
pub struct MixtureComponent {
    /// Name of the environment in metrics.
    pub name: String,
    /// The environment that supplies items and rewards.
    pub environment: Arc<dyn Environment>,
    /// How conversations become tokens of the model.
    pub renderer: Arc<dyn Renderer>,
    /// Number of rollouts per group.
    pub group_size: NonZeroU32,
    /// How completions are sampled. The seed is set per request.
    pub sampling: SamplingParams,
    /// Most turns per rollout.
    pub max_turns: u32,
    /// Context of the model in tokens, prompt and completion together.
    pub context: usize,
    /// Longest that one reward may take, or one reply of the environment.
    pub score_timeout: Duration,
    /// Share of the run; 0 leaves it out.
    pub weight: f64,
}

/// Feeder → Sampler: an item to be sampled by `component.group_size` rollouts.
pub struct Group {
    /// Its id; also its position in the schedule.
    pub id: GroupId,
    /// Component and index of the item.
    pub key: ItemKey,
    /// Environment and sampling settings of the item.
    pub component: Arc<MixtureComponent>,
    /// The item that all members share.
    pub item: Item,
    /// Its right to be in flight.
    pub credit: Credit,
    /// Tracing span of the group, from its first sample to its step.
    pub span: Span,
}

/// Why a rollout of a group failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutFailure {
    /// Cause, as the log and the ledger report it.
    pub why: String,
    /// Whether a service could not answer; the rollout and its environment are then not at fault.
    pub unanswered: bool,
}

impl std::fmt::Display for RolloutFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

impl From<String> for RolloutFailure {
    fn from(why: String) -> Self {
        Self { why, unanswered: false }
    }
}

impl From<&str> for RolloutFailure {
    fn from(why: &str) -> Self {
        why.to_owned().into()
    }
}

impl From<BackendError> for RolloutFailure {
    fn from(error: BackendError) -> Self {
        let unanswered = match &error {
            // A lost session or a denied key does not recover.
            BackendError::Rejected(_) | BackendError::Unsupported(_) | BackendError::Lost(_) => false,
            BackendError::Unavailable(_) | BackendError::TimedOut(_) | BackendError::Away(_) => true,
        };
        Self { why: error.to_string(), unanswered }
    }
}

impl From<&RewardError> for RolloutFailure {
    fn from(missing: &RewardError) -> Self {
        Self { why: missing.to_string(), unanswered: missing.is_unanswered() }
    }
}

/// Sampler → Scorer: a finished rollout, or the cause of its failure.
pub struct SampledRollout {
    /// The group it belongs to.
    pub group: Arc<Group>,
    /// Position in the group.
    pub member: u32,
    /// The weights that sampled the rollout.
    pub policy: Arc<Policy>,
    /// The rollout, or the cause of its failure.
    pub outcome: Result<Rollout, RolloutFailure>,
    /// The reward of a self-driven environment, which computes it itself, or why it did not finish the rollout; `None`
    /// for other environments.
    pub score: Option<Result<Score, SessionError>>,
}

/// By turn and token of a completion: its logprob when it was sampled minus the one under the reference. Empty without
/// a reference.
pub type Drift = Vec<Vec<f32>>;

/// A rollout with its reward.
pub struct RewardedRollout {
    /// The sampled turns of the rollout.
    pub rollout: Rollout,
    /// The reward with its metrics.
    pub score: Score,
    /// Drift of each sampled token from the reference.
    pub drift: Drift,
}

/// Scorer → AdvantageBatcher: a rollout with its reward, or why it has none.
pub struct ScoredRollout {
    /// The group it belongs to.
    pub group: Arc<Group>,
    /// Position in the group.
    pub member: u32,
    /// The rollout, or the cause of the failure.
    pub outcome: Result<RewardedRollout, RolloutFailure>,
}

/// One rollout of a group that is ready for training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingRollout {
    /// The sampled turns of the rollout.
    #[serde(rename = "episode")]
    pub rollout: Rollout,
    /// The reward with its metrics.
    pub score: Score,
    /// Its advantage within the group.
    pub advantage: f32,
    /// Drift of each sampled token from the reference.
    #[serde(default)]
    pub drift: Drift,
}

/// A group that was ready and not yet trained, as a checkpoint stores it. Its item comes from the schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedGroup {
    /// Id of the group, which is its position in the schedule.
    pub group: GroupId,
    /// Members with a reward.
    pub members: Arc<[TrainingRollout]>,
}

/// A complete group with advantages and training data.
pub struct TrainingGroup {
    /// The group that was sampled.
    pub group: Arc<Group>,
    /// Members with a reward.
    pub members: Arc<[TrainingRollout]>,
    /// Number of members without a reward.
    pub missing: u32,
    /// Whether there is no learning signal: all advantages are zero.
    pub constant: bool,
    /// Whether its outcome is filtered, not trained.
    pub filtered: bool,
    /// Sampled tokens that are left out of the loss because their logprob cannot be right.
    pub masked_tokens: u64,
    /// Data of all members; empty for a constant group, whose gradient is zero.
    pub data: Vec<Datum>,
    /// The oldest weights among its members.
    pub oldest: PolicyVersion,
}

/// AdvantageBatcher → Trainer: groups of one step, oldest first.
pub struct Batch {
    /// Groups of this minibatch, oldest first.
    pub groups: Vec<TrainingGroup>,
    /// Index of this minibatch in its step.
    pub minibatch: usize,
    /// Number of minibatches in the step.
    pub minibatches: NonZeroUsize,
    /// When it was complete and the trainer had room, if it was then held back so that a group still being sampled does
    /// not become staler than `max_staleness`.
    pub held_since: Option<Instant>,
}

/// Scorer → observers: a rollout whose reward failed for good.
#[derive(Clone, Debug, PartialEq)]
pub struct QuarantinedRollout {
    /// The environment's name in metrics.
    pub environment: String,
    /// Id of the rollout whose reward failed.
    pub rollout: RolloutId,
    /// Index of the item within the environment's data.
    pub item: u64,
    /// The weights that sampled the rollout.
    pub policy: PolicyVersion,
    /// The reward error of the last try.
    pub cause: RewardError,
    /// The completions, in order, as far as they were sampled.
    pub answers: Vec<String>,
}

impl QuarantinedRollout {
    pub(crate) fn new(played: &SampledRollout, cause: RewardError) -> Self {
        let turns: &[Turn] = match (&played.outcome, &played.score) {
            (Ok(rollout), _) => &rollout.turns,
            (Err(_), Some(Err(failed))) => &failed.turns,
            (Err(_), _) => &[],
        };
        Self {
            environment: played.group.component.name.clone(),
            rollout: RolloutId { group: played.group.id, member: played.member },
            item: played.group.key.item,
            policy: played.policy.version,
            cause,
            answers: turns.iter().map(|turn| turn.text.clone()).collect(),
        }
    }
}

/// Trainer → observers: one optimizer step is done.
pub struct StepRecord {
    /// Steps done so far, this one included.
    pub step: u64,
    /// Metrics of the step, by name.
    pub metrics: Metrics,
    /// Groups that were part of the step.
    pub groups: Vec<TrainingGroup>,
}
