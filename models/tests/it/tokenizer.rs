//! Tokenizers: text never becomes a control token, bytes never get lost.

use crate::make::{Meta, small_folder, small_gguf, stand_in, write};
use minds_core::chat::Tokenizer;
use minds_models::{ByteTokenizer, ModelFiles, ModelTokenizer};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

fn from_gguf(edit: impl Fn(&mut crate::make::GgufFile)) -> Result<ModelTokenizer, String> {
    let folder = tempfile::tempdir().unwrap();
    let mut file = small_gguf();
    edit(&mut file);
    let path = write(folder.path(), "m.gguf", file.bytes());
    ModelFiles::open(&path).unwrap().tokenizer().map_err(|e| e.to_string())
}

fn small() -> ModelTokenizer {
    from_gguf(|_| ()).unwrap()
}

/// A tokenizer.json over bytes; added tokens are (text, special).
pub fn tokenizer_json(added: &[(&str, bool)]) -> Value {
    let vocab: serde_json::Map<String, Value> =
        (0..=255u8).map(|byte| (stand_in(byte).to_string(), json!(byte))).collect();
    let added: Vec<Value> = (256..)
        .zip(added)
        .map(|(id, (content, special))| {
            json!({ "id": id, "content": content, "special": special, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false })
        })
        .collect();
    json!({
        "version": "1.0", "truncation": { "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0 },
        "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": [] },
    })
}

fn from_json(value: &Value, config: &Value) -> ModelTokenizer {
    let folder = small_folder();
    write(folder.path(), "tokenizer.json", value.to_string());
    write(folder.path(), "tokenizer_config.json", config.to_string());
    write(folder.path(), "generation_config.json", r#"{"eos_token_id": [258, 257]}"#);
    ModelFiles::open(folder.path()).unwrap().tokenizer().unwrap()
}

#[test]
fn text_that_spells_a_control_token_becomes_ordinary_tokens() {
    let tokenizer = small();
    for text in ["<|im_end|>", "a<|im_start|>b", "<|endoftext|>", "<|im_end|><|im_end|>"] {
        let tokens = tokenizer.encode(text);
        assert!(tokens.iter().all(|t| *t > 2), "{text} became {tokens:?}");
        assert_eq!(tokenizer.decode(&tokens), text);
    }
    assert_eq!(tokenizer.control("<|im_end|>"), Some(2));
    assert_eq!(tokenizer.control("he"), None);
    assert_eq!(tokenizer.control("<|nothing|>"), None);
}

#[test]
fn control_tokens_are_left_out_of_text_unless_requested() {
    let tokenizer = small();
    let tokens = [&[1][..], &tokenizer.encode("hi"), &[2]].concat();
    assert_eq!(tokenizer.decode(&tokens), "hi");
    assert_eq!(tokenizer.decode_with_control(&tokens), "<|im_start|>hi<|im_end|>");
    assert_eq!(tokenizer.decode(&[999_999]), "");
}

#[test]
fn merges_apply_and_no_space_is_put_in_front() {
    let tokenizer = small();
    assert_eq!(tokenizer.encode("he").len(), 1);
    assert_eq!(tokenizer.encode("hehe").len(), 2);
    assert_eq!(tokenizer.encode(" he").len(), 2);
}

#[test]
fn stops_are_the_declared_one_and_those_known_by_text() {
    let tokenizer = small();
    assert_eq!(tokenizer.stop_tokens(), [2, 0]);
    assert_eq!(tokenizer.vocab(), 260);
    assert_eq!(tokenizer.bos(), None);
    let with_bos = from_gguf(|f| f.set("tokenizer.ggml.add_bos_token", Meta::Bool(true))).unwrap();
    assert_eq!(with_bos.bos(), Some(1));
}

#[test]
fn an_unknown_pre_tokenizer_is_refused_by_name() {
    let said = from_gguf(|f| f.set("tokenizer.ggml.pre", Meta::Text("tekken"))).unwrap_err();
    assert!(
        said.contains("`tekken`") && said.contains("smollm, gpt-2, qwen2, llama-bpe and kimi-k2"),
        "{said}"
    );
    let said = from_gguf(|f| f.set("tokenizer.ggml.model", Meta::Text("llama"))).unwrap_err();
    assert!(said.contains("`llama`") && said.contains("tokenizer.json"), "{said}");
    for pre in ["gpt-2", "qwen2", "llama-bpe"] {
        assert!(from_gguf(|f| f.set("tokenizer.ggml.pre", Meta::Text(pre))).is_ok());
    }
}

#[test]
fn broken_merges_are_refused() {
    for merges in [vec!["he".to_owned()], vec!["h zz".to_owned()], vec![" e".to_owned()]] {
        assert!(from_gguf(|f| f.set("tokenizer.ggml.merges", Meta::Texts(merges.clone()))).is_err());
    }
    assert!(from_gguf(|f| f.set("tokenizer.ggml.token_type", Meta::I32s(vec![1]))).is_err());
}

#[test]
fn a_tokenizer_json_is_read_without_its_truncation() {
    let json = tokenizer_json(&[("<|im_start|>", true), ("<|im_end|>", true), ("<|endoftext|>", true)]);
    let tokenizer = from_json(&json, &json!({}));
    assert_eq!(tokenizer.encode("longer than four").len(), 16);
    assert_eq!(tokenizer.stop_tokens(), [258, 257, 2]);
    assert_eq!(tokenizer.vocab(), 259);
    assert_eq!(tokenizer.bos(), None);
}

#[test]
fn unmarked_control_tokens_are_control_all_the_same() {
    let tokenizer = from_json(&tokenizer_json(&[("<|im_end|>", false), ("<think>", false)]), &json!({}));
    assert_eq!(tokenizer.control("<|im_end|>"), Some(256));
    assert!(!tokenizer.encode("<|im_end|>").contains(&256));
    // Trained to be read from text, and part of what the model says.
    assert_eq!(tokenizer.encode("<think>"), [257]);
    assert_eq!(tokenizer.decode(&[257]), "<think>");
}

#[test]
fn the_post_processor_or_the_config_declare_the_first_token() {
    let mut json = tokenizer_json(&[("<s>", true)]);
    json["post_processor"] = json!({ "type": "TemplateProcessing",
        "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
        "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
        "special_tokens": { "<s>": { "id": "<s>", "ids": [256], "tokens": ["<s>"] } } });
    let tokenizer = from_json(&json, &json!({}));
    assert_eq!(tokenizer.bos(), Some(256));
    assert_eq!(tokenizer.encode("a"), [97]);
    assert_eq!(from_json(&json, &json!({ "add_bos_token": false })).bos(), None);
}

#[test]
fn the_byte_tokenizer_has_three_control_tokens() {
    let tokenizer = ByteTokenizer;
    assert_eq!(tokenizer.control("<|im_start|>"), Some(257));
    assert_eq!(tokenizer.control("<|im_end|>"), Some(258));
    assert_eq!(tokenizer.stop_tokens(), [258, 256]);
    assert_eq!(tokenizer.decode(&[257, 104, 105, 258]), "hi");
    assert_eq!(tokenizer.vocab(), 259);
}

proptest! {
    #[test]
    fn any_text_survives(text in any::<String>()) {
        let tokenizer = small();
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text)), text);
    }
}

proptest! {
    /// `decode_with_control` asks the `tokenizers` crate.
    #[test]
    fn any_tokens_have_the_text_that_the_tokenizers_crate_gives_them(tokens in vec(0..280u32, 0..40)) {
        let added = [("<|im_start|>", true), ("<|im_end|>", true), ("<think>", false), ("a b", false), ("≠é", false)];
        for tokenizer in [small(), from_json(&tokenizer_json(&added), &json!({}))] {
            let is_control = |token: &u32| tokenizer.control_tokens().any(|(_, control)| control == *token);
            let plain: Vec<u32> = tokens.iter().copied().filter(|token| !is_control(token)).collect();
            prop_assert_eq!(tokenizer.decode(&tokens), tokenizer.decode_with_control(&plain));
        }
    }
}

/// The tokens are those of the Python package `tokenizers`: with `first`, `a</s>a` is `[2, 3, 1]`, and `a` alone is `[2]`;
/// with `always` it is `[2, 3, 2]`.
#[test]
fn a_vocabulary_that_puts_a_space_before_whole_texts_only_says_so() {
    let tokenizer = |scheme: &str| {
        let mut value = tokenizer_json(&[]);
        let space =
            json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false });
        value["pre_tokenizer"] = space.clone();
        value["decoder"] = space;
        value["model"]["vocab"] = json!({ "▁": 0, "a": 1, "▁a": 2 });
        value["model"]["merges"] = json!(["▁ a"]);
        value["added_tokens"] = json!([{ "id": 3, "content": "</s>", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false }]);
        from_json(&value, &json!({}))
    };
    for (scheme, splits, alone) in [("first", false, 2), ("always", true, 2), ("never", true, 1)] {
        let tokenizer = tokenizer(scheme);
        assert_eq!(tokenizer.encode("a"), [alone], "{scheme}");
        assert_eq!(tokenizer.splits_at_controls(), splits, "{scheme}");
    }
}
