//! Reads a Hugging Face `config.json` into an [`Architecture`].
//!
//! Nothing is guessed: a setting that the engine would compute differently from transformers is an error that names it.

use crate::error::ModelError;
use crate::shape::check_architecture;
use minds_core::architecture::{Architecture, RopeScaling};
use minds_core::ids::Token;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// Model classes of transformers that are supported.
pub(crate) const SUPPORTED: [&str; 3] = ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"];

/// The fields of `config.json` that decide the arithmetic, with transformers' defaults where a file may omit them.
#[derive(Debug, Deserialize)]
pub(crate) struct HuggingFaceConfig {
    #[serde(default)]
    architectures: Vec<String>,
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    intermediate_size: usize,
    #[serde(default = "default_context")]
    max_position_embeddings: usize,
    rope_theta: Option<f64>,
    rope_scaling: Option<Value>,
    rope_parameters: Option<Value>,
    #[serde(default = "default_eps")]
    rms_norm_eps: f64,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default = "silu")]
    hidden_act: String,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    use_sliding_window: bool,
    quantization_config: Option<Value>,
    pub(crate) bos_token_id: Option<Token>,
    pub(crate) eos_token_id: Option<OneOrMany>,
}

/// One token id or several, such as `2` or `[2, 0]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    One(Token),
    Many(Vec<Token>),
}

impl OneOrMany {
    pub(crate) fn into_vec(self) -> Vec<Token> {
        match self {
            Self::One(token) => vec![token],
            Self::Many(tokens) => tokens,
        }
    }
}

fn default_context() -> usize {
    2048
}

fn default_eps() -> f64 {
    1e-6
}

fn silu() -> String {
    "silu".into()
}

impl HuggingFaceConfig {
    /// Parses a config and converts it into an architecture; `path` is named in errors.
    pub(crate) fn parse(path: &Path, json: &[u8]) -> Result<(Self, Architecture), ModelError> {
        let value: Value =
            serde_json::from_slice(json).map_err(|e| ModelError::damaged(path, e.to_string()))?;
        // Before the fields: another model family lacks them, and its name says more than a missing key.
        let class = value["architectures"][0].as_str().unwrap_or("(none named)").to_owned();
        if !SUPPORTED.contains(&class.as_str()) {
            let reason =
                format!("unsupported architecture `{class}`; supported are {}", SUPPORTED.join(", "));
            return Err(ModelError::unsupported(path, reason));
        }
        let config: Self =
            serde_json::from_value(value).map_err(|e| ModelError::damaged(path, e.to_string()))?;
        let arch = config.architecture(path)?;
        Ok((config, arch))
    }

    fn architecture(&self, path: &Path) -> Result<Architecture, ModelError> {
        let class = self.architectures.first().map_or("", String::as_str);
        let refuse = |reason: String| Err(ModelError::unsupported(path, reason));
        if self.hidden_act != "silu" {
            return refuse(format!("hidden_act is `{}`, only `silu` is built", self.hidden_act));
        }
        if self.attention_bias || self.mlp_bias {
            return refuse(
                "attention_bias or mlp_bias is true; only Qwen2's bias of q, k and v is built".into(),
            );
        }
        if self.use_sliding_window {
            return refuse("use_sliding_window is true; only full attention is built".into());
        }
        if self.quantization_config.is_some() {
            return refuse(
                "the weights are quantised (quantization_config); take the f32, f16 or bf16 ones".into(),
            );
        }
        if self.num_attention_heads == 0 {
            return Err(ModelError::damaged(path, "num_attention_heads is 0"));
        }
        let (rope_theta, rope_scaling) = self.rope(path)?;
        let arch = Architecture {
            vocab: self.vocab_size,
            dim: self.hidden_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads.unwrap_or(self.num_attention_heads),
            head_dim: self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads),
            ffn: self.intermediate_size,
            context: self.max_position_embeddings,
            rope_theta,
            rope_scaling,
            rms_eps: self.rms_norm_eps,
            tied_head: self.tie_word_embeddings,
            qkv_bias: class == "Qwen2ForCausalLM",
            qk_norm: class == "Qwen3ForCausalLM",
        };
        check_architecture(path, arch)
    }

    /// Base and stretch, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).
    fn rope(&self, path: &Path) -> Result<(f64, Option<RopeScaling>), ModelError> {
        let block = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref()).filter(|v| !v.is_null());
        let number = |key: &str| block.and_then(|b| b[key].as_f64());
        let theta = number("rope_theta").or(self.rope_theta).unwrap_or(10_000.0);
        let kind = block.and_then(|b| b["rope_type"].as_str().or(b["type"].as_str())).unwrap_or("default");
        match kind {
            "default" => Ok((theta, None)),
            "llama3" => {
                let need = |key: &str| {
                    number(key)
                        .ok_or_else(|| ModelError::damaged(path, format!("rope type llama3 lacks `{key}`")))
                };
                let scaling = RopeScaling {
                    factor: need("factor")?,
                    low_freq_factor: need("low_freq_factor")?,
                    high_freq_factor: need("high_freq_factor")?,
                    original_context: need("original_max_position_embeddings")?,
                };
                Ok((theta, Some(scaling)))
            }
            other => {
                let reason = format!("rope type `{other}`; supported are default and llama3");
                Err(ModelError::unsupported(path, reason))
            }
        }
    }
}
