//! Hugging Face folders: configs, shards, number types, and every kind of damage.

use crate::make::{
    config_json, engine_golden, f32_bytes, safetensors, small, small_folder, small_tensors, write,
};
use minds_models::{ModelError, ModelFiles};
use serde_json::{Value, json};

fn complaint_of(edit: impl Fn(&mut Value)) -> String {
    let folder = small_folder();
    let mut config = config_json("LlamaForCausalLM");
    edit(&mut config);
    write(folder.path(), "config.json", config.to_string());
    ModelFiles::open(folder.path()).unwrap_err().to_string()
}

#[test]
fn a_folder_is_read() {
    let folder = small_folder();
    let checkpoint = ModelFiles::open(folder.path()).unwrap();
    assert_eq!(*checkpoint.architecture(), small());
    assert_eq!(checkpoint.tensor("model.norm.weight").unwrap().into_values()[3], 1003.0);
    assert_eq!(checkpoint.chat_template(), None);
}

#[test]
fn the_folders_that_transformers_writes_are_read() {
    let open = |name: &str| ModelFiles::open(&engine_golden(name)).unwrap().architecture().clone();
    let llama = open("tiny-llama");
    assert!(llama.tied_head && !llama.qkv_bias && !llama.qk_norm && llama.rope_scaling.is_none());
    assert_eq!((llama.vocab, llama.dim, llama.layers, llama.heads, llama.kv_heads), (288, 64, 2, 4, 2));
    let scaled = open("tiny-llama3-rope");
    let scaling = scaled.rope_scaling.unwrap();
    assert!(!scaled.tied_head);
    assert_eq!((scaling.factor, scaling.high_freq_factor, scaling.original_context), (8.0, 4.0, 64.0));
    assert!(open("tiny-qwen2").qkv_bias);
    let qwen3 = open("tiny-qwen3");
    assert!(qwen3.qk_norm && !qwen3.qkv_bias);
    assert_eq!(qwen3.head_dim, 24);
}

#[test]
fn rope_scaling_of_older_configs_is_read() {
    let folder = small_folder();
    let mut config = config_json("LlamaForCausalLM");
    config["rope_theta"] = json!(500000.0);
    config["rope_scaling"] = json!({ "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192 });
    write(folder.path(), "config.json", config.to_string());
    let arch = ModelFiles::open(folder.path()).unwrap().architecture().clone();
    assert_eq!(arch.rope_theta, 500000.0);
    assert_eq!(arch.rope_scaling.unwrap().original_context, 8192.0);
}

#[test]
fn shards_are_joined() {
    let folder = small_folder();
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let tensors = small_tensors();
    let (first, second) = tensors.split_at(4);
    write(folder.path(), "part-1.safetensors", safetensors(first));
    write(folder.path(), "part-2.safetensors", safetensors(second));
    let entry = |part: &'static str| move |t: &(String, _, _, _)| (t.0.clone(), json!(part));
    let map: serde_json::Map<String, Value> = first
        .iter()
        .map(entry("part-1.safetensors"))
        .chain(second.iter().map(entry("part-2.safetensors")))
        .collect();
    write(folder.path(), "model.safetensors.index.json", json!({ "weight_map": map }).to_string());
    let checkpoint = ModelFiles::open(folder.path()).unwrap();
    for (n, (name, ..)) in tensors.iter().enumerate() {
        assert_eq!(checkpoint.tensor(name).unwrap().into_values()[0], 1000.0 * n as f32);
    }
    std::fs::remove_file(folder.path().join("part-2.safetensors")).unwrap();
    let said = ModelFiles::open(folder.path()).unwrap_err().to_string();
    assert!(said.contains("part-2.safetensors"), "{said}");
}

#[test]
fn half_precision_weights_are_widened() {
    let folder = small_folder();
    let mut tensors = small_tensors();
    let values: Vec<f32> = (0..8).map(|i| i as f32 / 8.0 - 0.5).collect();
    for (dtype, bytes) in [
        ("F16", values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect::<Vec<u8>>()),
        ("BF16", values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect()),
        ("F32", f32_bytes(values.clone())),
    ] {
        let norm = tensors.iter_mut().find(|t| t.0 == "model.norm.weight").unwrap();
        (norm.1, norm.3) = (dtype, bytes);
        write(folder.path(), "model.safetensors", safetensors(&tensors));
        assert_eq!(
            ModelFiles::open(folder.path()).unwrap().tensor("model.norm.weight").unwrap().into_values(),
            values
        );
    }
}

#[test]
fn what_would_be_computed_differently_is_refused_by_name() {
    type Case = (&'static str, Value, &'static str);
    let cases: [Case; 7] = [
        (
            "architectures",
            json!(["MistralForCausalLM"]),
            "unsupported architecture `MistralForCausalLM`; supported are LlamaForCausalLM",
        ),
        ("hidden_act", json!("gelu"), "gelu"),
        ("attention_bias", json!(true), "attention_bias"),
        ("use_sliding_window", json!(true), "use_sliding_window"),
        ("quantization_config", json!({ "bits": 4 }), "quantization_config"),
        ("rope_scaling", json!({ "type": "yarn", "factor": 4.0 }), "yarn"),
        ("num_key_value_heads", json!(3), "3 key/value heads"),
    ];
    for (key, value, wanted) in cases {
        let said = complaint_of(|config| config[key] = value.clone());
        assert!(said.contains(wanted) && said.contains("config.json"), "{said}");
    }
    let said = complaint_of(|config| drop(config.as_object_mut().unwrap().remove("hidden_size")));
    assert!(said.contains("hidden_size"), "{said}");
}

#[test]
fn weights_that_do_not_fit_the_config_are_refused() {
    let said = complaint_of(|config| config["intermediate_size"] = json!(16));
    assert!(said.contains("mlp.gate_proj.weight") && said.contains("[16, 8]"), "{said}");
    let said = complaint_of(|config| config["tie_word_embeddings"] = json!(false));
    assert!(said.contains("lm_head.weight"), "{said}");
}

#[test]
fn a_cut_or_hostile_weights_file_is_damaged() {
    let folder = small_folder();
    let whole = safetensors(&small_tensors());
    for len in [0, 7, 8, 100, whole.len() - 1] {
        write(folder.path(), "model.safetensors", &whole[..len]);
        let error = ModelFiles::open(folder.path()).unwrap_err();
        assert!(matches!(error, ModelError::Damaged { .. }), "cut to {len}: {error}");
    }
    let mut huge = whole.clone();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    write(folder.path(), "model.safetensors", &huge);
    assert!(matches!(ModelFiles::open(folder.path()), Err(ModelError::Damaged { .. })));
    let mut tensors = small_tensors();
    tensors[0].2 = vec![usize::MAX, usize::MAX];
    write(folder.path(), "model.safetensors", safetensors(&tensors));
    assert!(matches!(ModelFiles::open(folder.path()), Err(ModelError::Damaged { .. })));
}

#[test]
fn a_shard_outside_the_folder_is_refused() {
    let folder = small_folder();
    std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    write(folder.path(), "model.safetensors.index.json", r#"{"weight_map": {"a": "../secret.safetensors"}}"#);
    assert!(ModelFiles::open(folder.path()).unwrap_err().to_string().contains("outside the folder"));
}

#[test]
fn an_empty_folder_is_an_error_that_lists_the_expected_files() {
    let folder = tempfile::tempdir().unwrap();
    let said = ModelFiles::open(folder.path()).unwrap_err().to_string();
    assert!(said.contains("config.json is missing") && said.contains("safetensors"), "{said}");
}

#[test]
fn the_chat_template_is_found_in_every_place() {
    let folder = small_folder();
    let template = || ModelFiles::open(folder.path()).unwrap().chat_template().map(str::to_owned);
    write(folder.path(), "tokenizer_config.json", r#"{"chat_template": "one"}"#);
    assert_eq!(template().as_deref(), Some("one"));
    let named =
        r#"{"chat_template": [{"name": "tool", "template": "x"}, {"name": "default", "template": "two"}]}"#;
    write(folder.path(), "tokenizer_config.json", named);
    assert_eq!(template().as_deref(), Some("two"));
    write(folder.path(), "chat_template.jinja", "three");
    assert_eq!(template().as_deref(), Some("three"));
}
