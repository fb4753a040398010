//! The rows of rollouts and of the quarantine.

use crate::chat::Message;
use crate::ids::Token;
use crate::reward::Metrics;
use crate::sampling::VersionSpan;
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A line of `rollouts/step_000001.jsonl`, or of `.jsonl.zst`: a rollout that was part of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RolloutRow<'a> {
    /// Its step, from 1.
    pub step: u64,
    /// The environment's name in metrics.
    pub environment: Cow<'a, str>,
    /// Id of its group in the run.
    pub group: u64,
    /// Index of the item within the environment's data.
    pub item: u64,
    /// Index of the rollout in its group.
    pub member: u32,
    /// Policy version that sampled it; the oldest, if it followed in-flight weights.
    pub policy: u64,
    /// Newest version that sampled it, as far as is known, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_policy: Option<u64>,
    /// Reward that the environment gave.
    pub reward: f32,
    /// Advantage that it was trained with, relative to its group.
    #[serde(deserialize_with = "number")]
    pub advantage: f32,
    /// Metrics that the environment reported with the reward.
    #[serde(deserialize_with = "numbers")]
    pub metrics: Cow<'a, Metrics>,
    /// Conversation before the first completion.
    pub prompt: Cow<'a, [Message]>,
    /// Turns of the rollout, in order.
    pub turns: Vec<TurnRow<'a>>,
}

/// One completion of a [`RolloutRow`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnRow<'a> {
    /// Text of the completion, as the renderer parsed it.
    pub text: Cow<'a, str>,
    /// Whether the completion ended with exactly one stop.
    pub complete: bool,
    /// Number of prompt tokens before the completion.
    pub prompt_tokens: usize,
    /// Token ids of the completion.
    pub tokens: Cow<'a, [Token]>,
    /// Logprobs of the tokens at sampling, in nats.
    pub logprobs: Cow<'a, [f32]>,
    /// Versions of the in-flight weights that sampled the tokens, from the first to the last; empty where they are not in
    /// flight, or the service does not tell.
    #[serde(default, skip_serializing_if = "<[VersionSpan]>::is_empty")]
    pub versions: Cow<'a, [VersionSpan]>,
}

/// A line of `quarantine.jsonl`: a rollout whose reward failed for good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuarantineRow<'a> {
    /// The environment's name in metrics.
    pub environment: Cow<'a, str>,
    /// Index of the item within the environment's data.
    pub item: u64,
    /// Id of its group in the run.
    #[serde(default)]
    pub group: u64,
    /// Index of the rollout in its group.
    #[serde(default)]
    pub member: u32,
    /// Policy version that sampled it.
    pub policy: u64,
    /// Kind of the reward error: `timed_out`, `environment` or `not_finite`.
    pub kind: Cow<'a, str>,
    /// Message of the reward error.
    pub cause: Cow<'a, str>,
    /// Texts of the completions, in order.
    pub text: Cow<'a, [String]>,
}

/// Reads a number; JSON has `null` for one that is not finite.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f32::NAN))
}

/// Reads numbers; JSON has `null` for those that are not finite.
fn numbers<'de, D: Deserializer<'de>>(from: D) -> Result<Cow<'static, Metrics>, D::Error> {
    let numbers = BTreeMap::<String, Option<f64>>::deserialize(from)?;
    Ok(Cow::Owned(numbers.into_iter().map(|(name, value)| (name, value.unwrap_or(f64::NAN))).collect()))
}
