//! What travels along the line, in the order of the stages.

use crate::ledger::Credit;
use crate::policy::Policy;
use minds_core::chat::Renderer;
use minds_core::datum::Datum;
use minds_core::environment::{Environment, Item};
use minds_core::ids::{GroupId, ItemKey, PolicyVersion, RolloutId};
use minds_core::reward::{Metrics, RewardError, Score};
use minds_core::rollout::Rollout;
use minds_core::sampling::SamplingParams;
use minds_core::service::BackendError;
use serde::{Deserialize, Serialize};
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::Span;

/// One environment of the mixture, with how it is played.
pub struct MixtureComponent {
    /// Name in metrics.
    pub name: String,
    /// The task.
    pub environment: Arc<dyn Environment>,
    /// How the model reads conversations.
    pub renderer: Arc<dyn Renderer>,
    /// Rollouts per group.
    pub group_size: NonZeroU32,
    /// How answers are drawn. The seed is set per request.
    pub sampling: SamplingParams,
    /// Most answers per rollout.
    pub max_turns: u32,
    /// Tokens that the model reads, prompt and answer together.
    pub context: usize,
    /// Longest that one reward may take, or one reply of the environment.
    pub score_timeout: Duration,
    /// Share of the run; 0 leaves it out.
    pub weight: f64,
}

/// Feeder → Sampler: an item to be played by `component.group_size` rollouts.
pub struct Group {
    /// Its name; also its position in the schedule.
    pub id: GroupId,
    /// Which item.
    pub key: ItemKey,
    /// How it is played.
    pub component: Arc<MixtureComponent>,
    /// What is played.
    pub item: Item,
    /// Its right to be in flight.
    pub credit: Credit,
    /// In which everything that happens to it is logged, from its first sample to its step.
    pub span: Span,
}

/// Why a rollout is missing from its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutFailure {
    /// Cause, as the log and the ledger report it.
    pub why: String,
    /// Whether a service could not answer, which is no fault of the rollout or its environment.
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
            // A session that is lost, or a key that is denied, does not come back.
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

/// Sampler → Scorer: a finished rollout, or why there is none.
pub struct SampledRollout {
    /// The group it belongs to.
    pub group: Arc<Group>,
    /// Position in the group.
    pub member: u32,
    /// The weights that played.
    pub policy: Arc<Policy>,
    /// the rollout, or the cause of its failure.
    pub outcome: Result<Rollout, RolloutFailure>,
    /// The reward, where the environment drives itself and has computed it already.
    pub score: Option<Result<Score, RewardError>>,
}

/// By turn and token of an answer: its log-prob when it was sampled minus the one under the reference. No turns where
/// there is no reference.
pub type Drift = Vec<Vec<f32>>;

/// A rollout that can be trained.
pub struct RewardedRollout {
    /// What the policy did.
    pub rollout: Rollout,
    /// What it earned.
    pub score: Score,
    /// How far it has moved from the reference.
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
    /// What the policy did.
    #[serde(rename = "episode")]
    pub rollout: Rollout,
    /// What it earned.
    pub score: Score,
    /// What it earned beside its siblings.
    pub advantage: f32,
    /// How far it has moved from the reference.
    #[serde(default)]
    pub drift: Drift,
}

/// A group that was ready and not yet trained, as a checkpoint keeps it. Its item comes from the schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedGroup {
    /// Its name.
    pub group: GroupId,
    /// Those members that have a reward.
    pub members: Arc<[TrainingRollout]>,
}

/// A complete group.
pub struct TrainingGroup {
    /// The group.
    pub group: Arc<Group>,
    /// Those members that have a reward.
    pub members: Arc<[TrainingRollout]>,
    /// Members that failed.
    pub missing: u32,
    /// Whether there is nothing to learn from it: all advantages are zero.
    pub constant: bool,
    /// Whether it leaves its step as filtered, not as trained.
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
    /// The groups.
    pub groups: Vec<TrainingGroup>,
    /// Index of this minibatch in its step.
    pub minibatch: usize,
    /// Number of minibatches in the step.
    pub minibatches: NonZeroUsize,
    /// When it was complete and the trainer had room, if it was then held back so that a group that still plays does not
    /// grow older than `max_staleness`.
    pub held_since: Option<Instant>,
}

/// Scorer → outside: a rollout whose reward failed for good.
#[derive(Clone, Debug, PartialEq)]
pub struct QuarantinedRollout {
    /// The environment's name in metrics.
    pub environment: String,
    /// Which rollout.
    pub rollout: RolloutId,
    /// Index of the item within the environment's data.
    pub item: u64,
    /// The weights that played.
    pub policy: PolicyVersion,
    /// Why there is no reward, after the last try.
    pub cause: RewardError,
    /// The answers, in order. None of an environment that played by itself and did not come to its end.
    pub answers: Vec<String>,
}

impl QuarantinedRollout {
    pub(crate) fn new(played: &SampledRollout, cause: RewardError) -> Self {
        let turns = played.outcome.iter().flat_map(|rollout| &rollout.turns);
        Self {
            environment: played.group.component.name.clone(),
            rollout: RolloutId { group: played.group.id, member: played.member },
            item: played.group.key.item,
            policy: played.policy.version,
            cause,
            answers: turns.map(|turn| turn.text.clone()).collect(),
        }
    }
}

/// Trainer → outside: one optimizer step is done.
pub struct StepRecord {
    /// Steps done so far, this one included.
    pub step: u64,
    /// Numbers of the step, by name.
    pub metrics: Metrics,
    /// What was trained.
    pub groups: Vec<TrainingGroup>,
}
