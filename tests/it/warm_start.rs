//! Runs that start from the weights of another run, or from an adapter that another program made.

use crate::command::{adapter, check, checkpoints, config, output, run};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::json;
use std::fs;
use std::path::Path;

/// Steps without a gradient, so that the last weights are the first ones.
const STILL: &[&str] = &["--max-steps", "1", "--set", "trainer.learning_rate=1e-30"];

fn from(folder: &Path) -> String {
    format!("model.from={:?}", folder.display().to_string())
}

/// The adapter of the last checkpoint of a run.
fn last_adapter(dir: &Path) -> Vec<(String, Vec<u8>)> {
    adapter(dir, checkpoints(dir).pop().unwrap()["state_path"].as_str().unwrap())
}

#[test]
fn a_run_starts_from_the_last_checkpoint_of_another() {
    let first = tempfile::tempdir().unwrap();
    let (code, _, stderr) = output(&mut run(&config("ci_test.toml"), first.path(), &["--max-steps", "3"]));
    assert_eq!(code, Some(0), "{stderr}");
    let trained = last_adapter(first.path());

    let second = tempfile::tempdir().unwrap();
    let set = from(first.path());
    let extra = [STILL, &["--set", &set]].concat();
    let (code, stdout, stderr) = output(&mut run(&config("ci_test.toml"), second.path(), &extra));
    assert_eq!(code, Some(0), "{stderr}");
    let told = format!("from         checkpoint 000003-final of {}", first.path().display());
    assert!(stdout.lines().any(|line| line == told), "{stdout}");
    assert_eq!(last_adapter(second.path()), trained);

    // Without the folder that it began with: a run that has a checkpoint resumes from its own.
    drop(first);
    let longer = ["--max-steps", "2", "--set", "trainer.learning_rate=1e-30", "--set", &set, "--force"];
    let (code, stdout, stderr) = output(&mut run(&config("ci_test.toml"), second.path(), &longer));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("resumed      at step 1"), "{stdout}");
}

/// The optimizer's moments make the second step differ from one with an optimizer that starts afresh.
#[test]
fn the_optimizer_continues_only_where_the_config_says_so() {
    let first = tempfile::tempdir().unwrap();
    let (code, _, stderr) = output(&mut run(&config("ci_test.toml"), first.path(), &["--max-steps", "3"]));
    assert_eq!(code, Some(0), "{stderr}");
    let set = from(first.path());
    let end = |with_optimizer: &str| {
        let dir = tempfile::tempdir().unwrap();
        let key = format!("model.from_optimizer={with_optimizer}");
        let extra = ["--max-steps", "1", "--set", &set, "--set", &key];
        let (code, _, stderr) = output(&mut run(&config("ci_test.toml"), dir.path(), &extra));
        assert_eq!(code, Some(0), "{stderr}");
        last_adapter(dir.path())
    };
    assert_ne!(end("true"), end("false"));
}

/// PEFT's usual adapter changes the projections of queries and values alone. The other layers of the run's adapter change
/// nothing at first: their `B` is zero.
#[test]
fn an_adapter_of_another_program_is_taken_up() {
    let folder = tempfile::tempdir().unwrap();
    write_peft(folder.path(), &["q_proj", "v_proj"], 4, 32.0);
    let dir = tempfile::tempdir().unwrap();
    let set = from(folder.path());
    let extra = [STILL, &["--set", &set, "--set", "trainer.training_rank=4"]].concat();
    let (code, stdout, stderr) = output(&mut run(&config("ci_test.toml"), dir.path(), &extra));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains(&format!("from         the adapter in {}", folder.path().display())), "{stdout}");
    let mut given = 0;
    for (name, bytes) in last_adapter(dir.path()) {
        let values: Vec<f32> = bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        if name.contains("q_proj") || name.contains("v_proj") {
            given += 1;
            assert!(values.iter().enumerate().all(|(i, v)| (v - value(i)).abs() < 1e-20), "{name}");
        } else if name.contains("lora_B") {
            assert!(values.iter().all(|v| v.abs() < 1e-20), "{name}");
        }
    }
    assert_eq!(given, 8, "A and B of two projections in two layers");
}

#[test]
fn weights_that_do_not_fit_are_refused_before_anything_is_started() {
    let empty = tempfile::tempdir().unwrap();
    let peft = tempfile::tempdir().unwrap();
    write_peft(peft.path(), &["q_proj"], 2, 16.0);
    let path = |folder: &Path| folder.display().to_string();
    for (value, problem) in [
        ("nowhere".to_owned(), "is nowhere, which does not exist"),
        (path(empty.path()), "no run folder (it has no config.toml) and no PEFT folder"),
        (path(peft.path()), "set trainer.training_rank = 2 and trainer.lora_alpha = 16"),
        ("tinker://run-1/sampler_weights/a".to_owned(), "which are weights to sample from"),
    ] {
        let set = format!("model.from={value:?}");
        let (code, _, stderr) = output(&mut check(&config("ci_test.toml"), &["--offline", "--set", &set]));
        assert_eq!(code, Some(2), "{value}: {stderr}");
        assert!(stderr.contains("model.from") && stderr.contains(problem), "{value}: {stderr}");
    }
    let set = ["--offline", "--set", "tinker.base_url=\"http://127.0.0.1:9\"", "--set", &from(peft.path())];
    let (code, _, stderr) = output(&mut check(&config("ci_test.toml"), &set));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("the Tinker API takes no weights"), "{stderr}");
}

fn value(index: usize) -> f32 {
    (index % 7) as f32 * 1e-3 - 2e-3
}

/// An adapter of the tiny random model, as PEFT writes it.
fn write_peft(folder: &Path, targets: &[&str], rank: usize, alpha: f64) {
    let settings = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny-random", "r": rank,
        "lora_alpha": alpha, "lora_dropout": 0.05, "bias": "none", "fan_in_fan_out": false, "use_rslora": false,
        "use_dora": false, "modules_to_save": null, "target_modules": targets, "inference_mode": true,
    });
    fs::write(folder.join("adapter_config.json"), settings.to_string()).unwrap();
    let shape = minds_core::architecture::Architecture::tiny();
    let mut tensors = Vec::new();
    for layer in 0..shape.layers {
        for target in targets {
            let output = if *target == "q_proj" { shape.heads } else { shape.kv_heads } * shape.head_dim;
            for (letter, size) in [("A", [rank, shape.dim]), ("B", [output, rank])] {
                let name =
                    format!("base_model.model.model.layers.{layer}.self_attn.{target}.lora_{letter}.weight");
                let bytes: Vec<u8> = (0..size[0] * size[1]).flat_map(|i| value(i).to_le_bytes()).collect();
                tensors.push((name, size.to_vec(), bytes));
            }
        }
    }
    let views = tensors
        .iter()
        .map(|(name, size, bytes)| (name, TensorView::new(Dtype::F32, size.clone(), bytes).unwrap()));
    serialize_to_file(views, None, &folder.join("adapter_model.safetensors")).unwrap();
}
