//! Tasks from a data file, through every command that takes an environment.

use crate::command::{check, config, metrics, output, run};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The program in the root of the repository, where the paths of the shipped config begin.
fn program(args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    output(command.current_dir(env!("CARGO_MANIFEST_DIR")).args(args))
}

const SUMS: &[&str] = &[
    "--set",
    "data=environments/tests/dataset/sums.jsonl",
    "--set",
    "prompt={{ a }} + {{ b }} = ?",
    "--set",
    "answer={{ a + b }}",
    "--set",
    "verify=number",
    "--set",
    "split=all",
];

#[test]
fn the_arguments_are_shown_without_a_file_and_the_first_prompt_with_one() {
    let (code, out, _) = program(&["envs", "list"]);
    assert!(code == Some(0) && out.lines().any(|line| line.starts_with("dataset ")), "{out}");
    let (code, out, err) = program(&["envs", "show", "dataset"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(out.contains("data  (required: a text)") && out.contains("held_out = 0.1"), "{out}");
    assert!(err.contains("`data` of `dataset` is missing: the file with one row per task"), "{err}");
    let (code, out, err) = program(&[&["envs", "show", "dataset"], SUMS].concat());
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("4 items") && out.contains("[user] 1 + 2 = ?\nanswer: 3\n"), "{out}");
}

#[test]
fn an_answer_is_scored_with_what_was_read_in_it() {
    for (completion, parse, reward) in
        [("It is 3.", Value::from("3"), 1.0), ("4", "4".into(), 0.0), ("?", Value::Null, 0.0)]
    {
        let start = ["envs", "score", "dataset", "--index", "0", "--json", "--completion", completion];
        let (code, out, err) = program(&[&start[..], SUMS].concat());
        assert_eq!(code, Some(0), "{err}");
        let scored: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&scored["parse"], &scored["reward"]), (&parse, &Value::from(reward)), "{completion}");
    }
    let (code, out, err) = program(&[&["envs", "sample", "dataset", "-n", "2", "--json"], SUMS].concat());
    assert_eq!(code, Some(0), "{err}");
    let item: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    assert!(item["info"]["row"]["a"].is_i64(), "{item}");
}

/// Settings that train one step of a config on a random model.
const SMALL: [&str; 8] = [
    "--set",
    "model.base_model=tiny-random",
    "--set",
    "model.renderer_name=role_colon",
    "--set",
    "trainer.args.max_new_tokens=4",
    "--max-steps",
    "1",
];

#[test]
fn the_shipped_config_trains_and_evaluates() {
    let folder = tempfile::tempdir().unwrap();
    let path = config("train_dataset.toml");
    let mut command = run(&path, folder.path(), &SMALL);
    let (code, out, err) = output(command.current_dir(env!("CARGO_MANIFEST_DIR")));
    assert_eq!(code, Some(0), "{out}\n{err}");
    let rows = metrics(folder.path());
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["env/word_problems/total_episodes"], 32.0);
    assert!((0.0..=1.0).contains(&rows[0]["env/word_problems/valid"]), "{:?}", rows[0]);
    let rollouts = fs::read_to_string(folder.path().join("rollouts/step_000001.jsonl")).unwrap();
    let rollout: Value = serde_json::from_str(rollouts.lines().next().unwrap()).unwrap();
    assert_eq!(rollout["prompt"][0]["content"], "You solve word problems. Reply with the number alone.");
    let folder = folder.path().display().to_string();
    let path = path.display().to_string();
    let eval = ["eval", &path, "--checkpoint", &folder, "--set", "model.base_model=tiny-random", "--set"];
    let more = ["model.renderer_name=role_colon", "--set", "trainer.args.max_new_tokens=4"];
    let (code, out, err) = program(&[&eval[..], &more].concat());
    assert_eq!(code, Some(0), "{out}\n{err}");
    assert!(out.contains("eval/held_out reward ") && out.contains("over 16 episodes, 0 without"), "{out}");
}

#[test]
fn the_shipped_config_is_checked_and_simulated_and_a_wrong_row_is_found_at_its_place() {
    let path = config("train_dataset.toml");
    let mut command = check(&path, &["--offline"]);
    let (code, out, err) = output(command.current_dir(env!("CARGO_MANIFEST_DIR")));
    assert_eq!(code, Some(0), "{out}\n{err}");
    let path = path.display().to_string();
    let (code, out, err) = program(&["simulate", &path, "--set", "simulate.steps=5"]);
    assert_eq!(code, Some(0), "{out}\n{err}");

    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("rows.jsonl");
    fs::write(&data, "{\"q\": \"1 + 1\", \"a\": 2}\n{\"q\": \"1 + 2\"}\n").unwrap();
    let written = folder.path().join("train.toml");
    let text = format!(
        "[env]\nid = \"dataset\"\n[env.args]\ndata = \"{}\"\nprompt = \"{{{{ q }}}}\"\nanswer = \"{{{{ a }}}}\"\n\
         [model]\nbase_model = \"tiny-random\"\n[tinker]\nbase_url = \"embedded\"\n",
        data.display()
    );
    fs::write(&written, text).unwrap();
    let (code, _, err) = output(&mut check(&written, &["--offline"]));
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("train.toml:6:10: `env.args.answer` is wrong"), "{err}");
    assert!(err.contains("rows.jsonl:2: `answer` reads the column `a`, which the row lacks"), "{err}");
}

#[test]
fn the_shipped_problems_are_those_that_their_script_writes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/data");
    let written = Command::new("python3").arg(folder.join("word_problems.py")).output().unwrap();
    assert_eq!(
        String::from_utf8(written.stdout).unwrap(),
        fs::read_to_string(folder.join("word_problems.jsonl")).unwrap()
    );
}
