//! The shape of a Llama-family decoder, as a model folder or a GGUF file states it.

use serde::{Deserialize, Serialize};

/// Everything that decides the arithmetic of a decoder but its weights.
///
/// Weight names and layouts are those of Hugging Face's `LlamaForCausalLM`: `model.layers.{i}.self_attn.q_proj.weight`
/// is `[heads * head_dim, dim]`, rotary pairs are (j, j + head_dim / 2). Readers of other formats convert to this one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Architecture {
    /// Tokens in the vocabulary; rows of the embedding.
    pub vocab: usize,
    /// Width of the residual stream.
    pub dim: usize,
    /// Number of decoder layers.
    pub layers: usize,
    /// Number of query heads per layer.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Width of the gated feed-forward layer.
    pub ffn: usize,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// How rotary frequencies are stretched for long contexts, if they are.
    pub rope_scaling: Option<RopeScaling>,
    /// Added to the mean square in RMS normalisation.
    pub rms_eps: f64,
    /// Whether the output head is the embedding.
    pub tied_head: bool,
    /// Whether the q, k and v projections have a bias (Qwen2).
    pub qkv_bias: bool,
    /// Whether q and k are RMS-normalised per head before rotation (Qwen3).
    pub qk_norm: bool,
}

impl Architecture {
    /// Query heads that share one key/value head.
    #[must_use]
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The seeded test model: two layers over a byte vocabulary (256 bytes and 3 control tokens), no file needed.
    #[must_use]
    pub fn tiny() -> Self {
        Self {
            vocab: 259,
            dim: 64,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            ffn: 176,
            context: 2048,
            rope_theta: 10_000.0,
            rope_scaling: None,
            rms_eps: 1e-5,
            tied_head: true,
            qkv_bias: false,
            qk_norm: false,
        }
    }
}

/// Llama 3's frequency-dependent stretch (`rope_type = "llama3"` in transformers' `modeling_rope_utils`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RopeScaling {
    /// By how much low frequencies are slowed.
    pub factor: f64,
    /// Wavelengths above `original_context / low_freq_factor` are slowed in full.
    pub low_freq_factor: f64,
    /// Wavelengths below `original_context / high_freq_factor` are left alone.
    pub high_freq_factor: f64,
    /// Context length the model was first trained with.
    pub original_context: f64,
}
