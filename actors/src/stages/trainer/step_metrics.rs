//! The record of a committed step, completed here and nowhere else.

use super::TrainerOptions;
use super::gradient_accumulation::GradientAccumulation;
use super::staleness::StalenessHistogram;
use super::token_gaps::TokenGaps;
use crate::messages::{TrainingGroup, TrainingRollout};
use crate::policy::QueryCounts;
use crate::telemetry::activity::BusyTimes;
use crate::usage::usage_meter::BilledTokens;
use minds_core::datum::Datum;
use minds_core::ids::PolicyVersion;
use minds_core::optim::AdamParams;
use minds_core::record::{ALL_ENVIRONMENTS, EnvironmentRecord, StepRecord};
use minds_core::reward::means;
use minds_core::rollout::Rollout;
use minds_core::service::{ForwardOutput, LOGPROB_ROUNDING, SamplerWeights};
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::warn;

/// Everything that is known of a step when it is committed.
pub(super) struct StepMeasurements<'a> {
    pub(super) step: u64,
    pub(super) adam: &'a AdamParams,
    pub(super) accumulated: &'a GradientAccumulation,
    /// Outputs of the passes, if anything was trained.
    pub(super) forward: Option<&'a ForwardOutput>,
    /// Time until the weights were ready to sample from, if they are published.
    pub(super) export: Option<Duration>,
    /// Queries since the step before.
    pub(super) queries: QueryCounts,
    /// Most queries per step.
    pub(super) queries_budget: Option<u64>,
    /// Whether rewards may ask for gradient steps.
    pub(super) has_shadow: bool,
    /// Busy times since the step before.
    pub(super) busy: BusyTimes,
    /// Billed tokens since the step before, if the service bills any.
    pub(super) billed: Option<BilledTokens>,
}

impl StepMeasurements<'_> {
    /// Completes the record of the step. Drops and logs non-finite numbers.
    pub(super) fn record(&self, options: &TrainerOptions) -> StepRecord {
        let accumulated = self.accumulated;
        let mut record = StepRecord {
            step: self.step,
            done_frac: Some(self.step as f64 / options.max_steps as f64),
            learning_rate: Some(self.adam.learning_rate),
            stepped: Some(f64::from(u8::from(accumulated.optim.is_some()))),
            clipped: Some(f64::from(accumulated.clipped)),
            tokens_trained: Some(accumulated.data.iter().map(Datum::trained_tokens).sum::<usize>() as f64),
            ..StepRecord::default()
        };
        if options.is_supervised() {
            record.train_nll = self.forward.and_then(|forward| mean_nll(&accumulated.data, forward));
        } else {
            self.add_rollouts(&mut record, options);
        }
        self.add_times(&mut record);
        self.add_cost(&mut record);
        // Last: a number of the service never replaces one of the run.
        for (name, value) in accumulated.optim.iter().flat_map(|optim| &optim.metrics) {
            record.add_of_service(&format!("optim/{name}"), *value);
        }
        for (name, value) in self.forward.iter().flat_map(|forward| &forward.metrics) {
            record.add_of_service(name, *value);
        }
        for (name, value) in record.remove_non_finite() {
            warn!(step = self.step, name, value, "metric of this step is not finite and is left out");
        }
        record
    }

    /// Numbers of what was sampled and rewarded.
    fn add_rollouts(&self, record: &mut StepRecord, options: &TrainerOptions) {
        record.environments = environments(&self.accumulated.groups);
        self.add_tokens(record);
        self.add_gaps(record, options);
        self.add_staleness(record);
        if options.weights == SamplerWeights::InFlight {
            self.add_version_ranges(record);
        }
        self.add_queries(record);
    }

    fn add_tokens(&self, record: &mut StepRecord) {
        let groups = &self.accumulated.groups;
        let members = || groups.iter().flat_map(|group| group.members.iter());
        let masked: u64 = groups.iter().map(|group| group.masked_tokens).sum();
        let logprobs = members().flat_map(|m| &m.rollout.turns).map(|turn| &turn.completion.logprobs);
        record.tokens_sampled = Some(members().map(|m| m.rollout.sampled_tokens()).sum::<usize>() as f64);
        record.tokens_prompt = Some(members().map(|m| m.rollout.prompt_tokens()).sum::<usize>() as f64);
        record.tokens_masked = Some(masked as f64);
        record.entropy = Some(-mean_of_tokens(logprobs).unwrap_or(0.0));
        record.kl_reference = mean_of_tokens(members().flat_map(|m| &m.drift));
        if masked > 0 {
            warn!(
                step = self.step,
                tokens = masked,
                "the service sampled tokens that it gives a probability below one in nine million: they are left out of the \
                 loss"
            );
        }
    }

    fn add_gaps(&self, record: &mut StepRecord, options: &TrainerOptions) {
        let Some(forward) = self.forward else { return };
        let step = self.step;
        let data = || self.accumulated.data.iter().zip(&forward.logprobs);
        let all = TokenGaps::of(data());
        let of_all = all.half_mean_square();
        // Rollouts that span versions differ from the weights in training by more, and no alarm is due for that.
        let watched = match options.weights {
            SamplerWeights::Snapshot => Some(of_all),
            SamplerWeights::InFlight => {
                let swapped = self.accumulated.groups.iter().flat_map(|group| &group.swapped);
                let of_one = TokenGaps::of(
                    data().zip(swapped).filter(|(_, swapped)| !**swapped).map(|(datum, _)| datum),
                );
                record.kl_one_version = (!of_one.is_empty()).then(|| of_one.half_mean_square());
                record.kl_one_version
            }
        };
        let alarm = options.kl_alarm.zip(watched);
        let impossible = forward.logprobs.iter().flatten().filter(|lp| **lp > LOGPROB_ROUNDING).count();
        record.kl_v1 = Some(all.mean());
        record.kl_v2 = Some(of_all);
        record.kl_alarm = alarm.map(|(limit, kl)| f64::from(u8::from(kl > limit)));
        record.largest_gap = Some(all.largest());
        record.impossible_logprobs = Some(impossible as f64);
        if let Some((limit, kl)) = alarm.filter(|(limit, kl)| kl > limit) {
            warn!(step, kl, limit, "the weights in training have drifted from the sampling weights");
        }
        if impossible > 0 {
            warn!(
                step,
                tokens = impossible,
                "the service's pass gave logprobs above 0, which would be probabilities above 1: its gradients are in \
                 the step, and these tokens are left out of the drift"
            );
        }
    }

    fn add_staleness(&self, record: &mut StepRecord) {
        let mut staleness = StalenessHistogram::default();
        staleness.add(self.step, &self.accumulated.groups);
        let percentile = |share| Some(staleness.percentile(share) as f64);
        record.staleness_mean = Some(staleness.mean());
        record.staleness_min = percentile(0.0);
        record.staleness_p50 = percentile(0.5);
        record.staleness_p99 = percentile(0.99);
        record.staleness_max = percentile(1.0);
        record.staleness_token = self.token_staleness();
    }

    /// The mean staleness of the tokens, if it is known which weights sampled them.
    fn token_staleness(&self) -> Option<f64> {
        let rollouts = self.accumulated.groups.iter().flat_map(|group| group.members.iter());
        let told: Vec<_> =
            rollouts.map(|member| member.rollout.tokens_by_version()).collect::<Option<_>>()?;
        let mut steps = 0.0;
        let mut count = 0;
        for (version, tokens) in told.into_iter().flatten() {
            steps += self.staleness(version) * tokens as f64;
            count += tokens;
        }
        Some(steps / count.max(1) as f64)
    }

    /// Optimizer steps between a version and the one that this step trained.
    fn staleness(&self, version: PolicyVersion) -> f64 {
        (self.step - 1).saturating_sub(version.0) as f64
    }

    /// How far the rollouts lie between the versions that sampled them.
    fn add_version_ranges(&self, record: &mut StepRecord) {
        let groups = &self.accumulated.groups;
        let rollouts = || groups.iter().flat_map(|group| group.members.iter()).map(|member| &member.rollout);
        let range = |rollout: &Rollout| {
            let versions = rollout.versions();
            (versions.end().0 - versions.start().0) as f64
        };
        record.staleness_newest =
            Some(mean(rollouts().map(|rollout| self.staleness(rollout.newest_policy()))));
        record.version_range_max = Some(rollouts().map(range).fold(0.0, f64::max));
        record.swapped_share =
            Some(mean(rollouts().map(|rollout| f64::from(u8::from(rollout.spans_versions())))));
    }

    fn add_times(&self, record: &mut StepRecord) {
        let Self { accumulated, busy, .. } = self;
        record.time_total = Some(busy.wall);
        record.time_train = Some(accumulated.train.as_secs_f64());
        record.time_trainer_idle = Some(accumulated.idle.as_secs_f64());
        record.time_waits_for_stragglers = Some(accumulated.held.as_secs_f64());
        record.time_export = self.export.map(|took| took.as_secs_f64());
        record.time_sampling_busy = Some(busy.sampling);
        record.time_scoring_busy = Some(busy.scoring);
        record.time_training_busy = Some(busy.training);
        record.time_waits_for_sampling = Some(busy.idle.sampling);
        record.time_waits_for_scoring = Some(busy.idle.scoring);
        record.time_waits_for_both = Some(busy.idle.both);
        record.time_waits_for_export = Some(busy.idle.exporting);
        record.overlap_share = Some(busy.overlap_share());
    }

    fn add_cost(&self, record: &mut StepRecord) {
        let Some(billed) = &self.billed else { return };
        record.billed_prefill_uncached = Some(billed.step.prefill_uncached as f64);
        record.billed_prefill_cached = Some(billed.step.prefill_cached as f64);
        record.billed_sampled = Some(billed.step.sampled as f64);
        record.billed_trained = Some(billed.step.trained as f64);
        record.cost_step = billed.prices.map(|prices| prices.usd(&billed.step));
        record.cost_cumulative = billed.prices.map(|prices| prices.usd(&billed.total));
    }

    fn add_queries(&self, record: &mut StepRecord) {
        let queries = &self.queries;
        record.queries_used = Some(queries.sent as f64);
        record.queries_budget = self.queries_budget.map(|budget| budget as f64);
        record.queries_cached = Some(queries.remembered as f64);
        record.queries_wait = Some(queries.waited_s);
        if self.has_shadow {
            let measured = queries.deltas.done as f64;
            record.shadow_measured = Some(measured);
            record.shadow_wait = (measured > 0.0).then(|| queries.deltas.waited_s / measured);
            record.shadow_service = (measured > 0.0).then(|| queries.deltas.worked_s / measured);
            record.shadow_busy = Some(self.busy.shadow);
            record.shadow_share = Some(self.busy.shadow_share());
        }
    }
}

/// Numbers of each environment, and of all together.
fn environments(groups: &[TrainingGroup]) -> BTreeMap<String, EnvironmentRecord> {
    let mut by_name: BTreeMap<&str, Vec<&TrainingGroup>> = BTreeMap::new();
    by_name.insert(ALL_ENVIRONMENTS, groups.iter().collect());
    for group in groups {
        by_name.entry(&group.group.component.name).or_default().push(group);
    }
    by_name.into_iter().map(|(name, groups)| (name.to_owned(), environment(&groups))).collect()
}

fn environment(groups: &[&TrainingGroup]) -> EnvironmentRecord {
    let members: Vec<&TrainingRollout> = groups.iter().flat_map(|group| group.members.iter()).collect();
    let rewards = || members.iter().map(|m| f64::from(m.score.reward.get()));
    let reward = mean(rewards());
    let turns = || members.iter().flat_map(|m| &m.rollout.turns);
    let tokens: usize = members.iter().map(|m| m.rollout.sampled_tokens()).sum();
    EnvironmentRecord {
        reward: Some(reward),
        reward_std: Some(mean(rewards().map(|r| (r - reward).powi(2))).sqrt()),
        rollouts: Some(members.len() as f64),
        reward_errors: Some(groups.iter().map(|group| f64::from(group.missing)).sum()),
        mixed_share: Some(mean(groups.iter().map(|group| f64::from(u8::from(!group.constant))))),
        turns_per_rollout: Some(mean(members.iter().map(|m| m.rollout.turns.len() as f64))),
        tokens_per_turn: Some(tokens as f64 / turns().count() as f64),
        complete_share: Some(mean(turns().map(|turn| f64::from(u8::from(turn.complete))))),
        parts: means(members.iter().map(|m| &m.score.metrics)),
    }
}

/// Mean of −logprob over the weighted targets, if there are any.
fn mean_nll(data: &[Datum], forward: &ForwardOutput) -> Option<f64> {
    let mut nll = 0.0;
    let mut total = 0.0;
    for (datum, logprobs) in data.iter().zip(&forward.logprobs) {
        for (position, logprob) in logprobs.iter().enumerate() {
            let (_, weight) = datum.loss_inputs_at(position);
            nll -= f64::from(weight) * f64::from(*logprob);
            total += f64::from(weight);
        }
    }
    (total > 0.0).then(|| nll / total)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// The mean over all tokens of all rows, if there are any. Row by row: steps may have millions of tokens.
fn mean_of_tokens<'a>(rows: impl Iterator<Item = &'a Vec<f32>>) -> Option<f64> {
    let (sum, count) = rows.fold((0.0, 0), |(sum, count), row| {
        (sum + row.iter().map(|value| f64::from(*value)).sum::<f64>(), count + row.len())
    });
    (count > 0).then(|| sum / count as f64)
}
