//! The metrics of one step.

use super::TrainerOptions;
use super::gradient_accumulation::GradientAccumulation;
use super::staleness::StalenessHistogram;
use crate::messages::{TrainingGroup, TrainingRollout};
use crate::telemetry::names;
use minds_core::datum::{Datum, LossInputs};
use minds_core::optim::AdamParams;
use minds_core::reward::{Metrics, means};
use minds_core::service::{ForwardOutput, LOGPROB_ROUNDING};
use std::collections::BTreeMap;
use tracing::warn;

pub(super) fn metrics(
    options: &TrainerOptions,
    step: u64,
    adam: &AdamParams,
    accumulated: &GradientAccumulation,
    forward: Option<&ForwardOutput>,
) -> Metrics {
    let GradientAccumulation { groups, data, optim, clipped, train, idle, held, .. } = accumulated;
    let mut out = Metrics::new();
    let mut put = |name: &str, value: f64| {
        out.insert(name.into(), value);
    };
    put(names::STEP, step as f64);
    put(names::DONE_FRAC, step as f64 / options.max_steps as f64);
    put(names::LEARNING_RATE, adam.learning_rate);
    put(names::TIME_TRAIN, train.as_secs_f64());
    put(names::TIME_TRAINER_IDLE, idle.as_secs_f64());
    put(names::TIME_WAITS_FOR_STRAGGLERS, held.as_secs_f64());
    let mut staleness = StalenessHistogram::default();
    staleness.add(step, groups);
    put(names::STALENESS_MEAN, staleness.mean());
    for (name, share) in names::STALENESS_PERCENTILES {
        put(name, staleness.percentile(share) as f64);
    }
    let members = || groups.iter().flat_map(|g| g.members.iter());
    put(names::TOKENS_SAMPLED, members().map(|m| m.rollout.sampled_tokens()).sum::<usize>() as f64);
    put(names::TOKENS_PROMPT, members().map(|m| m.rollout.prompt_tokens()).sum::<usize>() as f64);
    put(names::TOKENS_TRAINED, data.iter().map(Datum::trained_tokens).sum::<usize>() as f64);
    let masked: u64 = groups.iter().map(|group| group.masked_tokens).sum();
    put(names::TOKENS_MASKED, masked as f64);
    if masked > 0 {
        warn!(
            step,
            tokens = masked,
            "the service sampled tokens that it gives a probability below one in nine million: they are left out of the \
             loss"
        );
    }
    let logprobs = members().flat_map(|m| &m.rollout.turns).map(|turn| &turn.completion.logprobs);
    put(names::ENTROPY, -mean_of_tokens(logprobs).unwrap_or(0.0));
    if let Some(drift) = mean_of_tokens(members().flat_map(|m| &m.drift)) {
        put(names::KL_REFERENCE, drift);
    }
    if let Some(forward) = forward {
        let gaps = gaps(data.iter().zip(&forward.logprobs));
        let kl = 0.5 * mean(gaps.iter().map(|g| g * g));
        put(names::KL_V1, mean(gaps.iter().copied()));
        put(names::KL_V2, kl);
        if let Some(limit) = options.kl_alarm {
            put(names::KL_ALARM, if kl > limit { 1.0 } else { 0.0 });
            if kl > limit {
                warn!(step, kl, limit, "the weights in training have drifted from the sampling weights");
            }
        }
        put(names::LARGEST_GAP, gaps.iter().fold(0.0, |most, g| f64::max(most, g.abs())));
        let impossible = forward.logprobs.iter().flatten().filter(|lp| **lp > LOGPROB_ROUNDING).count();
        put(names::IMPOSSIBLE_LOGPROBS, impossible as f64);
        if impossible > 0 {
            warn!(
                step,
                tokens = impossible,
                "the service's pass gave logprobs above 0, which would be probabilities above 1: its gradients are in \
                 the step, and these tokens are left out of the drift"
            );
        }
    }
    put(names::GRADIENT_CLIPPED, f64::from(*clipped));
    if let Some(optim) = optim {
        optim.metrics.iter().for_each(|(name, value)| put(&format!("optim/{name}"), *value));
    }
    put(names::STEPPED, if optim.is_some() { 1.0 } else { 0.0 });
    environment("env/all", groups.iter(), &mut out);
    let mut by_name: BTreeMap<&str, Vec<&TrainingGroup>> = BTreeMap::new();
    for group in groups {
        by_name.entry(&group.group.component.name).or_default().push(group);
    }
    for (name, groups) in by_name {
        environment(&format!("env/{name}"), groups.into_iter(), &mut out);
    }
    // A metric of the service never replaces one of the run under the same name.
    for (name, value) in forward.into_iter().flat_map(|forward| &forward.metrics) {
        out.entry(name.clone()).or_insert(*value);
    }
    // Drops non-finite metrics: JSON has no NaN.
    out.retain(|name, value| {
        if !value.is_finite() {
            warn!(step, name, value, "metric of this step is not finite and is left out");
        }
        value.is_finite()
    });
    out
}

/// `q - p` for every token that was sampled: logprob at sampling time minus logprob before the step. A target
/// whose logprob at sampling time is exactly 0 was given, not sampled, or certain, and has nothing to compare; nor has
/// one whose trained logprob is invalid.
pub(super) fn gaps<'a>(data: impl Iterator<Item = (&'a Datum, &'a Vec<f32>)>) -> Vec<f64> {
    let mut gaps = Vec::new();
    for (datum, now) in data {
        if let LossInputs::Policy { logprobs, .. } = datum.inputs() {
            let sampled = logprobs.iter().zip(now).filter(|(q, p)| **q != 0.0 && **p <= LOGPROB_ROUNDING);
            gaps.extend(sampled.map(|(q, p)| f64::from(*q) - f64::from(*p)));
        }
    }
    gaps
}

fn environment<'a>(prefix: &str, groups: impl Iterator<Item = &'a TrainingGroup> + Clone, out: &mut Metrics) {
    let mut put = |name: &str, value: f64| {
        out.insert(format!("{prefix}/{name}"), value);
    };
    let members: Vec<&TrainingRollout> = groups.clone().flat_map(|g| g.members.iter()).collect();
    let rewards = || members.iter().map(|m| f64::from(m.score.reward.get()));
    put(names::REWARD, mean(rewards()));
    put(names::REWARD_STD, {
        let centre = mean(rewards());
        mean(rewards().map(|r| (r - centre).powi(2))).sqrt()
    });
    put(names::ROLLOUTS, members.len() as f64);
    put(names::REWARD_ERRORS, groups.clone().map(|g| f64::from(g.missing)).sum());
    put(names::MIXED, mean(groups.map(|g| f64::from(u8::from(!g.constant)))));
    let turns = || members.iter().map(|m| m.rollout.turns.len());
    put(names::TURNS_PER_ROLLOUT, mean(turns().map(|n| n as f64)));
    let tokens: usize = members.iter().map(|m| m.rollout.sampled_tokens()).sum();
    put(names::TOKENS_PER_TURN, tokens as f64 / turns().sum::<usize>() as f64);
    let complete = members.iter().flat_map(|m| &m.rollout.turns).map(|t| f64::from(u8::from(t.complete)));
    put(names::COMPLETE, mean(complete));
    names::add_parts(out, prefix, names::OF_AN_ENVIRONMENT, means(members.iter().map(|m| &m.score.metrics)));
}

pub(super) fn mean(values: impl Iterator<Item = f64>) -> f64 {
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
