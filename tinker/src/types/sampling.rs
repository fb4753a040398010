//! Samplers, samples and their results in JSON.

use super::data::{ModelInput, TensorData};
use super::literal::{nullable, reals, tag};
use serde::{Deserialize, Serialize};

/// `POST create_sampling_session`: over weights if there is a path, else over a base model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CreateSamplingSessionRequest {
    /// Session that the sampler belongs to.
    pub session_id: String,
    /// Number within the session, from one count with samplers of `save_weights_for_sampler`.
    pub sampling_session_seq_id: u64,
    /// Base model to sample from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_model: Option<String>,
    /// Address of the weights to sample from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_path: Option<String>,
    /// Value of `type`, which marks this request.
    #[serde(rename = "type", default)]
    pub tag: tag::CreateSamplingSession,
}

/// Response to `POST create_sampling_session`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CreateSamplingSessionResponse {
    /// Value of `type`, which marks this response.
    #[serde(rename = "type", default)]
    pub tag: tag::CreateSamplingSession,
    /// Name of the sampler.
    pub sampling_session_id: String,
}

/// Response to `GET samplers/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WireSampler {
    /// Name of the sampler.
    pub sampler_id: String,
    /// Name of the base model.
    pub base_model: String,
    /// Address of the weights; `None` for the base model.
    #[serde(default)]
    pub model_path: Option<String>,
}

/// Request body of `POST asample`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WireSampleRequest {
    /// Number of samples to draw.
    #[serde(default = "one")]
    pub num_samples: i64,
    /// Prompt that the samples continue.
    pub prompt: ModelInput,
    /// Sampling parameters of the request.
    #[serde(default, deserialize_with = "nullable")]
    pub sampling_params: WireSamplingParams,
    /// Name of the sampler, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling_session_id: Option<String>,
    /// Number within the sampler; a repeated request with the same number returns the same samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq_id: Option<i64>,
    /// Base model, for requests without a sampler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_model: Option<String>,
    /// Weights, for requests without a sampler.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_path: Option<String>,
    /// Whether to return the logprob of each prompt token.
    #[serde(default, deserialize_with = "nullable")]
    pub prompt_logprobs: bool,
    /// How many of the most likely tokens to return at each prompt position.
    #[serde(default, deserialize_with = "nullable")]
    pub topk_prompt_logprobs: i64,
    /// How many of the most likely tokens to return at each sampled position.
    #[serde(default, deserialize_with = "nullable")]
    pub topk_sample_logprobs: i64,
    /// Tokens whose logprob is requested at each prompt position, `[len - 1, k]`, -1 for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_prompt_logprobs: Option<TensorData>,
    /// Alternatives to draw at each prompt position.
    #[serde(default, deserialize_with = "nullable")]
    pub prompt_alt_tokens_k: i64,
    /// Number of prompt logprobs to return, from the end; all if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs_last_n: Option<i64>,
    /// Whether the server keeps what `stable_reinforce` needs.
    #[serde(default, deserialize_with = "nullable")]
    pub record_stability_info: bool,
    /// Value of `type`, which marks this request.
    #[serde(rename = "type", default)]
    pub tag: tag::Sample,
}

fn one() -> i64 {
    1
}

impl Default for WireSampleRequest {
    fn default() -> Self {
        Self {
            num_samples: 1,
            prompt: ModelInput::default(),
            sampling_params: WireSamplingParams::default(),
            sampling_session_id: None,
            seq_id: None,
            base_model: None,
            model_path: None,
            prompt_logprobs: false,
            topk_prompt_logprobs: 0,
            topk_sample_logprobs: 0,
            target_prompt_logprobs: None,
            prompt_alt_tokens_k: 0,
            prompt_logprobs_last_n: None,
            record_stability_info: false,
            tag: tag::Sample,
        }
    }
}

/// Sampling parameters of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "SamplingParamsAsSent")]
pub struct WireSamplingParams {
    /// Maximum number of tokens; up to the end of the context if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<i64>,
    /// Seed that makes samples reproducible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// Stop condition; `None` is the model's own end token, an empty list stops at nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<WireStop>,
    /// Temperature of the softmax; 1 by default.
    pub temperature: f64,
    /// Number of most likely tokens to keep; -1 for all.
    pub top_k: i64,
    /// Probability mass to keep; 1 for all.
    pub top_p: f64,
}

impl Default for WireSamplingParams {
    fn default() -> Self {
        SamplingParamsAsSent::default().into()
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SamplingParamsAsSent {
    max_tokens: Option<i64>,
    seed: Option<i64>,
    stop: Option<WireStop>,
    temperature: Option<f64>,
    top_k: Option<i64>,
    top_p: Option<f64>,
}

impl From<SamplingParamsAsSent> for WireSamplingParams {
    fn from(sent: SamplingParamsAsSent) -> Self {
        Self {
            max_tokens: sent.max_tokens,
            seed: sent.seed,
            stop: sent.stop,
            temperature: sent.temperature.unwrap_or(1.0),
            top_k: sent.top_k.unwrap_or(-1),
            top_p: sent.top_p.unwrap_or(1.0),
        }
    }
}

/// Stop condition of a sample. An empty list is read as [`WireStop::Tokens`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum WireStop {
    /// Any of these tokens.
    Tokens(Vec<u32>),
    /// Any of these strings.
    Strings(Vec<String>),
    /// Exactly this one string.
    String(String),
}

/// Why a sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireStopReason {
    /// A stop condition, [`WireStop`], was met.
    Stop,
    /// The maximum number of tokens is reached, or the context is full.
    Length,
}

/// Tokens with their logprobs, most likely first.
pub type WireTopK = Vec<(u32, f32)>;

/// Result of `asample` in JSON. Newer SDKs take only [`super::proto::ProtoSampleResponse`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WireSampleResponse {
    /// Value of `type`, which marks this result.
    #[serde(rename = "type", default)]
    pub tag: tag::Sample,
    /// One entry per sample.
    pub sequences: Vec<WireSampledSequence>,
    /// Logprob of each prompt token; the first has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<Vec<Option<f32>>>,
    /// The most likely tokens at each prompt position; the first has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topk_prompt_logprobs: Option<Vec<Option<WireTopK>>>,
}

/// One sample in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WireSampledSequence {
    /// Why the sample ended.
    pub stop_reason: WireStopReason,
    /// Tokens of the sample.
    pub tokens: Vec<u32>,
    /// Logprob of each token; NaN, written as `null`, where there is none.
    #[serde(default, deserialize_with = "reals", skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<f32>>,
    /// The most likely tokens at each position: only in protobuf with other servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topk_sampled_logprobs: Option<Vec<Option<WireTopK>>>,
}
