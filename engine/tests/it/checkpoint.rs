//! Adapters on disk: what is written comes back to the bit, what is wrong is named.

use crate::service::model;
use minds_core::architecture::Architecture;
use minds_core::lora::{LoraSpec, Target};
use minds_engine::adapter::Adapter;
use minds_engine::checkpoint::{
    BaseModelIdentity, CheckpointError, read_adapter, read_optimizer, write_adapter, write_optimizer,
};
use minds_engine::model::Model;
use minds_engine::optim::AdamState;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const MODEL: &str = "adapter_model.safetensors";
const CONFIG: &str = "adapter_config.json";
const OPTIMIZER: &str = "optimizer.safetensors";

fn base() -> BaseModelIdentity {
    BaseModelIdentity::of("tiny", &model()).unwrap()
}

/// An adapter and moments with a different number in every place.
fn adapter() -> (Adapter<f32>, AdamState<f32>) {
    let spec = LoraSpec { targets: vec![Target::DownProj, Target::QProj], ..LoraSpec::all_linear(3, 77) };
    let mut adapter = Adapter::new(&Architecture::tiny(), &spec).unwrap();
    for (i, value) in adapter.values_mut().iter_mut().enumerate() {
        *value = (i as f32 + 1.0) * 0.001;
    }
    let mut state = AdamState::new(&adapter);
    state.step = 5;
    for (i, (m, v)) in state.m.iter_mut().zip(&mut state.v).enumerate() {
        (*m, *v) = (-(i as f32), i as f32 * 0.5);
    }
    (adapter, state)
}

fn written() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (adapter, state) = adapter();
    write_adapter(folder.path(), &adapter, &base()).unwrap();
    write_optimizer(folder.path(), &adapter, &state).unwrap();
    folder
}

#[test]
fn checkpoints_round_trip() {
    let folder = written();
    let (adapter, state) = adapter();
    let read = read_adapter(folder.path(), &base()).unwrap();
    assert_eq!(read.values(), adapter.values());
    // The order of the targets is not part of an adapter's format; their seed is stored.
    assert_eq!((read.spec().rank, read.spec().alpha, read.spec().seed), (3, 32.0, 77));
    assert_eq!(read_optimizer(folder.path(), &read).unwrap(), state);
}

#[test]
fn the_files_are_those_of_peft() {
    let folder = written();
    let config: Value = serde_json::from_slice(&fs::read(folder.path().join(CONFIG)).unwrap()).unwrap();
    let expected = [
        ("peft_type", json!("LORA")),
        ("task_type", json!("CAUSAL_LM")),
        ("base_model_name_or_path", json!("tiny")),
        ("r", json!(3)),
        ("lora_alpha", json!(32.0)),
        ("target_modules", json!(["down_proj", "q_proj"])),
    ];
    for (key, value) in expected {
        assert_eq!(config[key], value, "{key}");
    }
    let bytes = fs::read(folder.path().join(MODEL)).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut names: Vec<_> = tensors
        .names()
        .into_iter()
        .map(|n| (n.to_owned(), tensors.tensor(n).unwrap().shape().to_vec()))
        .collect();
    names.sort();
    let at = |layer: usize, name: &str| format!("base_model.model.model.layers.{layer}.{name}.weight");
    assert_eq!(
        names[..4],
        [
            (at(0, "mlp.down_proj.lora_A"), vec![3, 176]),
            (at(0, "mlp.down_proj.lora_B"), vec![64, 3]),
            (at(0, "self_attn.q_proj.lora_A"), vec![3, 64]),
            (at(0, "self_attn.q_proj.lora_B"), vec![64, 3]),
        ]
    );
    assert_eq!(names.len(), 8);
}

#[test]
fn an_adapter_of_peft_is_read() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny-llama-adapter");
    let architecture = Architecture { vocab: 288, ffn: 96, context: 512, ..Architecture::tiny() };
    let base = BaseModelIdentity { name: "tiny-llama".into(), architecture, probe: vec![] };
    let adapter = read_adapter(&golden, &base).unwrap();
    assert_eq!((adapter.spec().rank, adapter.spec().alpha), (4, 32.0));
    let bytes = fs::read(golden.join(MODEL)).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let name = "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight";
    let first = f32::from_le_bytes(tensors.tensor(name).unwrap().data()[..4].try_into().unwrap());
    let ours = adapter.tensors().find(|t| (t.layer, t.target) == (1, Target::UpProj)).unwrap();
    assert_eq!(ours.b[0], first);
}

/// The folder was written by peft, which computed the logits of the golden test with it.
#[test]
fn what_is_exported_is_what_peft_wrote() {
    for (name, head_dim) in [("tiny-llama-adapter", 16), ("tiny-qwen3-adapter", 24)] {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        let tiny = Architecture::tiny();
        let architecture = Architecture { vocab: 288, ffn: 96, context: 512, head_dim, ..tiny };
        let base = BaseModelIdentity { name: "tiny".into(), architecture, probe: vec![] };
        let ours = tempfile::tempdir().unwrap();
        write_adapter(ours.path(), &read_adapter(&golden, &base).unwrap(), &base).unwrap();
        let tensors = |folder: &Path| -> Tensors {
            let bytes = fs::read(folder.join(MODEL)).unwrap();
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            let plain = |t: TensorView<'_>| (t.dtype(), t.shape().to_vec(), t.data().to_vec());
            tensors.iter().map(|(name, tensor)| (name.to_owned(), plain(tensor))).collect()
        };
        assert_eq!(tensors(ours.path()), tensors(&golden), "{name}");
        let config = |folder: &Path| -> Value {
            serde_json::from_slice(&fs::read(folder.join(CONFIG)).unwrap()).unwrap()
        };
        let (ours, golden) = (config(ours.path()), config(&golden));
        for key in ["peft_type", "task_type", "r", "lora_alpha", "bias", "use_rslora", "use_dora"] {
            assert!(ours[key] == golden[key] || ours[key].as_f64() == golden[key].as_f64(), "{name}: {key}");
        }
        let targets = |config: &Value| -> BTreeSet<String> {
            serde_json::from_value(config["target_modules"].clone()).unwrap()
        };
        assert_eq!(targets(&ours), targets(&golden));
    }
}

#[test]
fn a_truncated_file_is_damaged_wherever_it_ends() {
    for file in [MODEL, OPTIMIZER, CONFIG] {
        let whole = fs::read(written().path().join(file)).unwrap();
        for len in [0, 1, 7, 8, 9, 100, whole.len() / 2, whole.len() - 3] {
            let folder = written();
            fs::write(folder.path().join(file), &whole[..len]).unwrap();
            let error = match file {
                OPTIMIZER => read_optimizer(folder.path(), &adapter().0).err(),
                _ => read_adapter(folder.path(), &base()).err(),
            };
            let text = error.map(|e| e.to_string()).unwrap_or_default();
            assert!(text.contains(file), "{file} cut to {len}: {text}");
        }
    }
}

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Reads a tampered copy of a file.
fn tampered(file: &str, tamper: impl FnOnce(&mut Tensors)) -> String {
    let folder = written();
    let bytes = fs::read(folder.path().join(file)).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let mut map: Tensors = tensors
        .iter()
        .map(|(name, t)| (name.to_owned(), (t.dtype(), t.shape().to_vec(), t.data().to_vec())))
        .collect();
    tamper(&mut map);
    let views = map.iter().map(|(name, (d, s, data))| (name, TensorView::new(*d, s.clone(), data).unwrap()));
    fs::write(folder.path().join(file), serialize(views, header.metadata().clone()).unwrap()).unwrap();
    let adapter = read_adapter(folder.path(), &base());
    let error = if file == OPTIMIZER {
        read_optimizer(folder.path(), &adapter.unwrap()).err()
    } else {
        adapter.err()
    };
    error.map(|e| e.to_string()).unwrap_or_default()
}

#[test]
fn a_wrong_tensor_is_named() {
    let name = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight";
    let says = |text: String, what: &str| {
        assert!(text.contains(name) && text.contains(what) && text.contains(".safetensors"), "{text}");
    };
    says(tampered(MODEL, |t| drop(t.remove(name))), "missing");
    says(tampered(MODEL, |t| t.get_mut(name).unwrap().1 = vec![64, 3]), "[64, 3]");
    says(
        tampered(MODEL, |t| {
            let tensor = t.get_mut(name).unwrap();
            *tensor = (Dtype::F16, vec![3, 64], tensor.2[..tensor.2.len() / 2].to_vec());
        }),
        "F16",
    );
    let poison = |t: &mut Tensors, at: &str, x: f32| {
        t.get_mut(at).unwrap().2[8..12].copy_from_slice(&x.to_le_bytes());
    };
    says(tampered(MODEL, |t| poison(t, name, f32::NAN)), "NaN at position 2");
    let square = format!("{name}.exp_avg_sq");
    says(tampered(OPTIMIZER, |t| poison(t, &square, f32::INFINITY)), "inf");
    assert!(tampered(OPTIMIZER, |t| poison(t, &square, -1.0)).contains("negative"));
    let stranger = tampered(MODEL, |t| drop(t.insert("extra".into(), (Dtype::F32, vec![1], vec![0; 4]))));
    assert!(stranger.contains("`extra`"), "{stranger}");
    assert_eq!(tampered(MODEL, |_| {}), "");
}

#[test]
fn a_config_that_would_change_the_arithmetic_is_refused() {
    for (key, value) in [
        ("r", json!(0)),
        ("r", json!(4)),
        ("r", json!(100_000)),
        ("r", json!(-1)),
        ("lora_alpha", json!(0.0)),
        ("peft_type", json!("IA3")),
        ("target_modules", json!(["q_proj"])),
        ("target_modules", json!(["q_proj", "lm_head"])),
        ("target_modules", json!([])),
        ("use_dora", json!(true)),
        ("use_rslora", json!(true)),
        ("rank_pattern", json!({ "q_proj": 2 })),
        ("modules_to_save", json!(["lm_head"])),
        ("bias", json!("all")),
    ] {
        let folder = written();
        let file = folder.path().join(CONFIG);
        let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        config[key] = value.clone();
        fs::write(&file, config.to_string()).unwrap();
        let error = read_adapter(folder.path(), &base()).err();
        assert!(
            matches!(error, Some(CheckpointError::File { .. } | CheckpointError::Tensor { .. })),
            "{key} = {value}: {error:?}"
        );
    }
}

#[test]
fn an_adapter_of_another_base_model_is_refused() {
    let other = Model::random(Architecture::tiny(), 2).unwrap();
    let other = BaseModelIdentity::of("other", &other).unwrap();
    let text = read_adapter(written().path(), &other).err().unwrap().to_string();
    assert!(text.contains("`tiny`") && text.contains("`other`"), "{text}");
    // The name alone decides nothing.
    let renamed = BaseModelIdentity { name: "renamed".into(), ..base() };
    assert!(read_adapter(written().path(), &renamed).is_ok());
}
