//! `check`: what it says of a config, and that it is true.

use crate::command::{check, config, output, run};
use crate::venv;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn checked(config: &Path, extra: &[&str]) -> (Option<i32>, Value, String) {
    let mut command = check(config, &[&["--json"], extra].concat());
    let (code, stdout, stderr) = output(command.current_dir(env!("CARGO_MANIFEST_DIR")));
    (code, serde_json::from_str(&stdout).unwrap_or_default(), stderr)
}

/// All configs that are shipped.
fn shipped() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let files = [root.clone(), root.join("hosted")].map(|folder| std::fs::read_dir(folder).unwrap());
    let mut files: Vec<_> = files.into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    files.sort();
    assert!(files.len() >= 10, "{files:?}");
    files
}

#[test]
fn the_numbers_are_those_of_the_line() {
    let ci = config("ci_test.toml");
    let (code, found, stderr) = checked(&ci, &["--offline"]);
    assert_eq!(code, Some(0), "{stderr}");
    // 2 groups of 4, one batch beside the one in training: (1 + 1) × 2 credits, as many groups, 4 scores of each.
    assert_eq!(found["credits"], 4);
    let mailboxes = serde_json::json!({ "batches": 2, "rollouts": 16, "groups": 4, "scored": 16 });
    assert_eq!(found["mailboxes"], mailboxes);
    // 2 × 4 rollouts of 8 tokens.
    assert_eq!(found["tokens"]["sampled_at_most"], 64);
    assert_eq!(found["model"]["context"], 2048);
    assert_eq!(found["warnings"], serde_json::json!([]));

    // The real pipeline, in virtual time, reports its settings.
    let mut simulate = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    simulate.arg("simulate").arg(&ci).args(["--steps", "2", "--json"]);
    let (code, stdout, stderr) = output(&mut simulate);
    assert_eq!(code, Some(0), "{stderr}");
    let simulated: Value = serde_json::from_str(&stdout).unwrap();
    for (name, capacity) in found["mailboxes"].as_object().unwrap() {
        assert_eq!(simulated["mailboxes"][name]["capacity"], *capacity, "{name}: {}", simulated["mailboxes"]);
    }
}

#[test]
fn text_and_json_output_agree() {
    let (code, stdout, stderr) = output(&mut check(&config("ci_test.toml"), &["--offline"]));
    assert_eq!(code, Some(0), "{stderr}");
    for part in [
        "no errors found; no request was sent",
        "embedded engine",
        "plain_letters",
        "80%",
        "2 groups of 4, 4 credits",
        "groups 4, rollouts 16, scored 16, batches 2",
        "requests     each step, 2 × samples: 4 completions each",
        "every 2 steps, 1 × saved state",
        "outputs/ci_test/<time>: a new run",
    ] {
        assert!(stdout.contains(part), "{part} is missing:\n{stdout}");
    }
}

#[test]
fn a_config_that_check_accepts_starts_and_resumes_as_predicted() {
    let dir = tempfile::tempdir().unwrap();
    let (ci, folder) = (config("ci_test.toml"), dir.path().join("run"));
    let look = || checked(&ci, &["--output-dir", folder.to_str().unwrap()]).1["run_folder"].clone();
    assert_eq!(look()["resumes_after"], Value::Null);
    assert!(!folder.exists(), "looking makes nothing");
    let (code, _, stderr) = output(&mut run(&ci, &folder, &["--max-steps", "2"]));
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(look()["resumes_after"], 2);
    let other = ["--output-dir", folder.to_str().unwrap(), "--set", "trainer.seed=7"];
    let (code, _, stderr) = checked(&ci, &other);
    assert_eq!(code, Some(2));
    assert!(stderr.contains("another config") && stderr.contains("trainer.seed"), "{stderr}");
}

#[test]
fn every_shipped_config_is_accepted_without_asking_anybody() {
    for config in shipped() {
        let mut command = check(&config, &["--offline", "--json"]);
        command.current_dir(env!("CARGO_MANIFEST_DIR")).env("TINKER_API_KEY", "tml-sesame");
        let (code, stdout, stderr) = output(&mut command);
        // A package that has to be installed first is missing, and that is said.
        if config.ends_with("python_verifiers.toml") && code == Some(2) {
            assert!(stderr.contains("env.id") || stderr.contains(".venv"), "{stderr}");
            continue;
        }
        assert_eq!(code, Some(0), "{}: {stderr}", config.display());
        assert!(!stdout.contains("sesame") && !stderr.contains("sesame"));
    }
}

#[test]
fn a_server_and_its_key_are_tried() {
    let ci = config("ci_test.toml");
    let away = ["--set", "tinker.base_url=http://127.0.0.1:1"];
    let (code, _, stderr) = checked(&ci, &away);
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("failed to connect to http://127.0.0.1:1"), "{stderr}");
    assert_eq!(checked(&ci, &[&away[..], &["--offline"]].concat()).0, Some(0), "no request was sent");
    let (code, _, stderr) = checked(&ci, &["--set", "tinker.base_url=http://10.0.0.1"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("allow_insecure"), "{stderr}");
}

/// Checks every instance against a schema, and the schema against its own.
const VALIDATE: &str = "
import json, sys
from jsonschema import Draft202012Validator
work = json.load(sys.stdin)
Draft202012Validator.check_schema(work['schema'])
validator = Draft202012Validator(work['schema'])
print(json.dumps([[error.json_path for error in validator.iter_errors(one)] for one in work['configs']]))
";

#[test]
fn online_the_schema_accepts_what_is_shipped_and_refuses_what_is_broken() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    let (code, schema, stderr) = output(command.args(["check", "--schema"]));
    assert_eq!(code, Some(0), "{stderr}");
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let read = |text: &str| serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
    let mut configs: Vec<Value> =
        shipped().iter().map(|path| read(&std::fs::read_to_string(path).unwrap())).collect();
    let good = configs.len();
    let small = "env.id = 'x'\nmodel.base_model = 'm'\n";
    let broken = [
        ("trainer.sede = 1", "$.trainer"),
        ("trainer.seed = 'x'", "$.trainer.seed"),
        ("trainer.lora_rank = -1", "$.trainer.lora_rank"),
        ("trainer.staleness = 'hope'", "$.trainer.staleness"),
        ("scorer.policy = 'newest'", "$.scorer.policy"),
        ("simulate.query = { mean = 1, spread = 'even' }", "$.simulate.query"),
    ];
    configs.extend(broken.iter().map(|(line, _)| read(&format!("{small}{line}"))));
    configs.push(read(&format!("{small}scorer.policy = 'pinned:x'\nsimulate.query = 3\nenv.args.any = [1]")));

    let python = venv::python("jsonschema-4.23.0", &["jsonschema==4.23.0"]);
    let work = serde_json::json!({ "schema": schema, "configs": configs }).to_string();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), work).unwrap();
    let mut validate = Command::new(python);
    validate.args(["-c", VALIDATE]).stdin(std::fs::File::open(file.path()).unwrap());
    let found: Vec<Vec<String>> = serde_json::from_str(&venv::must(&mut validate)).unwrap();
    for (config, errors) in shipped().iter().zip(&found[..good]) {
        assert_eq!(*errors, [""; 0], "{}", config.display());
    }
    for ((line, place), errors) in broken.iter().zip(&found[good..]) {
        assert_eq!(*errors, [*place], "{line}");
    }
    assert_eq!(found.last().unwrap()[..], [""; 0], "words of their own, numbers for times, any arguments");
}
