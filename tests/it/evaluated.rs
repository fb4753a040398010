//! Weights are measured beside training, and again alone.

use crate::command::{Running, output, run};
use crate::dashboard::{address, get, told};
use serde_json::Value;
use std::fs;
use std::process::Command;

const CONFIG: &str = r#"
[[envs]]
id = "plain_letters"
[[envs]]
id = "plain_letters"
name = "held"
weight = 0
[trainer]
rollouts_per_example = 4
groups_per_batch = 2
total_batches = 4
learning_rate = 0.01
training_rank = 4
eval_every = 2
[trainer.args]
max_new_tokens = 8
[eval]
episodes = 5
[model]
base_model = "tiny-random"
[tinker]
base_url = "embedded"
"#;

#[test]
fn the_live_stream_has_evaluations_and_warnings() {
    let dir = tempfile::tempdir().unwrap();
    let (config, folder) = (dir.path().join("train.toml"), dir.path().join("run"));
    fs::write(&config, CONFIG).unwrap();
    // Rounding alone is above this limit.
    let sets = ["metrics.addr=\"127.0.0.1:0\"", "trainer.kl_alarm=1e-30"].map(|set| ["--set", set]);
    let long = [&["--max-steps", "1000000"], &sets[0][..], &sets[1]].concat();
    let mut running = Running::start(&mut run(&config, &folder, &long));
    let addr = address(&running.wait_for("dashboard"));
    let mut told = told(&addr);
    running.wait_for("eval 2");
    let rows = get(&addr, "/api/evaluations", &[]).json();
    let text = fs::read_to_string(folder.join("evals.jsonl")).unwrap();
    let kept: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (row, kept) in rows.as_array().unwrap().iter().zip(&kept) {
        assert_eq!(row["step"].as_f64(), kept["step"].as_f64());
        assert_eq!(row["eval/held/reward_low"].as_f64(), kept["eval/held/reward_low"].as_f64());
    }
    let read = get(&addr, "/metrics", &[]).body;
    for name in ["minds_eval_reward", "minds_eval_reward_low", "minds_eval_reward_high"] {
        assert!(read.contains(&format!("\n{name}{{environment=\"held\"}} ")), "{name}: {read}");
    }
    assert!(read.contains("\nminds_eval_step ") && !read.contains("eval_reward{environment=\"plain_letters"));
    assert!(told.by_ref().any(|(name, row)| name == "evaluation" && row["eval/held/reward"].is_number()));
    running.signal("-INT");
    let far =
        |event: &Value| event["text"].as_str().unwrap().starts_with("the weights in training have drifted");
    let mut warned = told.filter(|(name, event)| name == "event" && far(event));
    assert_eq!(warned.next().unwrap().1["level"], "warn");
    assert!(warned.count() < 3, "told once, and what is left at the end");
    assert_eq!(running.end(), Some(0));
}

#[test]
fn a_resumed_run_has_one_evaluation_per_step() {
    let dir = tempfile::tempdir().unwrap();
    let (config, folder) = (dir.path().join("train.toml"), dir.path().join("run"));
    fs::write(&config, CONFIG).unwrap();
    for steps in ["2", "4"] {
        let (code, _, err) = output(&mut run(&config, &folder, &["--max-steps", steps]));
        assert_eq!(code, Some(0), "{err}");
    }
    let text = fs::read_to_string(folder.join("evals.jsonl")).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut steps: Vec<u64> = rows.map(|row| row["step"].as_u64().unwrap()).collect();
    assert_eq!((steps.first(), steps.last()), (Some(&0), Some(&4)));
    assert!(steps.contains(&2), "the end of the first run: {steps:?}");
    let all = steps.len();
    steps.dedup();
    assert_eq!(steps.len(), all, "{steps:?}");
}

#[test]
fn the_final_weights_are_evaluated_even_if_the_end_is_not_a_multiple_of_eval_every() {
    let dir = tempfile::tempdir().unwrap();
    let (config, folder) = (dir.path().join("train.toml"), dir.path().join("run"));
    fs::write(&config, CONFIG).unwrap();
    for (steps, expected) in [("3", 3), ("5", 5)] {
        let (code, _, err) = output(&mut run(&config, &folder, &["--max-steps", steps]));
        assert_eq!(code, Some(0), "{err}");
        let text = fs::read_to_string(folder.join("evals.jsonl")).unwrap();
        let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let measured: Vec<u64> = rows.map(|row| row["step"].as_u64().unwrap()).collect();
        assert_eq!(measured.last(), Some(&expected), "{measured:?}");
        assert_eq!(measured.iter().filter(|step| **step == expected).count(), 1, "{measured:?}");
    }
}

#[test]
fn a_run_measures_its_weights_and_the_verb_measures_them_alike() {
    let dir = tempfile::tempdir().unwrap();
    let (config, folder) = (dir.path().join("train.toml"), dir.path().join("run"));
    fs::write(&config, CONFIG).unwrap();
    let (code, out, err) = output(&mut run(&config, &folder, &[]));
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("eval/held reward"), "{out}");
    let text = fs::read_to_string(folder.join("evals.jsonl")).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps: Vec<u64> = rows.iter().map(|row| row["step"].as_u64().unwrap()).collect();
    assert_eq!((steps.first(), steps.last()), (Some(&0), Some(&4)), "before training and at its end");
    assert!(rows.iter().all(|row| row["eval/held/episodes"] == 5.0 && row["eval/held/missing"] == 0.0));

    let verb = |extra: &[&str]| -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
        let (code, out, err) = output(command.arg("eval").arg(&config).arg("--json").args(extra));
        assert_eq!(code, Some(0), "{err}");
        serde_json::from_str(&out).unwrap()
    };
    // The same items, seeds and weights give the same rewards.
    for (found, row) in
        [(verb(&["--checkpoint", folder.to_str().unwrap()]), rows.last().unwrap()), (verb(&[]), &rows[0])]
    {
        assert_eq!(found["step"], row["step"]);
        assert_eq!(found["metrics"]["eval/held/reward"], row["eval/held/reward"]);
    }

    let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    let (code, _, err) = output(command.arg("eval").arg(&config).arg("--checkpoint").arg(dir.path()));
    assert_eq!(code, Some(2));
    assert!(err.contains("not a run folder"), "{err}");
}
