//! A GGUF file as a model: llama.cpp's keys and layouts turned into Hugging Face's.

use crate::error::ModelError;
use crate::gguf::{GgufFile, GgufValue};
use crate::shape::check_architecture;
use crate::tokenizer::ByteLevelParts;
use crate::weights::{HalfSplit, gguf_name};
use minds_core::architecture::{Architecture, RopeScaling};
use minds_core::chat::ChatTemplate;
use minds_core::ids::Token;
use minds_core::tensor::Tensor;
use std::collections::BTreeMap;

/// Reads the architecture from the metadata and the tensors that are there.
pub(crate) fn architecture(gguf: &GgufFile) -> Result<Architecture, ModelError> {
    let path = gguf.bytes().path();
    let name = gguf.string("general.architecture")?.unwrap_or("(none named)");
    if !["llama", "qwen2", "qwen3"].contains(&name) {
        let reason = format!("unsupported architecture `{name}`; supported are llama, qwen2 and qwen3");
        return Err(ModelError::unsupported(path, reason));
    }
    let key = |key: &str| format!("{name}.{key}");
    let need = |what: &str| {
        let key = key(what);
        gguf.integer(&key)?.ok_or_else(|| ModelError::damaged(path, format!("there is no `{key}`")))
    };
    let shape_of = |tensor: &str| gguf.tensor(tensor).map(|t| t.shape.as_slice());
    let Some([vocab, dim]) = shape_of("token_embd.weight") else {
        return Err(ModelError::damaged(path, "the matrix `token_embd.weight` is missing"));
    };
    let heads = need("attention.head_count")?;
    if heads == 0 {
        return Err(ModelError::damaged(path, "it claims 0 attention heads"));
    }
    if let Some(GgufValue::String(kind)) = gguf.get(&key("rope.scaling.type"))
        && kind != "none"
    {
        let reason = format!("rope scaling `{kind}`; supported are none and the factors of Llama 3");
        return Err(ModelError::unsupported(path, reason));
    }
    if gguf.tensor("blk.0.attn_output.bias").is_some() || gguf.tensor("blk.0.ffn_gate_inp.weight").is_some() {
        return Err(ModelError::unsupported(path, "it has output biases or experts, which are not built"));
    }
    let head_dim = gguf.integer(&key("attention.key_length"))?.unwrap_or(dim / heads);
    let rope_theta = gguf.number(&key("rope.freq_base"))?.unwrap_or(10_000.0);
    let arch = Architecture {
        vocab: *vocab,
        dim: *dim,
        layers: need("block_count")?,
        heads,
        kv_heads: gguf.integer(&key("attention.head_count_kv"))?.unwrap_or(heads),
        head_dim,
        ffn: need("feed_forward_length")?,
        context: need("context_length")?,
        rope_theta,
        rope_scaling: rope_scaling(gguf, rope_theta, head_dim)?,
        rms_eps: gguf.number(&key("attention.layer_norm_rms_epsilon"))?.unwrap_or(1e-6),
        tied_head: gguf.tensor("output.weight").is_none(),
        qkv_bias: gguf.tensor("blk.0.attn_q.bias").is_some(),
        qk_norm: gguf.tensor("blk.0.attn_q_norm.weight").is_some(),
    };
    check_architecture(path, arch)
}

/// GGUF stores Llama 3's stretch as one divisor per frequency. All released models share the other settings, so
/// the largest divisor gives the factor, and the rest must then agree.
fn rope_scaling(gguf: &GgufFile, theta: f64, head_dim: usize) -> Result<Option<RopeScaling>, ModelError> {
    let Some(tensor) = gguf.tensor("rope_freqs.weight") else { return Ok(None) };
    let divisors = gguf.data("rope_freqs.weight", tensor)?.into_values();
    let factor = divisors.iter().copied().fold(1.0, f32::max);
    let scaling = RopeScaling {
        factor: f64::from(factor),
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 8192.0,
    };
    let agree = divisors.len() * 2 == head_dim
        && divisors.iter().enumerate().all(|(j, divisor)| {
            let wavelength = std::f64::consts::TAU * theta.powf(2.0 * j as f64 / head_dim as f64);
            let smooth = (scaling.original_context / wavelength - 1.0) / 3.0;
            let expected = 1.0 / ((1.0 - smooth.clamp(0.0, 1.0)) / scaling.factor + smooth.clamp(0.0, 1.0));
            (f64::from(*divisor) - expected).abs() <= 1e-3 * expected
        });
    if agree {
        return Ok(Some(scaling));
    }
    let reason = "its rope_freqs are not those of Llama 3 (low 1, high 4, original context 8192)";
    Err(ModelError::unsupported(gguf.bytes().path(), reason))
}

/// The shape of a tensor by its Hugging Face name.
pub(crate) fn shape<'a>(gguf: &'a GgufFile, name: &str) -> Option<&'a [usize]> {
    gguf.tensor(&gguf_name(name)?).map(|t| t.shape.as_slice())
}

/// A tensor by its Hugging Face name, in Hugging Face layout.
pub(crate) fn tensor(gguf: &GgufFile, arch: &Architecture, name: &str) -> Result<Option<Tensor>, ModelError> {
    let Some(stored) = gguf_name(name) else { return Ok(None) };
    let Some(tensor) = gguf.tensor(&stored) else { return Ok(None) };
    let data = gguf.data(&stored, tensor)?;
    let rotated = [".q_proj.", ".k_proj."].iter().any(|part| name.contains(part));
    if rotated && gguf.string("general.architecture")? == Some("llama") {
        let width = if name.ends_with(".bias") { 1 } else { arch.dim };
        return Ok(Some(data.reordered(width, HalfSplit { head_dim: arch.head_dim })));
    }
    Ok(Some(data))
}

/// A token id, or `None` where the key is absent.
pub(crate) fn token_id(gguf: &GgufFile, key: &str) -> Result<Option<Token>, ModelError> {
    match gguf.integer(key)? {
        None => Ok(None),
        Some(id) => Token::try_from(id)
            .map(Some)
            .map_err(|_| ModelError::damaged(gguf.bytes().path(), format!("`{key}` is {id}"))),
    }
}

/// The chat template, with the texts of the tokens that it may name. `tokens` is the vocabulary.
pub(crate) fn chat_template(gguf: &GgufFile, tokens: &[String]) -> Result<Option<ChatTemplate>, ModelError> {
    let Some(source) = gguf.string("tokenizer.chat_template")? else { return Ok(None) };
    let mut special_tokens = BTreeMap::new();
    for (name, key) in [
        ("bos_token", "tokenizer.ggml.bos_token_id"),
        ("eos_token", "tokenizer.ggml.eos_token_id"),
        ("unk_token", "tokenizer.ggml.unknown_token_id"),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
    ] {
        if let Some(text) = token_id(gguf, key)?.and_then(|id| tokens.get(id as usize)) {
            special_tokens.insert(name.to_owned(), text.clone());
        }
    }
    Ok(Some(ChatTemplate { source: source.to_owned(), special_tokens }))
}

/// The byte-level BPE that the file carries.
pub(crate) fn tokenizer_parts(gguf: &GgufFile) -> Result<ByteLevelParts, ModelError> {
    let path = gguf.bytes().path();
    match gguf.string("tokenizer.ggml.model")? {
        Some("gpt2") => {}
        other => {
            let reason = format!(
                "its tokenizer is `{}`, only byte-level BPE (`gpt2`) is read from GGUF; use the model's Hugging Face \
                 folder with tokenizer.json",
                other.unwrap_or("(none named)")
            );
            return Err(ModelError::unsupported(path, reason));
        }
    }
    let tokens: Vec<String> = gguf.strings("tokenizer.ggml.tokens")?.into_iter().map(str::to_owned).collect();
    let mut merges = Vec::new();
    for merge in gguf.strings("tokenizer.ggml.merges")? {
        let pair = merge.split_once(' ').filter(|(left, right)| !left.is_empty() && !right.is_empty());
        let (left, right) =
            pair.ok_or_else(|| ModelError::damaged(path, format!("the merge `{merge}` is not a pair")))?;
        merges.push((left.to_owned(), right.to_owned()));
    }
    // Types of llama.cpp: 3 control, 4 user-defined (an ordinary added token).
    let types = match gguf.get("tokenizer.ggml.token_type") {
        Some(GgufValue::Array(types)) if types.len() == tokens.len() => types.as_slice(),
        _ => return Err(ModelError::damaged(path, "tokenizer.ggml.token_type does not match the tokens")),
    };
    let of_type = |wanted: i64| {
        let is = |kind: &GgufValue| {
            matches!(kind, GgufValue::Signed(n) if *n == wanted)
                || matches!(kind, GgufValue::Unsigned(n) if *n as i64 == wanted)
        };
        types.iter().zip(&tokens).filter(|(kind, _)| is(kind)).map(|(_, token)| token.clone()).collect()
    };
    Ok(ByteLevelParts {
        pre: gguf.string("tokenizer.ggml.pre")?.unwrap_or("default").to_owned(),
        control: of_type(3),
        added: of_type(4),
        tokens,
        merges,
    })
}
