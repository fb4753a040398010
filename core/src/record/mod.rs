//! What a run records: steps, evaluations, rollouts and the quarantine, as the run folder stores them and as the
//! dashboard, TensorBoard and the report show them.
//!
//! A row is flat: one key per number, such as `optim/entropy` or `env/<name>/reward/total`. Keys follow tinker-cookbook
//! where the meaning is the same. A number that a step has not is absent from its row. `docs/metrics.md` is made of the
//! doc comments here.

mod numbers;
mod rows;
#[cfg(test)]
mod tests;
mod written_rollouts;

use crate::reward::Metrics;
use numbers::{NumericRecord, numbers};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::collections::BTreeMap;

pub use numbers::NumberInfo;
pub use rows::{QuarantineRow, RolloutRow, TurnRow};
pub use written_rollouts::WrittenRollouts;

/// Key of the step in the rows of steps and evaluations.
pub const STEP: &str = "step";

/// Name under which a step has the numbers of all its environments together.
pub const ALL_ENVIRONMENTS: &str = "all";

/// Start of the keys of a step's environments.
const ENVIRONMENTS: &str = "env";

/// Start of the keys of an evaluation's environments.
const EVALUATED: &str = "eval";

numbers! {
    /// Everything measured about one optimizer step: a row of `metrics.json`. The stage that commits the step
    /// completes it.
    pub struct StepRecord with StepKeys {
        /// Optimizer steps done, this one included.
        step: u64,
        /// Numbers of each environment in the step by its name, and of [`ALL_ENVIRONMENTS`].
        environments: BTreeMap<String, EnvironmentRecord>,
    }
    numbers {
        /// Share of `total_batches` that is done.
        done_frac: "progress/done_frac" "share",
        /// Learning rate of the step.
        learning_rate: "optim/lr" "–",
        /// Whether there was an optimizer step: 0 if the rewards of every group were equal, so that the
        /// weights stayed.
        stepped: "optim/stepped" "0 or 1",
        /// Mean of −logprob over all sampled tokens.
        entropy: "optim/entropy" "nats",
        /// Mean of q − p over the trained completions' tokens: q is the logprob at sampling, p the one under
        /// the weights in training before the step. Absent if nothing was trained.
        kl_v1: "optim/kl_sample_train_v1" "nats",
        /// Half the mean of the squared gap q − p. Off-policy it grows with the staleness of the rollouts;
        /// on-policy it shows by how much sampler and trainer differ.
        kl_v2: "optim/kl_sample_train_v2" "nats",
        /// The same over the rollouts that one version of the weights sampled; only with `weights = "inflight"`, and
        /// absent if the step has none. Rollouts that span versions differ from the weights in training by more,
        /// as they should; this number does not grow with their share.
        kl_one_version: "optim/kl_one_version" "nats",
        /// The largest of the gaps between q and p, up or down.
        largest_gap: "optim/max_abs_logprob_gap" "nats",
        /// Whether `optim/kl_sample_train_v2` is above `trainer.kl_alarm`; only with such a limit. With `weights =
        /// "inflight"`, `optim/kl_one_version` takes its place.
        kl_alarm: "optim/kl_alarm" "0 or 1",
        /// Optimizer steps of this batch whose gradient was clipped at the running limit
        /// (`optim.grad_clip_multiple`). If it is not 0, look at `optim/max_abs_logprob_gap`.
        clipped: "optim/clipped" "steps",
        /// Logprobs of the pass above 0 by more than rounding (0.001), which would be probabilities above 1.
        /// The step stands, because its gradients are the service's own; such tokens are left out of the
        /// gaps. If it is not 0, the service computes wrong logprobs.
        impossible_logprobs: "optim/impossible_logprobs" "tokens",
        /// Mean logprob at sampling minus that under the reference (`trainer.kl_reference`, or the teacher); only with
        /// `kl_penalty_coef` or `[teacher]`. It estimates the reverse KL per token.
        kl_reference: "optim/kl_policy_base" "nats",
        /// Norm of all gradients before clipping, as the embedded engine reports it.
        grad_norm: "optim/grad_norm" "–",
        /// Factor by which the gradients were multiplied, as the embedded engine reports it: 1 if nothing was
        /// clipped.
        grad_clip: "optim/grad_clip" "factor",
        /// Mean of −logprob over the imitated tokens before the step; only in supervised runs.
        train_nll: "train_mean_nll" "nats",
        /// Summed loss of the step's passes.
        loss_sum: "loss:sum" "–",
        /// Optimizer steps between the weights that sampled a group and those that it trained: mean over the
        /// groups.
        staleness_mean: "async/staleness_mean" "steps",
        /// The largest staleness of a group: never above `trainer.max_staleness`.
        staleness_max: "async/staleness_max" "steps",
        /// The smallest staleness of a group.
        staleness_min: "async/staleness_min" "steps",
        /// Half of the groups are at most this stale (nearest rank).
        staleness_p50: "async/staleness_p50" "steps",
        /// 99 of 100 groups are at most this stale.
        staleness_p99: "async/staleness_p99" "steps",
        /// Optimizer steps between the newest weights that sampled a rollout and those that it trained: mean over the
        /// rollouts; only with `weights = "inflight"`. A rollout's staleness is the range from here to that of its
        /// group.
        staleness_newest: "async/staleness_newest_mean" "steps",
        /// Optimizer steps between the weights that sampled a token and those that it trained: mean over the tokens.
        /// With `weights = "inflight"` over a server, which does not tell the weights of a token, only in steps in
        /// which no rollout met new weights; always with the embedded engine.
        staleness_token: "async/staleness_token_mean" "steps",
        /// Steps between the oldest and the newest weights that sampled a token of a rollout: the largest of the step;
        /// only with `weights = "inflight"`. Over a server, which does not tell the weights of a token, between
        /// those of the first request and the newest that were published at the end.
        version_range_max: "async/version_range_max" "steps",
        /// Share of the rollouts that more than one version of the weights sampled; only with `weights =
        /// "inflight"`.
        swapped_share: "async/swapped_share" "share",
        /// Share of the trainer's busy time in which sampling or scoring went on.
        overlap_share: "async/overlap_share" "share",
        /// Tokens of all completions.
        tokens_sampled: "tokens/sampled" "tokens",
        /// Tokens of the rollouts' last prompts.
        tokens_prompt: "tokens/prompt" "tokens",
        /// Tokens with an advantage that is not 0.
        tokens_trained: "tokens/trained" "tokens",
        /// Tokens left out of the loss because the service claims to have sampled them at a logprob below
        /// −16, one in nine million.
        tokens_masked: "tokens/masked" "tokens",
        /// Prompt tokens that the service computed and bills since the end of the step before, over all requests
        /// of the run: rollouts, logprob queries, evaluations and measurements. Absent on the embedded engine,
        /// as are the numbers below.
        billed_prefill_uncached: "tokens/billed/prefill_uncached" "tokens",
        /// Prompt tokens that the service bills at the price of its prefix cache, likewise.
        billed_prefill_cached: "tokens/billed/prefill_cached" "tokens",
        /// Sampled tokens that the service bills, likewise, those of rollouts that were not trained included.
        billed_sampled: "tokens/billed/sampled" "tokens",
        /// Tokens of training passes that the service bills, likewise.
        billed_trained: "tokens/billed/trained" "tokens",
        /// Price of these tokens; absent if the prices of the model are unknown.
        cost_step: "cost/step_usd" "USD",
        /// Price of all billed tokens of the run, those before it was resumed included.
        cost_cumulative: "cost/cumulative_usd" "USD",
        /// Time since the end of the step before.
        time_total: "time/total" "s",
        /// Passes and optimizer step, from submission to result.
        time_train: "time/train" "s",
        /// Time that the trainer waited for the groups of this step.
        time_trainer_idle: "time/trainer_idle" "s",
        /// Part of the idle time in which a batch was complete and held back, so that no group still being
        /// sampled becomes staler than `max_staleness`. Above 5% of the time the run reports it at its end.
        time_waits_for_stragglers: "time/waits_for_stragglers" "s",
        /// Time until the new weights were ready to sample from; only of steps that publish them.
        time_export: "time/export" "s",
        /// Part of `time/total` in which at least one completion was being sampled.
        time_sampling_busy: "time/sampling_busy" "s",
        /// Part of `time/total` in which at least one reward was being computed.
        time_scoring_busy: "time/scoring_busy" "s",
        /// Part of `time/total` in which the trainer was busy.
        time_training_busy: "time/training_busy" "s",
        /// Time in which the trainer was idle and only sampling went on.
        time_waits_for_sampling: "time/waits_for_sampling" "s",
        /// Time in which the trainer was idle and only scoring went on.
        time_waits_for_scoring: "time/waits_for_scoring" "s",
        /// Time in which the trainer was idle and both went on.
        time_waits_for_both: "time/waits_for_both" "s",
        /// Time in which the trainer was idle, neither went on, and new weights were being made.
        time_waits_for_export: "time/waits_for_export" "s",
        /// Logprob queries that rewards sent.
        queries_used: "scorer/queries_used" "queries",
        /// Most queries per step: `scorer.queries_per_step`, if it is set.
        queries_budget: "scorer/queries_budget" "queries",
        /// Queries answered from memory, because an equal one had been sent.
        queries_cached: "scorer/queries_remembered" "queries",
        /// Time that queries waited for permits or for the next budget, summed over them.
        queries_wait: "scorer/queries_wait_s" "s",
        /// Gradient steps measured. The numbers under `shadow/` are present only if rewards ask for such
        /// measurements.
        shadow_measured: "shadow/measured" "–",
        /// Mean time that a measurement waited for an adapter.
        shadow_wait: "shadow/wait_s" "s",
        /// Mean time that a measurement took.
        shadow_service: "shadow/service_s" "s",
        /// Part of `time/total` in which at least one gradient step was being measured.
        shadow_busy: "shadow/busy_s" "s",
        /// The same as a share of the time in which anything went on.
        shadow_share: "shadow/service_share" "share",
    }
    /// Other numbers that the service reports of its passes and of its optimizer step, by their keys.
    open service {
        /// What else a service reports of its optimizer step, by its own name.
        "optim/<number>" "–",
        /// What else a service reports of its passes, combined over the parts of a step by the rule in the
        /// name.
        "<number>:<rule>" "–",
    }
}

numbers! {
    /// Numbers of one environment in a step, under `env/<name>/`.
    pub struct EnvironmentRecord with EnvironmentKeys {}
    numbers {
        /// Mean reward. `<name>` is an environment's name, or `all` for all rollouts of the step together.
        reward: "reward/total" "–",
        /// Standard deviation of the rewards.
        reward_std: "reward/std" "–",
        /// Rollouts that have a reward.
        rollouts: "total_episodes" "rollouts",
        /// Rollouts of the step's groups that have none.
        reward_errors: "missing_episodes" "rollouts",
        /// Groups whose rewards differ. The others have no learning signal.
        mixed_share: "by_group/frac_mixed" "share",
        /// Mean completions per rollout.
        turns_per_rollout: "turns_per_episode" "completions",
        /// Mean tokens per completion.
        tokens_per_turn: "ac_tokens_per_turn" "tokens",
        /// Completions that ended by themselves, not at `max_new_tokens`.
        complete_share: "stop/complete" "share",
    }
    /// Means of the metrics that explain the rewards, over the rollouts that have them, by name.
    open parts {
        /// Mean of what the rewards were made of, over the rollouts that have it: each environment's own,
        /// listed in `environments/README.md`. `bonus_of_zero` and `bonus_of_mean` are what the best constant
        /// predictions would have earned. `length_penalty` is what length cost, with `trainer.overlong_buffer` or
        /// `length_penalty`; the rewards are those without it. Python packages have `reward_coerced`, `reward_errors` and what
        /// they report. A part with the name of one of the numbers above is under `env/<name>/metric/`.
        "<part>" "–",
    }
}

numbers! {
    /// Numbers of one environment in an evaluation, under `eval/<name>/`.
    pub struct EvaluatedEnvironment with EvaluatedKeys {}
    numbers {
        /// Mean over the items of the mean reward of their samples (avg@k with `eval.samples_per_item`).
        reward: "reward" "–",
        /// Lower end of its 95% interval over items (normal approximation); absent for a single item.
        reward_low: "reward_low" "–",
        /// Upper end of that interval.
        reward_high: "reward_high" "–",
        /// Rollouts that have a reward, of all items together.
        rollouts: "episodes" "rollouts",
        /// Rollouts that have none.
        reward_errors: "missing" "rollouts",
    }
    /// Means of the metrics that explain the rewards, over the rollouts that have them, by name.
    open parts {
        /// Mean of what the rewards were made of, as `env/<name>/<part>`.
        "<part>" "–",
        /// Chance that at least one of k samples of an item has a reward of `eval.success_at` or more, for k = 1, 2, 4, …
        /// up to `eval.samples_per_item` (unbiased, Chen et al. 2021); only with more than one sample.
        "pass@<k>" "share",
        /// Lower end of its 95% interval over items.
        "pass@<k>_low" "share",
        /// Upper end of that interval.
        "pass@<k>_high" "share",
    }
}

impl StepRecord {
    /// Numbers of all environments together.
    #[must_use]
    pub fn all(&self) -> Option<&EnvironmentRecord> {
        self.environments.get(ALL_ENVIRONMENTS)
    }

    /// Mean reward of all rollouts.
    #[must_use]
    pub fn reward(&self) -> Option<f64> {
        self.all()?.reward
    }

    /// All numbers but the step, by key.
    #[must_use]
    pub fn numbers(&self) -> Metrics {
        let mut row = self.service.clone();
        row.extend(self.present().map(|(key, value)| (key.to_owned(), value)));
        numbers::add_environments(&mut row, ENVIRONMENTS, &self.environments);
        row
    }

    /// Adds a number of the service, unless the record has one of its own under this key.
    pub fn add_of_service(&mut self, key: &str, value: f64) {
        if self.field(key).is_none_or(|own| own.is_none()) {
            numbers::set(self, key, value);
        }
    }

    /// Removes and returns non-finite numbers: JSON has no NaN.
    pub fn remove_non_finite(&mut self) -> Metrics {
        let (finite, removed): (Metrics, Metrics) =
            self.numbers().into_iter().partition(|(_, value)| value.is_finite());
        if !removed.is_empty() {
            *self = Self::of(self.step, finite);
        }
        removed
    }

    fn of(step: u64, mut row: Metrics) -> Self {
        let environments = numbers::take_environments(&mut row, ENVIRONMENTS, EnvironmentRecord::KEYS.reward);
        let mut record = Self { step, environments, ..Self::default() };
        row.into_iter().for_each(|(key, value)| numbers::set(&mut record, &key, value));
        record
    }
}

impl Serialize for StepRecord {
    fn serialize<S: Serializer>(&self, into: S) -> Result<S::Ok, S::Error> {
        let mut row = self.numbers();
        row.insert(STEP.to_owned(), self.step as f64);
        row.serialize(into)
    }
}

impl<'de> Deserialize<'de> for StepRecord {
    /// Numbers that are `null` are absent.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let row = BTreeMap::<String, Option<f64>>::deserialize(from)?;
        let mut row: Metrics = row.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        let step = row.remove(STEP).filter(|step| *step >= 0.0);
        let step = step.ok_or_else(|| D::Error::custom("the row has no `step`"))?;
        Ok(Self::of(step as u64, row))
    }
}

/// The measurement of one version of the weights: a line of `evals.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(into = "StoredEvaluation", from = "StoredEvaluation")]
pub struct EvaluationRecord {
    /// Optimizer steps behind the weights.
    pub step: u64,
    /// Numbers of each environment, by its name.
    pub environments: BTreeMap<String, EvaluatedEnvironment>,
}

impl EvaluationRecord {
    /// All numbers but the step, by key.
    #[must_use]
    pub fn numbers(&self) -> Metrics {
        let mut row = Metrics::new();
        numbers::add_environments(&mut row, EVALUATED, &self.environments);
        row
    }
}

/// An [`EvaluationRecord`] as it is stored.
#[derive(Serialize, Deserialize)]
struct StoredEvaluation {
    step: u64,
    #[serde(flatten)]
    numbers: BTreeMap<String, Option<f64>>,
}

impl From<EvaluationRecord> for StoredEvaluation {
    fn from(record: EvaluationRecord) -> Self {
        let numbers = record.numbers().into_iter().map(|(key, value)| (key, Some(value))).collect();
        Self { step: record.step, numbers }
    }
}

impl From<StoredEvaluation> for EvaluationRecord {
    fn from(row: StoredEvaluation) -> Self {
        let mut numbers: Metrics =
            row.numbers.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        let sign = EvaluatedEnvironment::KEYS.rollouts;
        Self { step: row.step, environments: numbers::take_environments(&mut numbers, EVALUATED, sign) }
    }
}

/// Key of an environment's number in the row of a step; `key` is one of [`EnvironmentRecord::KEYS`] or a
/// part.
#[must_use]
pub fn environment_key(environment: &str, key: &str) -> String {
    format!("{ENVIRONMENTS}/{environment}/{key}")
}

/// Name of the environment whose reward has this key in the row of a step.
#[must_use]
pub fn environment_of(key: &str) -> Option<&str> {
    numbers::environment_of(key, ENVIRONMENTS, EnvironmentRecord::KEYS.reward)
}
