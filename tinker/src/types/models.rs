//! Requests that create, describe and unload adapters.

use super::literal::tag;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Request body of `POST create_model`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CreateModelRequest {
    /// Session that the model belongs to.
    pub session_id: String,
    /// Number within the session, from 0; a repeated request with the same number returns the same model.
    pub model_seq_id: u64,
    /// Name of the base model.
    pub base_model: String,
    /// Arbitrary metadata of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Map<String, Value>>,
    /// The adapter; `None` would train the whole model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_config: Option<LoraConfig>,
    /// The optimizer, AdamW if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer_config: Option<OptimizerConfig>,
    /// Value of `type`, which marks this request.
    #[serde(rename = "type", default)]
    pub tag: tag::CreateModel,
}

/// Shape of an adapter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "LoraConfigAsSent")]
pub struct LoraConfig {
    /// Rank of the adapter's matrices.
    pub rank: usize,
    /// Seed of the randomly initialized matrices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Whether the output layer has an adapter.
    pub train_unembed: bool,
    /// Whether feed-forward layers have an adapter.
    pub train_mlp: bool,
    /// Whether attention layers have an adapter.
    pub train_attn: bool,
}

impl Default for LoraConfig {
    fn default() -> Self {
        LoraConfigAsSent::default().into()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LoraConfigAsSent {
    rank: Option<usize>,
    seed: Option<u64>,
    train_unembed: Option<bool>,
    train_mlp: Option<bool>,
    train_attn: Option<bool>,
}

impl From<LoraConfigAsSent> for LoraConfig {
    fn from(sent: LoraConfigAsSent) -> Self {
        Self {
            rank: sent.rank.unwrap_or(32),
            seed: sent.seed,
            train_unembed: sent.train_unembed.unwrap_or(true),
            train_mlp: sent.train_mlp.unwrap_or(true),
            train_attn: sent.train_attn.unwrap_or(true),
        }
    }
}

/// Optimizer of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerConfig {
    /// Name of the optimizer; `adamw` by default.
    #[serde(rename = "type")]
    pub name: String,
    /// Settings of the optimizer, by name.
    #[serde(flatten)]
    pub settings: Map<String, Value>,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self { name: "adamw".into(), settings: Map::new() }
    }
}

/// Response to `POST create_model`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CreateModelResponse {
    /// Name of the model on the server.
    pub model_id: String,
    /// Value of `type`, which marks this result.
    #[serde(rename = "type", default)]
    pub tag: tag::CreateModel,
}

/// Request body of `POST get_info`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GetInfoRequest {
    /// Name of the model on the server.
    pub model_id: String,
    /// Value of `type`, which marks this request.
    #[serde(rename = "type", default)]
    pub tag: tag::GetInfo,
}

/// Response to `POST get_info`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GetInfoResponse {
    /// Value of `type`, which marks this response.
    #[serde(rename = "type", default)]
    pub tag: tag::GetInfo,
    /// Name of the model on the server.
    pub model_id: String,
    /// Description of the base model.
    pub model_data: ModelData,
    /// Whether it is an adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_lora: Option<bool>,
    /// Rank of the adapter, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_rank: Option<usize>,
    /// Name of the base model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// Optimizer of the model, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer_config: Option<OptimizerConfig>,
}

/// Short description of a base model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelData {
    /// Architecture of the base model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// Name of the base model, as samplers and tokenizers are requested by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// Name of the tokenizer where it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer_id: Option<String>,
}

/// `POST unload_model`, and its result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UnloadModel {
    /// Name of the model to unload.
    pub model_id: String,
    /// Value of `type`, which marks this request.
    #[serde(rename = "type", default)]
    pub tag: tag::UnloadModel,
}
