//! Hand-made model files.

use minds_core::architecture::Architecture;
use minds_models::expected_tensors;
use std::fs;
use std::path::{Path, PathBuf};

/// A metadata value to write.
pub enum Meta {
    U32(u32),
    F32(f32),
    Bool(bool),
    Text(&'static str),
    Texts(Vec<String>),
    I32s(Vec<i32>),
}

/// A GGUF file to write: metadata, and tensors as (name, shape outermost first, type number, bytes).
#[derive(Default)]
pub struct GgufFile {
    pub meta: Vec<(String, Meta)>,
    pub tensors: Vec<(String, Vec<usize>, u32, Vec<u8>)>,
}

impl GgufFile {
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.meta.len() as u64).to_le_bytes());
        for (key, value) in &self.meta {
            text(&mut out, key);
            match value {
                Meta::U32(v) => tagged(&mut out, 4, &v.to_le_bytes()),
                Meta::F32(v) => tagged(&mut out, 6, &v.to_le_bytes()),
                Meta::Bool(v) => tagged(&mut out, 7, &[u8::from(*v)]),
                Meta::Text(v) => {
                    tagged(&mut out, 8, &[]);
                    text(&mut out, v);
                }
                Meta::Texts(items) => {
                    tagged(&mut out, 9, &8u32.to_le_bytes());
                    out.extend((items.len() as u64).to_le_bytes());
                    items.iter().for_each(|item| text(&mut out, item));
                }
                Meta::I32s(items) => {
                    tagged(&mut out, 9, &5u32.to_le_bytes());
                    out.extend((items.len() as u64).to_le_bytes());
                    items.iter().for_each(|item| out.extend(item.to_le_bytes()));
                }
            }
        }
        let mut offset = 0u64;
        for (name, shape, kind, data) in &self.tensors {
            text(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|size| out.extend((*size as u64).to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += (data.len() as u64).next_multiple_of(32);
        }
        for (.., data) in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(data);
        }
        out
    }

    pub fn set(&mut self, key: &str, value: Meta) {
        self.meta.retain(|(k, _)| k != key);
        self.meta.push((key.into(), value));
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn tagged(out: &mut Vec<u8>, tag: u32, bytes: &[u8]) {
    out.extend(tag.to_le_bytes());
    out.extend(bytes);
}

pub fn f32_bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// A network of one layer, small enough to break at every byte.
pub fn small() -> Architecture {
    Architecture {
        vocab: 260,
        dim: 8,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 4,
        ffn: 8,
        context: 32,
        ..Architecture::tiny()
    }
}

/// `small()` as arch `llama`, with a byte vocabulary, three control tokens and one merge. Tensor `n` holds
/// `1000 n, 1000 n + 1, …` in stored order.
pub fn small_gguf() -> GgufFile {
    let arch = small();
    let mut file = GgufFile::default();
    let sizes = [
        ("embedding_length", arch.dim),
        ("block_count", arch.layers),
        ("attention.head_count", arch.heads),
        ("attention.head_count_kv", arch.kv_heads),
        ("feed_forward_length", arch.ffn),
        ("context_length", arch.context),
    ];
    file.set("general.architecture", Meta::Text("llama"));
    for (key, value) in sizes {
        file.set(&format!("llama.{key}"), Meta::U32(value as u32));
    }
    file.set("llama.rope.freq_base", Meta::F32(10_000.0));
    file.set("llama.attention.layer_norm_rms_epsilon", Meta::F32(1e-5));
    let mut tokens: Vec<String> = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(String::from).to_vec();
    tokens.extend((0..=255).map(|byte| stand_in(byte).to_string()));
    tokens.push("he".into());
    let types = tokens.iter().map(|t| if t.starts_with("<|") { 3 } else { 1 }).collect();
    file.set("tokenizer.ggml.model", Meta::Text("gpt2"));
    file.set("tokenizer.ggml.pre", Meta::Text("smollm"));
    file.set("tokenizer.ggml.tokens", Meta::Texts(tokens));
    file.set("tokenizer.ggml.token_type", Meta::I32s(types));
    file.set("tokenizer.ggml.merges", Meta::Texts(vec!["h e".into()]));
    file.set("tokenizer.ggml.eos_token_id", Meta::U32(2));
    file.set("tokenizer.ggml.bos_token_id", Meta::U32(1));
    file.set("tokenizer.ggml.add_bos_token", Meta::Bool(false));
    for (n, (name, shape)) in expected_tensors(&arch).into_iter().enumerate() {
        let count: usize = shape.iter().product();
        let data = f32_bytes((0..count).map(|i| (1000 * n + i) as f32));
        file.tensors.push((gguf_name(&name), shape, 0, data));
    }
    file
}

/// GPT-2's printable character for a byte.
pub fn stand_in(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let shifted = (0..byte).filter(|b| !printable(*b)).count() as u32;
    if printable(byte) { char::from(byte) } else { char::from_u32(256 + shifted).unwrap() }
}

fn gguf_name(name: &str) -> String {
    let pairs = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("model.layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    pairs.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

pub fn write(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, content).unwrap();
    path
}

pub fn config_json(class: &str) -> serde_json::Value {
    let arch = small();
    serde_json::json!({
        "architectures": [class], "vocab_size": arch.vocab, "hidden_size": arch.dim,
        "num_hidden_layers": arch.layers, "num_attention_heads": arch.heads,
        "num_key_value_heads": arch.kv_heads, "head_dim": arch.head_dim, "intermediate_size": arch.ffn,
        "max_position_embeddings": arch.context, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true, "hidden_act": "silu", "eos_token_id": 2, "bos_token_id": 1,
    })
}

/// A safetensors file of these tensors: (name, type, shape, bytes).
pub fn safetensors(tensors: &[(String, &str, Vec<usize>, Vec<u8>)]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(
            name.clone(),
            serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }),
        );
        data.extend(bytes);
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// The tensors of `small()`; tensor `n` holds `1000 n, 1000 n + 1, …`.
pub fn small_tensors() -> Vec<(String, &'static str, Vec<usize>, Vec<u8>)> {
    let tensors = expected_tensors(&small()).into_iter().enumerate();
    tensors
        .map(|(n, (name, shape))| {
            let count: usize = shape.iter().product();
            (name, "F32", shape, f32_bytes((0..count).map(|i| (1000 * n + i) as f32)))
        })
        .collect()
}

/// A folder of `small()` as LlamaForCausalLM.
pub fn small_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "config.json", config_json("LlamaForCausalLM").to_string());
    write(folder.path(), "model.safetensors", safetensors(&small_tensors()));
    folder
}

/// Folder of committed goldens.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Folder of the engine's goldens, which transformers wrote.
pub fn engine_golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/golden").join(name)
}
