//! The names of the metrics of a step and of an evaluation, each defined once. `docs/metrics.md` explains them all.
//!
//! Names follow tinker-cookbook where the meaning is the same.

use minds_core::reward::Metrics;

macro_rules! names {
    ($(#[$about:meta])* $all:ident { $($(#[$doc:meta])* $name:ident = $text:literal,)* }) => {
        $($(#[$doc])* pub const $name: &str = $text;)*
        $(#[$about])*
        pub const $all: &[&str] = &[$($text),*];
    };
}

names! {
    /// All metrics of a step but those of its environments, and those that the service reports of its passes and steps.
    OF_A_STEP {
        /// Optimizer steps done so far.
        STEP = "step",
        /// Share of the run that is done.
        DONE_FRAC = "progress/done_frac",
        /// Learning rate of the step.
        LEARNING_RATE = "optim/lr",
        /// Whether there was an optimizer step.
        STEPPED = "optim/stepped",
        /// Mean of -logprob over sampled tokens, nats.
        ENTROPY = "optim/entropy",
        /// Mean gap between sampled and trained logprobs, nats.
        KL_V1 = "optim/kl_sample_train_v1",
        /// Half the mean of the gap's square, nats.
        KL_V2 = "optim/kl_sample_train_v2",
        /// Whether that is above `trainer.kl_alarm`.
        KL_ALARM = "optim/kl_alarm",
        /// The largest gap, nats.
        LARGEST_GAP = "optim/max_abs_logprob_gap",
        /// Optimizer steps whose gradient was clipped at the running limit.
        GRADIENT_CLIPPED = "optim/clipped",
        /// Tokens whose trained logprob is above 0, which is invalid.
        IMPOSSIBLE_LOGPROBS = "optim/impossible_logprobs",
        /// Mean drift from the reference, nats.
        KL_REFERENCE = "optim/kl_policy_base",
        /// Mean staleness of the groups, steps.
        STALENESS_MEAN = "async/staleness_mean",
        /// The largest staleness, steps.
        STALENESS_MAX = "async/staleness_max",
        /// The smallest staleness, steps.
        STALENESS_MIN = "async/staleness_min",
        /// The median over groups, steps.
        STALENESS_P50 = "async/staleness_p50",
        /// The 99th percentile over groups, steps.
        STALENESS_P99 = "async/staleness_p99",
        /// Share of the training time that overlapped with sampling or scoring.
        OVERLAP_SHARE = "async/overlap_share",
        /// Sampled tokens, summed over completions.
        TOKENS_SAMPLED = "tokens/sampled",
        /// Tokens of the rollouts' last prompts.
        TOKENS_PROMPT = "tokens/prompt",
        /// Tokens that were trained.
        TOKENS_TRAINED = "tokens/trained",
        /// Sampled tokens left out of the loss because their logprob cannot be right.
        TOKENS_MASKED = "tokens/masked",
        /// Seconds from the end of the step before to that of this one.
        TIME_TOTAL = "time/total",
        /// Seconds from the submission of passes to their results.
        TIME_TRAIN = "time/train",
        /// Seconds that the trainer waited for groups.
        TIME_TRAINER_IDLE = "time/trainer_idle",
        /// Seconds of these in which a complete batch was held back for stragglers.
        TIME_WAITS_FOR_STRAGGLERS = "time/waits_for_stragglers",
        /// Seconds that new weights took to be ready.
        TIME_EXPORT = "time/export",
        /// Seconds in which something was sampled.
        TIME_SAMPLING_BUSY = "time/sampling_busy",
        /// Seconds in which something was scored.
        TIME_SCORING_BUSY = "time/scoring_busy",
        /// Seconds in which something was trained.
        TIME_TRAINING_BUSY = "time/training_busy",
        /// Seconds that the trainer waited while only sampling was under way.
        TIME_WAITS_FOR_SAMPLING = "time/waits_for_sampling",
        /// Seconds that the trainer waited while only scoring was under way.
        TIME_WAITS_FOR_SCORING = "time/waits_for_scoring",
        /// Seconds that the trainer waited while both were under way.
        TIME_WAITS_FOR_BOTH = "time/waits_for_both",
        /// Seconds that the trainer waited for new weights to be made.
        TIME_WAITS_FOR_EXPORT = "time/waits_for_export",
        /// Logprob queries sent in the step.
        QUERIES_USED = "scorer/queries_used",
        /// Most logprob queries per step.
        QUERIES_BUDGET = "scorer/queries_budget",
        /// Logprob queries answered from memory.
        QUERIES_CACHED = "scorer/queries_remembered",
        /// Seconds that queries waited for permits or for the next step.
        QUERIES_WAIT = "scorer/queries_wait_s",
        /// Number of gradient steps measured.
        SHADOW_MEASURED = "shadow/measured",
        /// Mean seconds that measurements waited for an adapter.
        SHADOW_WAIT = "shadow/wait_s",
        /// Mean seconds that measurements took.
        SHADOW_SERVICE = "shadow/service_s",
        /// Seconds in which one was being measured.
        SHADOW_BUSY = "shadow/busy_s",
        /// The same as a share of the busy time.
        SHADOW_SHARE = "shadow/service_share",
    }
}

/// The percentiles of staleness that a step reports, as shares of its groups.
pub const STALENESS_PERCENTILES: [(&str, f64); 4] =
    [(STALENESS_MIN, 0.0), (STALENESS_P50, 0.5), (STALENESS_P99, 0.99), (STALENESS_MAX, 1.0)];

names! {
    /// The metrics of an environment in a step, under `env/<name>/`, but for those of its rewards.
    OF_AN_ENVIRONMENT {
        /// Mean reward of the rollouts.
        REWARD = "reward/total",
        /// Standard deviation of the rewards.
        REWARD_STD = "reward/std",
        /// Rollouts with a reward.
        ROLLOUTS = "total_episodes",
        /// Rollouts without a reward.
        REWARD_ERRORS = "missing_episodes",
        /// Share of the groups whose rewards differ.
        MIXED = "by_group/frac_mixed",
        /// Mean turns per rollout.
        TURNS_PER_ROLLOUT = "turns_per_episode",
        /// Mean tokens per completion.
        TOKENS_PER_TURN = "ac_tokens_per_turn",
        /// Share of the completions that ended with a stop.
        COMPLETE = "stop/complete",
    }
}

names! {
    /// The metrics of an environment in an evaluation, under `eval/<name>/`, but for those of its rewards.
    OF_AN_EVALUATION {
        /// Mean reward of the rollouts.
        EVAL_REWARD = "reward",
        /// The lower end of its 95 % interval.
        EVAL_REWARD_LOW = "reward_low",
        /// The upper end of its 95 % interval.
        EVAL_REWARD_HIGH = "reward_high",
        /// Rollouts with a reward.
        EVAL_ROLLOUTS = "episodes",
        /// Rollouts without a reward.
        EVAL_REWARD_ERRORS = "missing",
    }
}

/// Adds the metrics of rewards to the run's own metrics of an environment: one with the name of an own metric
/// goes under `metric/`, so that it replaces none.
pub fn add_parts(out: &mut Metrics, prefix: &str, own: &[&str], parts: Metrics) {
    for (name, value) in parts {
        let apart = if own.contains(&name.as_str()) { "metric/" } else { "" };
        out.insert(format!("{prefix}/{apart}{name}"), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_named_like_a_run_metric_does_not_replace_it() {
        let mut out = Metrics::from([("eval/a/reward".into(), 0.25)]);
        let parts = Metrics::from([("reward".into(), 7.0), ("error".into(), 1.0)]);
        add_parts(&mut out, "eval/a", OF_AN_EVALUATION, parts);
        let expected = [("eval/a/error", 1.0), ("eval/a/metric/reward", 7.0), ("eval/a/reward", 0.25)];
        assert_eq!(out, expected.map(|(name, value)| (name.to_owned(), value)).into());
    }
}
