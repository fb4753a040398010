//! Groups in the batcher: open ones by member, ready ones by age. Does no I/O.

use super::{BatcherOptions, ConstantGroups, LossWeighting, RolloutLength, TruncatedRollouts};
use crate::ledger::GroupOutcome;
use crate::messages::{
    Drift, Group, RolloutError, SavedGroup, ScoredRollout, TrainingGroup, TrainingRollout,
};
use minds_core::advantage::{Estimator, is_constant};
use minds_core::datum::{Datum, DatumError};
use minds_core::demonstration::supervised_data;
use minds_core::ids::{GroupId, PolicyVersion, RolloutId};
use minds_core::reward::Reward;
use minds_core::rollout::Rollout;
use minds_core::service::BackendError;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// A sampled token with a smaller logprob, in nats, is left out of the loss. At temperature 1 a model samples a given
/// token of this logprob once in nine million draws, so what is reported here is a fault of the service far more often
/// than a fact; and as no trained logprob is above 0, importance ratios are at most `exp(16)` then.
const LEAST_LOGPROB: f32 = -16.0;

/// Metric of a rollout: the reward that its length cost it.
const LENGTH_PENALTY: &str = "length_penalty";

/// Members by group, until a group is complete.
#[derive(Default)]
pub struct OpenGroups {
    open: BTreeMap<GroupId, (Weak<Group>, BTreeMap<u32, ScoredRollout>)>,
}

/// A group whose members have all been scored or have failed.
pub struct CompleteGroup {
    /// The group that is complete.
    pub group: Arc<Group>,
    members: BTreeMap<u32, ScoredRollout>,
}

impl OpenGroups {
    /// Adds a member; returns the group when it was the last. A member that arrives twice counts once.
    pub fn add(&mut self, group: Arc<Group>, scored: ScoredRollout) -> Option<CompleteGroup> {
        if !self.open.contains_key(&group.id) {
            // A group that lost a member can never be complete; it is gone once this is its only reference.
            self.open.retain(|_, (group, _)| group.strong_count() > 0);
        }
        let (_, members) =
            self.open.entry(group.id).or_insert_with(|| (Arc::downgrade(&group), BTreeMap::new()));
        members.entry(scored.rollout.id.member).or_insert(scored);
        if members.len() < group.component.group_size.get() as usize {
            return None;
        }
        let (_, members) = self.open.remove(&group.id)?;
        Some(CompleteGroup { group, members })
    }
}

impl CompleteGroup {
    /// A group that an earlier part of the run had collected, sampled by weights of the version `policy` at the oldest.
    pub fn restored(group: Arc<Group>, saved_group: &SavedGroup, policy: PolicyVersion) -> Self {
        let lost = |member| {
            let rollout = Rollout::new(RolloutId { group: group.id, member }, group.key, policy);
            let score = Err(RolloutError::FailedBefore);
            (member, ScoredRollout { rollout, score, drift: Drift::new() })
        };
        let mut members: BTreeMap<u32, ScoredRollout> =
            (0..group.component.group_size.get()).map(lost).collect();
        for member in saved_group.members.iter() {
            let TrainingRollout { rollout, score, drift, .. } = member.clone();
            members.insert(rollout.id.member, ScoredRollout { rollout, score: Ok(score), drift });
        }
        Self { group, members }
    }

    /// Computes advantages and builds data.
    ///
    /// # Errors
    /// The outcome of a group of which too few members have a reward, or a rollout makes no datum. Its cause is the first
    /// one, or why a service did not answer if there would have been enough members with those that it left without one.
    pub fn build(self, options: &BatcherOptions) -> Result<TrainingGroup, GroupOutcome> {
        let estimator = options.estimator;
        let Self { group, members } = self;
        let size = members.len();
        let mut errors = Vec::new();
        let mut rewarded = Vec::new();
        for ScoredRollout { rollout, score, drift } in members.into_values() {
            match score {
                Ok(score) => rewarded.push((rollout, score, drift)),
                Err(error) => errors.push(error),
            }
        }
        let needed = options.min_members.get().clamp(size.min(2), size);
        if rewarded.len() < needed {
            return Err(too_few(rewarded.len(), needed, size, &errors));
        }
        let lengths: Vec<RolloutLength> =
            rewarded.iter().map(|(rollout, _, _)| RolloutLength::of(rollout)).collect();
        let mut rewards: Vec<Reward> = rewarded.iter().map(|(_, score, _)| score.reward).collect();
        if options.length.changes_rewards() {
            let limit = group.component.sampling.max_tokens;
            let plain: Vec<f64> = rewards.iter().map(|reward| reward.get().into()).collect();
            let changes = options.length.shaping(&plain, &lengths, limit);
            for (((_, score, _), reward), change) in rewarded.iter_mut().zip(&mut rewards).zip(changes) {
                score.metrics.insert(LENGTH_PENALTY.into(), -change);
                let shaped = Reward::new((f64::from(reward.get()) + change) as f32);
                *reward = shaped.map_err(|error| GroupOutcome::Failed(error.to_string()))?;
            }
        }
        let mut advantages = estimator.advantages(&rewards);
        // Rounding of the mean can leave a trace of an advantage where all rewards are equal.
        let constant =
            advantages.iter().all(|a| *a == 0.0) || (estimator != Estimator::None && is_constant(&rewards));
        if !options.rewards {
            advantages.fill(0.0);
        }
        let members: Arc<[TrainingRollout]> = rewarded
            .into_iter()
            .zip(advantages)
            .map(|((rollout, score, drift), advantage)| TrainingRollout { rollout, score, advantage, drift })
            .collect();
        let filtered = constant && options.constant != ConstantGroups::Keep;
        // Without a penalty, equal rewards give no gradient.
        let teaches = !filtered && (!constant || options.kl_penalty > 0.0);
        let GroupData { data, swapped, masked_tokens } = match teaches {
            true => data(&members, &lengths, constant, options)
                .map_err(|e| GroupOutcome::Failed(e.to_string()))?,
            false => GroupData::default(),
        };
        let oldest = members.iter().map(|m| m.rollout.policy).min().unwrap_or(PolicyVersion(0));
        let missing = errors.len() as u32;
        Ok(TrainingGroup {
            group,
            members,
            missing,
            constant,
            filtered,
            masked_tokens,
            data,
            swapped,
            oldest,
        })
    }
}

impl TrainingGroup {
    /// The data of a group whose item is imitated. No weights sampled it, so it is never stale.
    ///
    /// # Errors
    /// The outcome of an item that cannot be imitated.
    pub(super) fn of_demonstration(group: Arc<Group>) -> Result<Self, GroupOutcome> {
        let component = &group.component;
        let failed = |why: String| GroupOutcome::Failed(why);
        let demonstrations = component.environment.demonstrations();
        let demonstrations =
            demonstrations.ok_or_else(|| failed(format!("{} has nothing to imitate", component.name)))?;
        let turns = demonstrations.turns(&group.item, &*component.renderer, component.context);
        let turns = turns.map_err(|error| failed(error.to_string()))?;
        let data = supervised_data(&turns).map_err(|error| failed(error.to_string()))?;
        Ok(Self {
            members: Arc::default(),
            missing: 0,
            constant: false,
            filtered: false,
            masked_tokens: 0,
            swapped: vec![false; data.len()],
            data,
            oldest: PolicyVersion::default(),
            group,
        })
    }
}

/// The outcome of a group of which `have` of `size` members have a reward and `needed` would be enough.
fn too_few(have: usize, needed: usize, size: usize, errors: &[RolloutError]) -> GroupOutcome {
    let unanswered = have + errors.iter().filter(|error| error.is_unanswered()).count() >= needed;
    let cause = errors.iter().find(|error| error.is_unanswered() == unanswered).or(errors.first());
    let lost = matches!(cause, Some(RolloutError::Service(BackendError::Lost(_))));
    let cause = cause.map_or_else(|| "no member finished".into(), ToString::to_string);
    let why = format!(
        "{have} of {size} members have a reward, {needed} are needed (trainer.min_members, \
         trainer.on_member_failure): {cause}"
    );
    match (unanswered, lost) {
        (true, _) => GroupOutcome::Unanswered(why),
        (false, true) => GroupOutcome::Lost(why),
        (false, false) => GroupOutcome::Failed(why),
    }
}

/// The data of a group's members.
#[derive(Default)]
struct GroupData {
    data: Vec<Datum>,
    /// Of each datum, whether more than one version of the weights may have sampled it.
    swapped: Vec<bool>,
    /// Number of sampled tokens that are left out of the loss.
    masked_tokens: u64,
}

/// The data of a group's members. In a group of `constant` rewards only the KL penalty teaches.
fn data(
    members: &[TrainingRollout],
    lengths: &[RolloutLength],
    constant: bool,
    options: &BatcherOptions,
) -> Result<GroupData, DatumError> {
    let penalty = penalty(members, options.kl_penalty);
    let mut all = GroupData::default();
    for (member, length) in members.iter().zip(lengths) {
        if length.truncated && options.length.truncated == TruncatedRollouts::Mask {
            continue;
        }
        let weight = match options.weighting {
            LossWeighting::Token => 1.0,
            LossWeighting::Sequence => 1.0 / member.rollout.sampled_tokens().max(1) as f32,
        };
        let earned = if constant { 0.0 } else { member.advantage };
        let turns = &member.rollout.turns;
        let trusted = |turn: usize, token: usize| turns[turn].completion.logprobs[token] >= LEAST_LOGPROB;
        let advantage =
            |turn, token| trusted(turn, token).then(|| weight * (earned + penalty(member, turn, token)));
        all.data.extend(member.rollout.data(advantage)?);
        all.swapped.resize(all.data.len(), member.rollout.spans_versions());
        let logprobs = turns.iter().flat_map(|turn| &turn.completion.logprobs);
        all.masked_tokens += logprobs.filter(|logprob| **logprob < LEAST_LOGPROB).count() as u64;
    }
    Ok(all)
}

/// What a token's advantage gains from being likelier under the reference than the group's tokens are on average:
/// `coef · (mean drift - drift)`, as tinker-cookbook has it, with the group in the place of the batch. It is the gradient of
/// `-coef · KL(policy ‖ reference)` in the form of Schulman's k1 estimator (2020, "Approximating KL divergence"); the mean
/// is a baseline.
fn penalty(members: &[TrainingRollout], coef: f32) -> impl Fn(&TrainingRollout, usize, usize) -> f32 {
    let drifts = members.iter().flat_map(|member| member.drift.iter().flatten());
    let (sum, count) = drifts.fold((0.0, 0.0), |(sum, count), drift| (sum + f64::from(*drift), count + 1.0));
    let mean = if count > 0.0 { (sum / count) as f32 } else { 0.0 };
    move |member, turn, token| match member.drift.get(turn).and_then(|turn| turn.get(token)) {
        Some(drift) => coef * (mean - drift),
        None => 0.0,
    }
}

/// Groups ready to be trained, oldest weights first, then in the order in which they were opened.
#[derive(Default)]
pub struct ReadyGroups {
    ready: BTreeMap<(PolicyVersion, GroupId), TrainingGroup>,
}

impl ReadyGroups {
    /// Adds a group in the order of its oldest weights.
    pub fn add(&mut self, group: TrainingGroup) {
        self.ready.insert((group.oldest, group.group.id), group);
    }

    /// Number of groups that wait for their batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ready.len()
    }

    /// Takes all groups for which `too_old` returns true.
    pub fn take_old(&mut self, too_old: impl Fn(PolicyVersion) -> bool) -> Vec<TrainingGroup> {
        let mut old = Vec::new();
        while let Some(entry) = self.ready.first_entry()
            && too_old(entry.key().0)
        {
            old.push(entry.remove());
        }
        old
    }

    /// Takes the `count` oldest groups.
    pub fn take(&mut self, count: usize) -> Vec<TrainingGroup> {
        std::iter::from_fn(|| self.ready.pop_first()).take(count).map(|(_, group)| group).collect()
    }
}
