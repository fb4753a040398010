//! The configs and packages of the original trainer, from a checkout of its repository, of which nothing is here.
//!
//! Only model, service and length of answers are set. Rewards that ask the model are compared with the packages' own
//! functions in `environments/tests/it/python/original.rs`, where logprobs are known by hand.

use crate::command::{metrics, output, run, steps};
use crate::venv::{by_hand, must, original, verifiers_of_the_original};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

const SETS: [&str; 3] =
    ["model.base_model=tiny-random", "tinker.base_url=embedded", "trainer.args.max_new_tokens=24"];

/// Transcripts that one of the evaluations fetches when it is loaded; without the network, a stand-in is given out.
const OFFLINE: &str = "
import requests
class Answer:
    text = 'User\\nIs it true?\\nAssistant\\nTool call: submit <was_sandbagging>'
    def raise_for_status(self): pass
requests.get = lambda *_, **__: Answer()
";

/// `run` in the checkout, with the library's interpreter as `python3`.
fn train(name: &str, folder: &Path, steps: &str, sets: &[&str]) -> (Option<i32>, String, String) {
    let bin = verifiers_of_the_original().parent().unwrap().to_owned();
    let mut path = vec![bin];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    let mut command = run(&original().join("configs").join(name), folder, &["--max-steps", steps]);
    for set in SETS.iter().chain(sets) {
        command.args(["--set", set]);
    }
    output(command.current_dir(original()).env("PATH", std::env::join_paths(path).unwrap()))
}

/// A rollout as a case that is scored by hand, if that needs nothing but what was said.
fn case(package: &str, rollout: &Value) -> Option<Value> {
    let text = rollout["turns"][0]["text"].as_str().unwrap();
    let messages = rollout["prompt"].as_array().unwrap();
    let row = match package {
        "ghost_trace" if !text.chars().any(char::is_numeric) => json!({"info": {"target_word": "any"}}),
        "entropy_intuition" => json!({}),
        "self_prediction" => json!({"answer": result(messages.last()?["content"].as_str()?).to_string()}),
        _ => return None,
    };
    Some(json!([package, {"num_examples": 2}, messages, text, row]))
}

/// Of "What is 6 + 5?".
fn result(question: &str) -> i128 {
    let words: Vec<&str> = question.trim_end_matches('?').split(' ').collect();
    let number = |at: usize| words[at].parse::<i128>().unwrap();
    match words[3] {
        "+" => number(2) + number(4),
        "-" => number(2) - number(4),
        _ => number(2) * number(4),
    }
}

#[test]
#[ignore = "needs a checkout of the original: `just original CHECKOUT`"]
fn the_original_configs_train_two_steps() {
    for (config, package) in [
        ("train_ghost.toml", "ghost_trace"),
        ("train_self_pred.toml", "self_prediction"),
        ("train_entropy_intuition.toml", "entropy_intuition"),
        ("train_prophet.toml", "gradient_prophet"),
        ("train_gradient_intuition.toml", "gradient_intuition"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (code, out, err) = train(config, dir.path(), "2", &[]);
        assert_eq!(code, Some(0), "{config}: {out}\n{err}");
        assert_eq!(steps(dir.path()), [1, 2], "{config}");
        for row in metrics(dir.path()) {
            assert_eq!(row["env/all/missing_episodes"], 0.0, "{config}: {row:?}");
            let bad = |key: &str| key.ends_with("reward_errors") || key.ends_with("reward_coerced");
            assert!(row.iter().all(|(key, value)| !bad(key) || *value == 0.0), "{config}: {row:?}");
        }
        let rollouts = |step| {
            let path = dir.path().join(format!("rollouts/step_00000{step}.jsonl"));
            let lines = std::fs::read_to_string(path).unwrap();
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
        };
        let rollouts = [rollouts(1), rollouts(2)].concat();
        let known: Vec<_> = rollouts.iter().filter_map(|r| Some((case(package, r)?, &r["reward"]))).collect();
        let cases: Vec<_> = known.iter().map(|(case, _)| case.clone()).collect();
        for ((case, found), right) in known.iter().zip(by_hand(&cases)) {
            assert!((found.as_f64().unwrap() - right).abs() < 1e-5, "{found} is not {right}: {case}");
        }
    }
}

#[test]
#[ignore = "needs a checkout of the original: `just original CHECKOUT`"]
fn the_original_mixture_loads_and_trains() {
    let packages = "import site; print(site.getsitepackages()[0])";
    let packages = must(Command::new(verifiers_of_the_original()).args(["-c", packages]));
    let stand_in = PathBuf::from(packages.trim()).join("sitecustomize.py");
    std::fs::write(&stand_in, OFFLINE).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let small = ["trainer.rollouts_per_example=2", "trainer.groups_per_batch=8"];
    let (code, out, err) = train("multi_task.toml", dir.path(), "1", &small);
    std::fs::remove_file(stand_in).unwrap();
    assert_eq!(code, Some(0), "{out}\n{err}");
    assert_eq!(steps(dir.path()), [1]);
}
