//! Saving and loading of weights.

use super::literal::{nullable, tag};
use super::models::OptimizerConfig;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `POST save_weights`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SaveWeightsRequest {
    /// Which model.
    pub model_id: String,
    /// Name to save under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Place in the model's order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_id: Option<i64>,
    /// Seconds to keep it; for ever if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// Whether a name may be taken again.
    #[serde(default, deserialize_with = "nullable")]
    pub overwrite: bool,
    /// Anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Map<String, Value>>,
    /// Which request this is.
    #[serde(rename = "type", default)]
    pub tag: tag::SaveWeights,
}

/// Result of `save_weights`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SaveWeightsResponse {
    /// Where the weights are.
    pub path: String,
    /// Which result this is.
    #[serde(rename = "type", default)]
    pub tag: tag::SaveWeights,
}

/// `POST save_weights_for_sampler`: with a `path` they are kept, without they live as long as their sampler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SaveWeightsForSamplerRequest {
    /// Which model.
    pub model_id: String,
    /// Name to save under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Number of the sampler to be made, from the count of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling_session_seq_id: Option<u64>,
    /// Whether they stay as they are.
    #[serde(default, deserialize_with = "nullable")]
    pub kind: SaveKind,
    /// Place in the model's order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_id: Option<i64>,
    /// Seconds to keep them; for ever if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// Anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Map<String, Value>>,
    /// Which request this is.
    #[serde(rename = "type", default)]
    pub tag: tag::SaveWeightsForSampler,
}

/// Whether a sampler's weights may move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SaveKind {
    /// They stay as they were at the call.
    #[default]
    Snapshot,
    /// They may become newer ones.
    Inflight,
}

/// Result of `save_weights_for_sampler`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SaveWeightsForSamplerResponse {
    /// Where they are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The sampler over them, if they are not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling_session_id: Option<String>,
    /// Which result this is.
    #[serde(rename = "type", default)]
    pub tag: tag::SaveWeightsForSampler,
}

/// `POST load_weights`: into a model (`model_id`), or into a new one (`session_id` and `model_seq_id`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadWeightsRequest {
    /// Model to load into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    /// Place in that model's order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_id: Option<i64>,
    /// Session of the model to be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Its number within the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_seq_id: Option<u64>,
    /// Where the weights are.
    pub path: String,
    /// Whether the optimizer's moments come too; otherwise it starts afresh.
    #[serde(default, deserialize_with = "nullable")]
    pub optimizer: bool,
    /// What they adapt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_model: Option<String>,
    /// Anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Map<String, Value>>,
    /// The optimizer of the model to be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer_config: Option<OptimizerConfig>,
    /// Which request this is.
    #[serde(rename = "type", default)]
    pub tag: tag::LoadWeights,
}

/// Result of `load_weights`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadWeightsResponse {
    /// Where they came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Which model has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    /// Which result this is.
    #[serde(rename = "type", default)]
    pub tag: tag::LoadWeights,
}

/// `POST weights_info`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WeightsInfoRequest {
    /// Which weights.
    pub tinker_path: String,
}

/// Answer to `POST weights_info`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WeightsInfoResponse {
    /// What they adapt.
    pub base_model: String,
    /// Whether they are an adapter.
    pub is_lora: bool,
    /// Its rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_rank: Option<usize>,
    /// Whether the output layer has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_unembed: Option<bool>,
    /// Whether feed-forward layers have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_mlp: Option<bool>,
    /// Whether attention has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_attn: Option<bool>,
    /// Its optimizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer_config: Option<OptimizerConfig>,
}
