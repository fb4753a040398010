//! Adapters: made, described, given up.

use super::literal::tag;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `POST create_model`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CreateModelRequest {
    /// Session it belongs to.
    pub session_id: String,
    /// Number within the session, from 0; asking twice with one number gives the same model.
    pub model_seq_id: u64,
    /// What it adapts.
    pub base_model: String,
    /// Anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_metadata: Option<Map<String, Value>>,
    /// The adapter; `None` would train the whole model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_config: Option<LoraConfig>,
    /// The optimizer, AdamW if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer_config: Option<OptimizerConfig>,
    /// Which request this is.
    #[serde(rename = "type", default)]
    pub tag: tag::CreateModel,
}

/// What an adapter is made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "LoraConfigAsSent")]
pub struct LoraConfig {
    /// Inner width.
    pub rank: usize,
    /// Seed of its random half.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Whether the output layer has one.
    pub train_unembed: bool,
    /// Whether feed-forward layers have one.
    pub train_mlp: bool,
    /// Whether attention has one.
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

/// Which optimizer a model has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerConfig {
    /// Its name, `adamw` for the usual one.
    #[serde(rename = "type")]
    pub name: String,
    /// Its settings.
    #[serde(flatten)]
    pub settings: Map<String, Value>,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self { name: "adamw".into(), settings: Map::new() }
    }
}

/// Result of `create_model`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CreateModelResponse {
    /// Name of the model.
    pub model_id: String,
    /// Which result this is.
    #[serde(rename = "type", default)]
    pub tag: tag::CreateModel,
}

/// `POST get_info`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GetInfoRequest {
    /// Which model.
    pub model_id: String,
    /// Which request this is.
    #[serde(rename = "type", default)]
    pub tag: tag::GetInfo,
}

/// Answer to `POST get_info`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GetInfoResponse {
    /// Which answer this is.
    #[serde(rename = "type", default)]
    pub tag: tag::GetInfo,
    /// Which model.
    pub model_id: String,
    /// What it adapts.
    pub model_data: ModelData,
    /// Whether it is an adapter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_lora: Option<bool>,
    /// Its rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora_rank: Option<usize>,
    /// Name of the base model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// Its optimizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimizer_config: Option<OptimizerConfig>,
}

/// A base model in a few words.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelData {
    /// Its architecture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// Its name, which samplers and tokenizers are asked for by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// Name of the tokenizer where it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer_id: Option<String>,
}

/// `POST unload_model`, and its result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UnloadModel {
    /// Which model is not needed any more.
    pub model_id: String,
    /// Which request this is.
    #[serde(rename = "type", default)]
    pub tag: tag::UnloadModel,
}
