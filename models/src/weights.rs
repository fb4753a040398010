//! Which tensors a decoder has, by their Hugging Face names, and which GGUF tensor each of them is.

use minds_core::architecture::Architecture;
use minds_core::tensor::RowOrder;

/// Name and shape of every tensor of this architecture.
#[must_use]
pub fn expected_tensors(arch: &Architecture) -> Vec<(String, Vec<usize>)> {
    let q = arch.heads * arch.head_dim;
    let kv = arch.kv_heads * arch.head_dim;
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![arch.vocab, arch.dim]),
        ("model.norm.weight".to_owned(), vec![arch.dim]),
    ];
    if !arch.tied_head {
        all.push(("lm_head.weight".to_owned(), vec![arch.vocab, arch.dim]));
    }
    for layer in 0..arch.layers {
        let mut add =
            |name: &str, shape: Vec<usize>| all.push((format!("model.layers.{layer}.{name}"), shape));
        add("input_layernorm.weight", vec![arch.dim]);
        for (name, rows) in [("q_proj", q), ("k_proj", kv), ("v_proj", kv)] {
            add(&format!("self_attn.{name}.weight"), vec![rows, arch.dim]);
            if arch.qkv_bias {
                add(&format!("self_attn.{name}.bias"), vec![rows]);
            }
        }
        if arch.qk_norm {
            add("self_attn.q_norm.weight", vec![arch.head_dim]);
            add("self_attn.k_norm.weight", vec![arch.head_dim]);
        }
        add("self_attn.o_proj.weight", vec![arch.dim, q]);
        add("post_attention_layernorm.weight", vec![arch.dim]);
        add("mlp.gate_proj.weight", vec![arch.ffn, arch.dim]);
        add("mlp.up_proj.weight", vec![arch.ffn, arch.dim]);
        add("mlp.down_proj.weight", vec![arch.dim, arch.ffn]);
    }
    all
}

/// The name that llama.cpp gives the tensor.
pub(crate) fn gguf_name(name: &str) -> Option<String> {
    match name {
        "model.embed_tokens.weight" => return Some("token_embd.weight".into()),
        "model.norm.weight" => return Some("output_norm.weight".into()),
        "lm_head.weight" => return Some("output.weight".into()),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let (module, kind) = rest.rsplit_once('.')?;
    let short = match module {
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "post_attention_layernorm" => "ffn_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        _ => return None,
    };
    Some(format!("blk.{layer}.{short}.{kind}"))
}

/// Puts rows of interleaved rotary pairs (2j, 2j + 1) of heads of this width into half-split order
/// (j, j + head_dim / 2).
///
/// llama.cpp stores q and k of arch `llama` interleaved; other architectures are stored as they are.
pub(crate) struct HalfSplit {
    pub(crate) head_dim: usize,
}

impl RowOrder for HalfSplit {
    fn apply<T: Copy>(&self, rows: Vec<T>, width: usize) -> Vec<T> {
        let mut out = Vec::with_capacity(rows.len());
        for head in rows.chunks(self.head_dim * width) {
            for part in 0..2 {
                for pair in head.chunks(2 * width) {
                    out.extend_from_slice(&pair[part * width..(part + 1) * width]);
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_core::tensor::{QuantizedBlocks, Tensor};

    #[test]
    fn interleaved_rows_become_half_split() {
        // two heads of width 4, rows of one number: stored order is (0, 2), (1, 3)
        let stored = vec![0.0, 2.0, 1.0, 3.0, 10.0, 12.0, 11.0, 13.0];
        let wanted: Vec<f32> = (0..4).chain(10..14).map(|v| v as f32).collect();
        assert_eq!(HalfSplit { head_dim: 4 }.apply(stored, 1), wanted);
    }

    #[test]
    fn rows_stay_whole() {
        let stored = vec![0.0, 0.5, 1.0, 1.5];
        assert_eq!(HalfSplit { head_dim: 2 }.apply(stored.clone(), 2), stored);
    }

    #[test]
    fn codes_move_with_their_steps() {
        // one head of width 4, rows of 64 numbers in two blocks each
        let codes = (0..4 * 64).map(|i| i as u8).collect();
        let steps = (0..8).map(|i| (0.5 + i as f32, -(i as f32))).collect();
        let stored = Tensor::QuantizedBlocks(QuantizedBlocks::new(codes, steps).unwrap());
        let order = HalfSplit { head_dim: 4 };
        let expected = order.apply(stored.clone().into_values(), 64);
        let found = stored.reordered(64, order);
        assert!(matches!(found, Tensor::QuantizedBlocks(_)));
        assert_eq!(found.into_values(), expected);
    }
}
