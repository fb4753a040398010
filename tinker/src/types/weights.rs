//! Saving and loading of weights.

use super::literal::{nullable, tag};
use super::models::OptimizerConfig;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Request body of `POST save_weights`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SaveWeightsRequest {
    /// Name of the model to save.
    pub model_id: String,
    /// Name to save the weights under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Position in the model's request order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_id: Option<i64>,
    /// Seconds to keep the weights; forever if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// Whether existing weights of that name may be overwritten.
    #[serde(default, deserialize_with = "nullable")]
    pub overwrite: bool,
    /// Arbitrary metadata of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Map<String, Value>>,
    /// Value of `type`, which marks this request.
    #[serde(rename = "type", default)]
    pub tag: tag::SaveWeights,
}

/// Response to `POST save_weights`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SaveWeightsResponse {
    /// Address of the saved weights.
    pub path: String,
    /// Value of `type`, which marks this result.
    #[serde(rename = "type", default)]
    pub tag: tag::SaveWeights,
}

/// Request body of `POST save_weights_for_sampler`. Without a `path`, the weights live as long as their sampler.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SaveWeightsForSamplerRequest {
    /// Name of the model to save.
    pub model_id: String,
    /// Name to save the weights under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Number of the new sampler within the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling_session_seq_id: Option<u64>,
    /// Whether the weights may change later.
    #[serde(default, deserialize_with = "nullable")]
    pub kind: SaveKind,
    /// Position in the model's request order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_id: Option<i64>,
    /// Seconds to keep the weights; forever if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// Arbitrary metadata of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Map<String, Value>>,
    /// Value of `type`, which marks this request.
    #[serde(rename = "type", default)]
    pub tag: tag::SaveWeightsForSampler,
}

/// Whether a sampler's weights may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SaveKind {
    /// The weights stay as they were at the call.
    #[default]
    Snapshot,
    /// Newer weights may replace them.
    Inflight,
}

/// Response to `POST save_weights_for_sampler`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SaveWeightsForSamplerResponse {
    /// Address of the weights, if they are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Sampler over the weights, if they are not kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling_session_id: Option<String>,
    /// Value of `type`, which marks this result.
    #[serde(rename = "type", default)]
    pub tag: tag::SaveWeightsForSampler,
}

/// Request body of `POST load_weights`: into a model (`model_id`) or a new one (`session_id` and `model_seq_id`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadWeightsRequest {
    /// Model to load into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    /// Position in that model's request order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_id: Option<i64>,
    /// Session of the model to create.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Number of the new model within the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_seq_id: Option<u64>,
    /// Address of the saved weights.
    pub path: String,
    /// Whether to load the optimizer's moments too; otherwise they start from zero.
    #[serde(default, deserialize_with = "nullable")]
    pub optimizer: bool,
    /// Name of the base model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_model: Option<String>,
    /// Arbitrary metadata of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Map<String, Value>>,
    /// Optimizer of the model to create.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer_config: Option<OptimizerConfig>,
    /// Value of `type`, which marks this request.
    #[serde(rename = "type", default)]
    pub tag: tag::LoadWeights,
}

/// Response to `POST load_weights`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadWeightsResponse {
    /// Address that the weights were loaded from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Model that the weights were loaded into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    /// Value of `type`, which marks this result.
    #[serde(rename = "type", default)]
    pub tag: tag::LoadWeights,
}

/// Request body of `POST weights_info`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WeightsInfoRequest {
    /// Address of the saved weights.
    pub tinker_path: String,
}

/// Response to `POST weights_info`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WeightsInfoResponse {
    /// Name of the base model.
    pub base_model: String,
    /// Whether the weights are an adapter.
    pub is_lora: bool,
    /// Rank of the adapter, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_rank: Option<usize>,
    /// Whether the output layer has an adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_unembed: Option<bool>,
    /// Whether feed-forward layers have an adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_mlp: Option<bool>,
    /// Whether attention layers have an adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train_attn: Option<bool>,
    /// Optimizer of the model, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer_config: Option<OptimizerConfig>,
}
