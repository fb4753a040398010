//! The promises of the plain contract (`environments/tests/packages/contract.py`), as a user meets them: in an answer that
//! is scored by hand and in a run.

use crate::command::{config, output, run};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

fn package() -> String {
    format!("{}/environments/tests/packages/contract.py", env!("CARGO_MANIFEST_DIR"))
}

/// The reward of an answer according to `envs score`.
fn scored(case: &str, index: &str) -> f64 {
    let set = format!("case=\"{case}\"");
    let args = ["envs", "score", &package(), "--set", &set, "--index", index, "--completion", "x"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    let (code, out, err) = output(command.args(args).args(["--model", "tiny-random", "--json"]));
    assert_eq!(code, Some(0), "{case}: {err}");
    let found: Value = serde_json::from_str(&out).unwrap();
    found["reward"].as_f64().unwrap_or_else(|| panic!("{case}: {found}"))
}

/// The rollouts of a run's only step, and what it logged.
fn played(case: &str, folder: &Path, sets: &[&str]) -> (Vec<Value>, String) {
    let id = format!("env.id={}", package());
    let args = format!("env.args={{case = \"{case}\"}}");
    let mut command =
        run(&config("python_classic.toml"), folder, &["--max-steps", "1", "--set", &id, "--set", &args]);
    for set in sets {
        command.args(["--set", set]);
    }
    let (code, out, err) = output(&mut command);
    assert_eq!(code, Some(0), "{case}: {out}\n{err}");
    let rollouts = std::fs::read_to_string(folder.join("rollouts/step_000001.jsonl")).unwrap();
    (rollouts.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), err)
}

#[test]
fn every_case_gets_the_stated_reward_by_hand_and_in_a_run() {
    for (case, indices) in
        [("paid", &["0"][..]), ("closed", &["0", "7"]), ("types", &["0", "4", "13"]), ("heavy", &["299"])]
    {
        for index in indices {
            let reward = scored(case, index);
            assert!((reward - 1.0).abs() < 1e-3, "{case} {index}: {reward}");
        }
        let dir = tempfile::tempdir().unwrap();
        let (rollouts, _) = played(case, dir.path(), &["trainer.groups_per_batch=14", "env.workers=2"]);
        assert_eq!(rollouts.len(), 14 * 4, "{case}");
        for rollout in rollouts {
            let reward = rollout["reward"].as_f64().unwrap();
            assert!((reward - 1.0).abs() < 1e-3, "{case}: {rollout}");
        }
    }
}

#[test]
fn the_items_of_a_run_differ_and_are_the_same_in_the_next_one() {
    let prompts = |workers: &str| {
        let dir = tempfile::tempdir().unwrap();
        let (rollouts, err) = played("nested", dir.path(), &["trainer.groups_per_batch=20", workers]);
        assert!(!err.contains("one prompt"), "{err}");
        let mut prompts: BTreeMap<u64, String> = BTreeMap::new();
        for rollout in rollouts {
            let prompt = rollout["prompt"].to_string();
            let of_group = prompts.entry(rollout["item"].as_u64().unwrap()).or_insert(prompt.clone());
            assert_eq!(*of_group, prompt, "one task for a group");
        }
        prompts
    };
    let first = prompts("env.workers=1");
    assert_eq!(first.len(), 20);
    let mut distinct: Vec<_> = first.values().collect();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), 20);
    assert_eq!(prompts("env.workers=2"), first);
}

#[test]
fn a_run_warns_of_items_with_one_prompt_and_of_unseeded_items() {
    let dir = tempfile::tempdir().unwrap();
    let (_, err) = played("frozen", dir.path(), &["trainer.groups_per_batch=24"]);
    assert_eq!(err.matches("the first 20 items are one prompt").count(), 1, "{err}");
    assert!(err.contains(&package()), "{err}");
    let dir = tempfile::tempdir().unwrap();
    let (_, err) = played("unsettable", dir.path(), &[]);
    assert_eq!(err.matches("its observation of an item is not the same twice").count(), 1, "{err}");
}
