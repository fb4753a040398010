//! Tasks from a data file, through every command that takes an environment.

use crate::command::{check, config, metrics, output, run};
use serde_json::Value;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
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

/// The verifier that asks a grader model, and the table of its arguments.
const TABLE: &str = "judge";

/// A service that gives every answer half the points, and counts what it is asked.
fn grader_model(requests: usize) -> (u16, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = move || {
        let answer = |stream: std::net::TcpStream| {
            let mut stream = stream;
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            let whole = loop {
                let count = stream.read(&mut buffer).unwrap();
                request.extend_from_slice(&buffer[..count]);
                let text = String::from_utf8_lossy(&request).into_owned();
                let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                let head = head.to_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                if body.len() >= length.parse().unwrap() {
                    break text;
                }
            };
            let content = "{\\\"score\\\": 0.5, \\\"reason\\\": \\\"half right\\\"}";
            let body = format!("{{\"choices\": [{{\"message\": {{\"content\": \"{content}\"}}}}]}}");
            let length = body.len();
            write!(stream, "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
                .unwrap();
            whole
        };
        listener.incoming().take(requests).map(|stream| answer(stream.unwrap())).collect()
    };
    (port, std::thread::spawn(serve))
}

#[test]
fn a_grader_model_gives_score_and_reason_and_is_compared_with_labels() {
    let (port, served) = grader_model(2);
    let folder = tempfile::tempdir().unwrap();
    let labels = folder.path().join("labels.jsonl");
    fs::write(&labels, "{\"a\": 1, \"b\": 2, \"completion\": \"3\", \"label\": true}\n").unwrap();
    let url = format!("{TABLE}.url=http://127.0.0.1:{port}/v1");
    let labels = format!("{TABLE}.labels={}", labels.display());
    let mut args = vec!["envs", "score", "dataset", "--index", "0", "--completion", "Three.", "--json"];
    let verify = format!("verify={TABLE}");
    let model = format!("{TABLE}.model=m");
    let rubric = format!("{TABLE}.rubric=Be strict.");
    args.extend(SUMS.iter().map(|set| if *set == "verify=number" { &verify } else { *set }));
    args.extend(["--set", &url, "--set", &model, "--set", &rubric, "--set", &labels]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(&args).env("MINDS_LOG", "info").env("NO_COLOR", "1");
    let (code, out, err) = output(&mut command);
    assert_eq!(code, Some(0), "{out}\n{err}");
    let scored: Value = serde_json::from_str(&out).unwrap();
    let parse = serde_json::json!({ "answer": "Three.", "score": 0.5, "reason": "half right" });
    assert_eq!((&scored["reward"], &scored["parse"]), (&Value::from(0.5), &parse));
    assert!(err.contains("the grader model was compared with labels graded=1 agreed=1"), "{err}");
    let requests = served.join().unwrap();
    assert!(requests.iter().all(|request| request.starts_with("POST /v1/chat/completions ")), "{requests:?}");
}
