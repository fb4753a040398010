//! Experiment trackers of a run, with stand-ins for their packages: the real ones are tried by `just trackers`.

use crate::command::{Running, check, config, metrics, output, run, steps};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A package `wandb` that writes its calls into `$CALLS`, one JSON object a line. `$FAULT` selects a fault.
const WANDB: &str = r#"
import json, os, signal, sys

def call(method, **told):
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(json.dumps({"call": method, "pid": os.getpid(), **told}) + "\n")

class Table:
    def __init__(self, columns, data):
        self.columns, self.data = columns, data

class Config:
    def update(self, config, allow_val_change):
        call("config", config=config)

class Run:
    config = Config()
    def define_metric(self, name, step_metric):
        call("define_metric", name=name, step_metric=step_metric)
    def log(self, row):
        table = row.pop("rollouts", None)
        if table is not None:
            call("table", step=row["step"], columns=table.columns, rows=table.data)
            return
        call("log", row=row)
        once = os.environ["CALLS"] + ".fault"
        if os.environ.get("FAULT") == "exits" and not os.path.exists(once):
            open(once, "w").close()
            os._exit(3)
    def finish(self, exit_code):
        call("finish", exit_code=exit_code)

def init(project, name, id, resume):
    call("init", project=project, name=name, id=id, resume=resume, variables=sorted(os.environ))
    if os.environ.get("FAULT") == "raises":
        raise ValueError("no such account")
    if os.environ.get("FAULT") == "hangs":
        while True:
            signal.pause()
    run = Run()
    run.id = id
    return run
"#;

/// A folder with such a package and its calls.
struct FakeWandb {
    dir: tempfile::TempDir,
}

impl FakeWandb {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("wandb.py"), WANDB).unwrap();
        Self { dir }
    }

    fn run_folder(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn give(&self, command: &mut Command, fault: &str) {
        command.env("PYTHONPATH", self.dir.path()).env("CALLS", self.dir.path().join("calls"));
        command.env("FAULT", fault).env("NO_COLOR", "1");
    }

    /// A run of the smallest config that is shown in the stand-in.
    fn command(&self, fault: &str, extra: &[&str]) -> Command {
        let tracked = ["--set", "log.to=[\"wandb\"]", "--set", "log.python=python3"];
        let mut command = run(&config("ci_test.toml"), &self.run_folder(), &[&tracked, extra].concat());
        self.give(&mut command, fault);
        command
    }

    /// Sends the run folder after the run.
    fn track(&self, fault: &str) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
        command.arg("track").arg(self.run_folder()).args(["--to", "wandb", "--python", "python3"]);
        self.give(&mut command, fault);
        output(&mut command)
    }

    fn calls(&self, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default();
        let calls = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        calls.filter(|call| call["call"] == name).collect()
    }

    /// Numbers by name and step. A step that was sent twice must have the same numbers.
    fn numbers(&self) -> BTreeMap<(String, u64), f64> {
        let mut found = BTreeMap::new();
        for call in self.calls("log") {
            let step = call["row"]["step"].as_u64().unwrap();
            for (name, value) in call["row"].as_object().unwrap().iter().filter(|(name, _)| *name != "step") {
                let value = value.as_f64().unwrap();
                let before = found.insert((name.clone(), step), value);
                assert!(before.is_none_or(|before| before == value), "{name} of step {step}");
            }
        }
        found
    }
}

/// The tracker has each of these numbers and no other one.
fn assert_same(found: &BTreeMap<(String, u64), f64>, expected: &BTreeMap<(String, u64), f64>) {
    let missing: Vec<_> = expected.iter().filter(|(key, value)| found.get(key) != Some(value)).collect();
    assert!(missing.is_empty(), "{} numbers are missing: {:?}", missing.len(), missing.first());
    assert_eq!(found.len(), expected.len(), "there are others");
}

/// Numbers of `metrics.json` and `evals.jsonl` by name and step.
fn expected(folder: &Path) -> BTreeMap<(String, u64), f64> {
    let evaluations = std::fs::read_to_string(folder.join("evals.jsonl")).unwrap_or_default();
    let evaluations = evaluations.lines().map(|line| serde_json::from_str(line).unwrap());
    let mut found = BTreeMap::new();
    for row in metrics(folder).into_iter().chain(evaluations) {
        let step = row["step"] as u64;
        found.extend(row.into_iter().filter(|(name, _)| name != "step").map(|(name, v)| ((name, step), v)));
    }
    found
}

#[test]
fn every_number_is_sent_and_a_resumed_run_goes_on_in_the_same_one() {
    let wandb = FakeWandb::new();
    let held = r#"envs=[{id = "plain_letters"}, {id = "plain_letters", name = "held", weight = 0}]"#;
    let sets = ["--set", held, "--set", "trainer.eval_every=2", "--set", "eval.episodes=3"];
    let more = ["--set", "log.table_every=2", "--set", "log.project=letters"];
    let start = |steps: &str| {
        let mut command = wandb.command("", &[&sets[..], &more, &["--max-steps", steps]].concat());
        command.env("TINKER_API_KEY", "tml-x").env("MINDS_TRAINER__SEED", "0").env("WANDB_API_KEY", "w");
        output(&mut command)
    };
    let (code, out, stderr) = start("4");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(out.contains("tracking     wandb: the rest is sent within 30 s"), "{out}");
    assert_eq!(start("6").0, Some(0));

    let sent = wandb.numbers();
    assert_same(&sent, &expected(&wandb.run_folder()));
    assert!(sent.contains_key(&("env/all/reward/total".into(), 6)));
    assert!(sent.contains_key(&("eval/held/reward".into(), 4)));

    let [first, second] = &wandb.calls("init")[..] else { panic!("one process for each part of the run") };
    assert_eq!(first["id"], second["id"]);
    assert_eq!(first["project"], "letters");
    assert_eq!(first["name"], "ci_test-run");
    let variables: Vec<&str> =
        first["variables"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(variables.contains(&"WANDB_API_KEY"), "{variables:?}");
    assert!(!variables.iter().any(|name| name.starts_with("TINKER_") || name.starts_with("MINDS_")));
    assert_eq!(wandb.calls("config")[0]["config"]["trainer"]["eval_every"], 2);
    let steps_with_tables: Vec<u64> =
        wandb.calls("table").iter().map(|call| call["step"].as_u64().unwrap()).collect();
    assert_eq!(steps_with_tables, [2, 4, 6]);
    assert_eq!(wandb.calls("table")[0]["rows"].as_array().unwrap().len(), 8);

    let sent = wandb.calls("log").len();
    assert_eq!(wandb.track("").0, Some(0));
    assert_eq!(wandb.calls("log").len(), sent, "nothing is left to send");
    let ends: Vec<Value> = wandb.calls("finish").iter().map(|call| call["exit_code"].clone()).collect();
    assert_eq!(ends, [0, 0, 0]);
}

#[test]
fn a_killed_run_is_shown_as_killed_and_its_repeated_steps_keep_their_first_numbers() {
    let wandb = FakeWandb::new();
    let long = ["--max-steps", "30", "--set", "trainer.save_every=7"];
    let mut running = Running::start(&mut wandb.command("", &long));
    running.wait_for("step 11");
    running.signal("-KILL");
    assert_eq!(running.end(), None, "killed");
    // Its tracker waits until that of the killed run is done.
    assert_eq!(output(&mut wandb.command("", &long)).0, Some(0));
    let ends: Vec<Value> = wandb.calls("finish").iter().map(|call| call["exit_code"].clone()).collect();
    assert_eq!(ends, [255, 0]);
    let sent: Vec<u64> =
        wandb.calls("log").iter().map(|call| call["row"]["step"].as_u64().unwrap()).collect();
    assert_eq!(sent, (1..=30).collect::<Vec<_>>(), "each step once");
    let inits = wandb.calls("init");
    assert_eq!(inits[0]["id"], inits[1]["id"]);
}

#[test]
fn a_tracker_that_dies_is_restarted_and_loses_nothing() {
    let wandb = FakeWandb::new();
    let (code, _, stderr) = output(&mut wandb.command("exits", &[]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stderr.contains("tracker wandb ended and is restarted") && stderr.contains("exit code 3"),
        "{stderr}"
    );
    assert_eq!(wandb.calls("init").len(), 2);
    assert_same(&wandb.numbers(), &expected(&wandb.run_folder()));
}

#[test]
fn a_tracker_that_cannot_begin_costs_the_run_nothing() {
    let wandb = FakeWandb::new();
    let (code, _, stderr) = output(&mut wandb.command("raises", &["--max-steps", "3"]));
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(steps(&wandb.run_folder()), [1, 2, 3]);
    assert_eq!(wandb.calls("init").len(), 4, "three restarts");
    assert!(stderr.contains("tracker wandb ended and is not restarted"), "{stderr}");
    assert!(stderr.contains("ValueError: no such account"), "{stderr}");
    let log = std::fs::read_to_string(wandb.run_folder().join("tracking/wandb.log")).unwrap();
    assert!(log.contains("Traceback"), "{log}");
}

#[test]
fn a_tracker_that_hangs_is_ended_after_the_run() {
    let wandb = FakeWandb::new();
    let (code, out, stderr) =
        output(&mut wandb.command("hangs", &["--max-steps", "3", "--set", "log.tracker_timeout=\"1s\""]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(out.contains("within 1 s"), "{out}");
    assert_eq!(steps(&wandb.run_folder()), [1, 2, 3]);
    assert!(stderr.contains("tracker wandb did not finish in time and was ended"), "{stderr}");
    let hung = wandb.calls("init")[0]["pid"].as_u64().unwrap();
    let alive = Command::new("kill").args(["-0", &hung.to_string()]).output().unwrap().status;
    assert!(!alive.success(), "process {hung} is left behind");
}

#[test]
fn a_missing_package_is_named_before_the_run_starts() {
    let dir = tempfile::tempdir().unwrap();
    let python = dir.path().join("python");
    std::fs::write(&python, "#!/bin/sh\nexec python3 -I -S \"$@\"\n").unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let interpreter = format!("log.python={:?}", python.display().to_string());
    let sets = ["--set", "log.to=[\"mlflow\", \"trackio\"]", "--set", &interpreter];
    let folder = dir.path().join("run");
    let (code, _, stderr) = output(&mut run(&config("ci_test.toml"), &folder, &sets));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("mlflow, trackio are not installed for"), "{stderr}");
    assert!(stderr.contains("-m pip install mlflow trackio"), "{stderr}");
    assert!(!folder.exists());
    let (code, _, stderr) =
        output(&mut check(&config("ci_test.toml"), &[&sets[..], &["--offline"]].concat()));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("-m pip install mlflow trackio"), "{stderr}");
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    let (_, out, _) = output(doctor.arg("doctor").arg(config("ci_test.toml")).args(sets));
    assert!(out.contains("missing  tracker      log.to names trackio"), "{out}");
}

#[test]
fn a_folder_is_sent_after_the_run_without_its_secrets() {
    let wandb = FakeWandb::new();
    let folder = wandb.run_folder();
    std::fs::create_dir(&folder).unwrap();
    let written = "[env]\nid = \"a\"\n[env.args]\njudge_key = \"secret\"\nshots = 3\n";
    std::fs::write(folder.join("config.toml"), written).unwrap();
    let rows = "[\n{\"step\":1.0,\"a\":0.5},\n{\"step\":2.0,\"a\":null,\"b\":-1e-7},\n{\"step\":3.0,\"a\":0.";
    std::fs::write(folder.join("metrics.json"), rows).unwrap();
    std::fs::write(folder.join("evals.jsonl"), "{\"step\":1,\"eval/x/pass@1\":0.25}\n").unwrap();
    let (code, out, stderr) = wandb.track("");
    assert_eq!(code, Some(0), "{stderr}");
    assert!(out.starts_with("sent "), "{out}");
    let sent: Vec<(&str, u64, f64)> = vec![("a", 1, 0.5), ("b", 2, -1e-7), ("eval/x/pass@1", 1, 0.25)];
    let sent = sent.into_iter().map(|(name, step, value)| ((name.to_owned(), step), value)).collect();
    assert_eq!(wandb.numbers(), sent);
    assert_eq!(wandb.calls("config")[0]["config"]["env"]["args"]["judge_key"], "…");
    assert_eq!(wandb.calls("config")[0]["config"]["env"]["args"]["shots"], 3);
    assert_eq!(wandb.calls("finish")[0]["exit_code"], 255, "no checkpoint says that it ended");

    assert_eq!(wandb.track("").0, Some(0));
    assert_eq!(wandb.calls("log").len(), 3, "nothing is sent again");
    let (code, _, stderr) = wandb.track("raises");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("1 of 1 trackers have not received everything"), "{stderr}");
}
