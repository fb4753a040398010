//! Groups in the batcher: open ones by member, ready ones by age. Does no I/O.

use super::{BatcherOptions, ConstantGroups, LossWeighting};
use crate::messages::{
    Group, RewardedRollout, RolloutFailure, SavedGroup, ScoredRollout, TrainingGroup, TrainingRollout,
};
use minds_core::advantage::{Estimator, is_constant};
use minds_core::ids::{GroupId, PolicyVersion};
use minds_core::reward::Reward;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// A sampled token with a smaller logprob, in nats, is left out of the loss. At temperature 1 a model samples a given
/// token of this logprob once in nine million draws, so what is reported here is a fault of the service far more often
/// than a fact; and as no trained logprob is above 0, importance ratios are at most `exp(16)` then.
const LEAST_LOGPROB: f32 = -16.0;

/// Members by group, until a group is complete.
#[derive(Default)]
pub struct OpenGroups {
    open: BTreeMap<GroupId, (Weak<Group>, BTreeMap<u32, RolloutOutcome>)>,
}

type RolloutOutcome = Result<RewardedRollout, RolloutFailure>;

/// A group whose members have all been scored or have failed.
pub struct CompleteGroup {
    /// The group that is complete.
    pub group: Arc<Group>,
    members: BTreeMap<u32, RolloutOutcome>,
}

impl OpenGroups {
    /// Adds a member; returns the group when it was the last. A member that arrives twice counts once.
    pub fn add(&mut self, scored: ScoredRollout) -> Option<CompleteGroup> {
        let ScoredRollout { group, member, outcome } = scored;
        if !self.open.contains_key(&group.id) {
            // A group that lost a member can never be complete; it is gone once this is its only reference.
            self.open.retain(|_, (group, _)| group.strong_count() > 0);
        }
        let (_, members) =
            self.open.entry(group.id).or_insert_with(|| (Arc::downgrade(&group), BTreeMap::new()));
        members.entry(member).or_insert(outcome);
        if members.len() < group.component.group_size.get() as usize {
            return None;
        }
        let (_, members) = self.open.remove(&group.id)?;
        Some(CompleteGroup { group, members })
    }
}

impl CompleteGroup {
    /// A group that an earlier part of the run had collected.
    pub fn restored(group: Arc<Group>, saved_group: &SavedGroup) -> Self {
        let lost = |member| (member, Err("it had failed before the run was interrupted".into()));
        let mut members: BTreeMap<u32, RolloutOutcome> =
            (0..group.component.group_size.get()).map(lost).collect();
        for member in saved_group.members.iter() {
            let TrainingRollout { rollout, score, drift, .. } = member.clone();
            members.insert(rollout.id.member, Ok(RewardedRollout { rollout, score, drift }));
        }
        Self { group, members }
    }

    /// Computes advantages and builds data.
    ///
    /// # Errors
    /// Too few members have a reward, or a rollout makes no datum. The first cause, or why a service did not answer if
    /// there would have been enough members with those that it left without one.
    pub fn build(self, options: &BatcherOptions) -> Result<TrainingGroup, RolloutFailure> {
        let estimator = options.estimator;
        let Self { group, members } = self;
        let size = members.len();
        let mut missing = Vec::new();
        let mut rewarded = Vec::new();
        for outcome in members.into_values() {
            match outcome {
                Ok(scored) => rewarded.push(scored),
                Err(why) => missing.push(why),
            }
        }
        let needed = options.min_members.get().clamp(size.min(2), size);
        if rewarded.len() < needed {
            let have = rewarded.len();
            let unanswered = missing.iter().filter(|failure| failure.unanswered).count();
            let unanswered = have + unanswered >= needed;
            let cause = missing.iter().find(|failure| failure.unanswered == unanswered);
            let cause =
                cause.or(missing.first()).map_or("no member finished", |failure| failure.why.as_str());
            let why = format!(
                "{have} of {size} members have a reward, {needed} are needed (trainer.min_members, \
                 trainer.on_member_failure): {cause}"
            );
            return Err(RolloutFailure { why, unanswered });
        }
        let rewards: Vec<Reward> = rewarded.iter().map(|scored| scored.score.reward).collect();
        let advantages = estimator.advantages(&rewards);
        // Rounding of the mean can leave a trace of an advantage where all rewards are equal.
        let constant =
            advantages.iter().all(|a| *a == 0.0) || (estimator != Estimator::None && is_constant(&rewards));
        let members: Arc<[TrainingRollout]> = rewarded
            .into_iter()
            .zip(advantages)
            .map(|(RewardedRollout { rollout, score, drift }, advantage)| TrainingRollout {
                rollout,
                score,
                advantage,
                drift,
            })
            .collect();
        let filtered = constant && options.constant != ConstantGroups::Keep;
        let mut data = Vec::new();
        let mut masked_tokens = 0;
        // Without a penalty, equal rewards give no gradient.
        if !filtered && (!constant || options.kl_penalty > 0.0) {
            let penalty = penalty(&members, options.kl_penalty);
            for member in members.iter() {
                let weight = match options.weighting {
                    LossWeighting::Token => 1.0,
                    LossWeighting::Sequence => 1.0 / member.rollout.sampled_tokens().max(1) as f32,
                };
                let earned = if constant { 0.0 } else { member.advantage };
                let turns = &member.rollout.turns;
                let trusted =
                    |turn: usize, token: usize| turns[turn].completion.logprobs[token] >= LEAST_LOGPROB;
                let advantage = |turn, token| match trusted(turn, token) {
                    true => weight * (earned + penalty(member, turn, token)),
                    false => 0.0,
                };
                data.extend(member.rollout.data(advantage).map_err(|e| e.to_string())?);
                let logprobs = turns.iter().flat_map(|turn| &turn.completion.logprobs);
                masked_tokens += logprobs.filter(|logprob| **logprob < LEAST_LOGPROB).count() as u64;
            }
        }
        let oldest = members.iter().map(|m| m.rollout.policy).min().unwrap_or(PolicyVersion(0));
        let missing = missing.len() as u32;
        Ok(TrainingGroup { group, members, missing, constant, filtered, masked_tokens, data, oldest })
    }
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
