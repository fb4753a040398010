//! The messages that travel through the pipeline, in the order of the stages.
//!
//! A rollout is moved from one to the next and never copied. What the sampler sends carries the weights as well:
//! [`SampledRollout`](crate::sampler::SampledRollout).

use crate::ledger::Credit;
pub use crate::ledger::SavedGroup;
use minds_core::chat::{PromptError, Renderer};
use minds_core::datum::Datum;
use minds_core::environment::{Environment, Item};
use minds_core::ids::{GroupId, ItemKey, PolicyVersion, RolloutId};
use minds_core::random::seeded_rng;
use minds_core::record::{QuarantineRow, RolloutRow, StepRecord, TurnRow, WrittenRollouts};
use minds_core::reward::{RewardError, Score};
use minds_core::rollout::Rollout;
pub use minds_core::rollout::{Drift, TrainingRollout};
use minds_core::sampling::SamplingParams;
use minds_core::service::BackendError;
use rand::Rng as _;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
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
    /// Steps between two evaluations of it, in the place of those of the run.
    pub evaluate_every: Option<NonZeroU64>,
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

/// Why a rollout cannot be trained, by what failed.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum RolloutError {
    /// The service gave no sample.
    #[error(transparent)]
    Service(#[from] BackendError),
    /// There is nothing to sample, or what was sampled cannot be trained.
    #[error("{0}")]
    Sampling(String),
    /// The environment failed to reply to a completion.
    #[error(transparent)]
    Reply(RewardError),
    /// The environment took longer than its limit, in seconds, to reply to a completion.
    #[error("the environment did not reply within {0} s")]
    ReplyTimedOut(u64),
    /// There is no reward.
    #[error(transparent)]
    Reward(#[from] RewardError),
    /// Sampling panicked; the message.
    #[error("{0}")]
    Panicked(String),
    /// An earlier part of the run left it without a reward.
    #[error("it had failed before the run was interrupted")]
    FailedBefore,
}

impl From<PromptError> for RolloutError {
    fn from(error: PromptError) -> Self {
        Self::Sampling(error.to_string())
    }
}

impl RolloutError {
    /// Whether a service could not answer: neither the rollout nor its environment explains it.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        match self {
            Self::Service(error) => error.is_unanswered(),
            Self::Reply(error) | Self::Reward(error) => error.is_unanswered(),
            Self::Sampling(_) | Self::ReplyTimedOut(_) | Self::Panicked(_) | Self::FailedBefore => false,
        }
    }
}

/// Scorer → AdvantageBatcher, with its group: a rollout with its reward, or why it has none.
pub struct ScoredRollout {
    /// Its turns; empty if it could not be sampled.
    pub rollout: Rollout,
    /// The reward with its metrics.
    pub score: Result<Score, RolloutError>,
    /// Drift of each sampled token from the reference; empty without a reward.
    pub drift: Drift,
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
    /// Of each datum, whether more than one version of the weights may have sampled it.
    pub swapped: Vec<bool>,
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
    /// Takes the turns out of a rollout whose reward failed: no later stage needs them.
    pub(crate) fn new(group: &Group, rollout: &mut Rollout, cause: RewardError) -> Self {
        let turns = std::mem::take(&mut rollout.turns);
        Self {
            environment: group.component.name.clone(),
            rollout: rollout.id,
            item: group.key.item,
            policy: rollout.policy,
            cause,
            answers: turns.into_iter().map(|turn| turn.text).collect(),
        }
    }

    /// The rollout as the run folder keeps it.
    #[must_use]
    pub fn row(&self) -> QuarantineRow<'_> {
        QuarantineRow {
            environment: (&self.environment).into(),
            item: self.item,
            group: self.rollout.group.0,
            member: self.rollout.member,
            policy: self.policy.0,
            kind: self.cause.name().into(),
            cause: self.cause.to_string().into(),
            text: (&self.answers).into(),
        }
    }
}

/// Trainer → observers: one optimizer step is done.
pub struct CommittedStep {
    /// Everything measured about it.
    pub record: StepRecord,
    /// Groups that were part of the step.
    pub groups: Vec<TrainingGroup>,
}

impl CommittedStep {
    /// The rollouts of the step that the run folder keeps, shared with the step; `None` with [`WrittenRollouts::Off`].
    #[must_use]
    pub fn rollouts(&self, which: WrittenRollouts) -> Option<StepRollouts> {
        let step = self.record.step;
        let chosen = match which {
            WrittenRollouts::All => self.groups.iter().collect(),
            WrittenRollouts::Sample => one_of_each_environment(step, &self.groups),
            WrittenRollouts::Off => return None,
        };
        let groups = chosen.into_iter().map(|group| (group.group.clone(), group.members.clone()));
        Some(StepRollouts { step, groups: groups.collect() })
    }
}

/// One group of each environment, drawn by the step and the id: the same whatever their order.
fn one_of_each_environment(step: u64, groups: &[TrainingGroup]) -> Vec<&TrainingGroup> {
    let drawn = |group: &TrainingGroup| seeded_rng([step, group.group.id.0, 0, 0]).next_u64();
    let mut chosen: BTreeMap<&str, (u64, &TrainingGroup)> = BTreeMap::new();
    for group in groups {
        let key = drawn(group);
        let kept = chosen.entry(&group.group.component.name).or_insert((key, group));
        if key < kept.0 {
            *kept = (key, group);
        }
    }
    chosen.into_values().map(|(_, group)| group).collect()
}

/// Rollouts of a step, for the run folder. They are shared, so that another thread can write them.
pub struct StepRollouts {
    step: u64,
    groups: Vec<(Arc<Group>, Arc<[TrainingRollout]>)>,
}

impl StepRollouts {
    /// The step that trained them, from 1.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The rollouts as the run folder keeps them.
    pub fn rows(&self) -> impl Iterator<Item = RolloutRow<'_>> {
        self.groups
            .iter()
            .flat_map(move |(group, members)| members.iter().map(move |member| self.row(group, member)))
    }

    fn row<'a>(&self, group: &'a Group, member: &'a TrainingRollout) -> RolloutRow<'a> {
        let turns = member.rollout.turns.iter().map(|turn| TurnRow {
            text: (&turn.text).into(),
            complete: turn.complete,
            prompt_tokens: turn.prompt.len(),
            tokens: (&turn.completion.tokens).into(),
            logprobs: (&turn.completion.logprobs).into(),
            versions: (&turn.completion.versions).into(),
        });
        RolloutRow {
            step: self.step,
            environment: (&group.component.name).into(),
            group: group.id.0,
            item: group.key.item,
            member: member.rollout.id.member,
            policy: member.rollout.policy.0,
            newest_policy: member.rollout.newest.map(|newest| newest.0),
            reward: member.score.reward.get(),
            advantage: member.advantage,
            metrics: Cow::Borrowed(&member.score.metrics),
            prompt: member.rollout.prompt(&group.item).into(),
            turns: turns.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_holds_the_item_the_cause_and_the_text() {
        let quarantined = QuarantinedRollout {
            environment: "ghost".into(),
            rollout: RolloutId { group: GroupId(7), member: 3 },
            item: 41,
            policy: PolicyVersion(2),
            cause: RewardError::TimedOut(600),
            answers: vec!["1, 2".into()],
        };
        let line = serde_json::to_string(&quarantined.row()).expect("a row is JSON");
        let expected = r#"{"environment":"ghost","item":41,"group":7,"member":3,"policy":2,"kind":"timed_out","cause":"scoring took longer than 600 s","text":["1, 2"]}"#;
        assert_eq!(line, expected);
    }
}
