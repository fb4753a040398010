//! Adapters in the format of PEFT.

use super::CheckpointError;
use super::base_model::BaseModelIdentity;
use super::tensors::{F32TensorView, read_file, read_tensors, write_file, write_tensors};
use crate::adapter::Adapter;
use minds_core::lora::{LoraSpec, Target};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::Path;

const CONFIG: &str = "adapter_config.json";
const MODEL: &str = "adapter_model.safetensors";
const CONFIG_BYTES: u64 = 1 << 20;
/// Metadata keys; files of other tools have neither.
const BASE: &str = "minds_base_model";
const SEED: &str = "minds_lora_seed";

/// The part of PEFT's configuration that decides the arithmetic.
#[derive(Deserialize)]
struct PeftConfig {
    peft_type: String,
    r: usize,
    lora_alpha: f64,
    target_modules: Vec<Target>,
    #[serde(default)]
    bias: Option<String>,
    #[serde(default)]
    fan_in_fan_out: bool,
    /// All other settings, checked for those that would change the arithmetic.
    #[serde(flatten)]
    rest: HashMap<String, Value>,
}

/// Settings of PEFT that must be absent, null, false or empty.
const FOREIGN: [&str; 8] = [
    "use_dora",
    "use_rslora",
    "lora_bias",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "layers_to_transform",
    "layer_replication",
];

/// Writes the adapter into a folder.
///
/// # Errors
/// The disk fails, or the files exist.
pub fn write_adapter(
    folder: &Path,
    adapter: &Adapter<f32>,
    base: &BaseModelIdentity,
) -> Result<(), CheckpointError> {
    let spec = adapter.spec();
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.name,
        "r": spec.rank,
        "lora_alpha": spec.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "target_modules": spec.targets,
    });
    write_file(&folder.join(CONFIG), format!("{config:#}\n").as_bytes())?;
    let file = folder.join(MODEL);
    let base = serde_json::to_string(base).map_err(|e| CheckpointError::file(&file, e.to_string()))?;
    let metadata = [("format", "pt".to_owned()), (BASE, base), (SEED, spec.seed.to_string())];
    let mut tensors = Vec::new();
    for (t, (names, shapes)) in adapter.tensors().zip(matrices(adapter)) {
        for ((name, shape), values) in names.into_iter().zip(shapes).zip([t.a, t.b]) {
            tensors.push((name, F32TensorView { shape, values }));
        }
    }
    write_tensors(&file, tensors, metadata.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
}

/// Reads an adapter for this base model from a folder.
///
/// # Errors
/// Files that are missing, damaged, of another base model or of an unknown kind.
pub fn read_adapter(folder: &Path, base: &BaseModelIdentity) -> Result<Adapter<f32>, CheckpointError> {
    let file = folder.join(CONFIG);
    let spec = read_spec(folder)?;
    let built = Adapter::new(&base.architecture, &spec);
    let mut adapter = built.map_err(|e| CheckpointError::file(&file, e.to_string()))?;
    let slots: Vec<_> = adapter.tensors().map(|t| (t.layer, t.target)).collect();
    let expected: Vec<_> =
        matrices(&adapter).flat_map(|(names, shapes)| names.into_iter().zip(shapes)).collect();
    let file = folder.join(MODEL);
    let mut a = Vec::new();
    let metadata = read_tensors(&file, &expected, |index, values| {
        if index % 2 == 0 {
            a = values;
            return Ok(());
        }
        let (layer, target) = slots[index / 2];
        adapter.set(layer, target, &a, &values).map_err(|e| CheckpointError::file(&file, e.to_string()))
    })?;
    if let Some(text) = metadata.get(BASE) {
        let other: BaseModelIdentity =
            serde_json::from_str(text).map_err(|e| CheckpointError::file(&file, format!("{BASE}: {e}")))?;
        if let Some(why) = base.differs_from(&other) {
            return Err(CheckpointError::file(&file, why));
        }
    }
    match metadata.get(SEED).and_then(|seed| seed.parse().ok()) {
        Some(seed) if seed != spec.seed => with_seed(base, &adapter, seed, &file),
        _ => Ok(adapter),
    }
}

/// Names and shapes of `A` and `B`, in the order of [`Adapter::tensors`].
pub(super) fn matrices(
    adapter: &Adapter<f32>,
) -> impl Iterator<Item = ([String; 2], [Vec<usize>; 2])> + use<'_> {
    let rank = adapter.spec().rank;
    adapter.tensors().map(move |t| {
        let module = match t.target {
            Target::QProj | Target::KProj | Target::VProj | Target::OProj => "self_attn",
            Target::GateProj | Target::UpProj | Target::DownProj => "mlp",
        };
        let name = |letter| {
            let layer = t.layer;
            let target = t.target.name();
            format!("base_model.model.model.layers.{layer}.{module}.{target}.lora_{letter}.weight")
        };
        ([name("A"), name("B")], [vec![rank, t.input], vec![t.output, rank]])
    })
}

/// Reads what the adapter in a folder is made of, but for its seed.
///
/// # Errors
/// A configuration that is missing, damaged or of an unknown kind.
pub fn read_spec(folder: &Path) -> Result<LoraSpec, CheckpointError> {
    let file = folder.join(CONFIG);
    let wrong = |why: String| CheckpointError::file(&file, why);
    let config: PeftConfig =
        serde_json::from_slice(&read_file(&file, CONFIG_BYTES)?).map_err(|e| wrong(e.to_string()))?;
    if config.peft_type != "LORA" {
        return Err(wrong(format!("peft_type is `{}`, only LORA is read", config.peft_type)));
    }
    let set = |key: &&&str| config.rest.get(**key).is_some_and(|value| !is_unset(value));
    if let Some(key) = FOREIGN.iter().find(set) {
        return Err(wrong(format!("`{key}` is not supported")));
    }
    if config.fan_in_fan_out || config.bias.is_some_and(|bias| bias != "none") {
        return Err(wrong("`fan_in_fan_out` and `bias` are not supported".into()));
    }
    let spec = LoraSpec { rank: config.r, alpha: config.lora_alpha, seed: 0, targets: config.target_modules };
    spec.check().map_err(|e| wrong(e.to_string()))?;
    Ok(spec)
}

fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// The same adapter, with the seed that it was first created with.
fn with_seed(
    base: &BaseModelIdentity,
    adapter: &Adapter<f32>,
    seed: u64,
    file: &Path,
) -> Result<Adapter<f32>, CheckpointError> {
    let spec = LoraSpec { seed, ..adapter.spec().clone() };
    let built = Adapter::new(&base.architecture, &spec);
    let mut same = built.map_err(|e| CheckpointError::file(file, e.to_string()))?;
    same.values_mut().copy_from_slice(adapter.values());
    Ok(same)
}
