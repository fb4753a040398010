//! What TensorBoard itself reads in a run folder.

use crate::command::{Running, config, metrics, output, run, steps};
use crate::venv::{must, python};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Prints every tag with its steps and values.
const READ: &str = r#"
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
print(json.dumps({tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}))
"#;

/// As much of the package as reading takes.
const PACKAGES: &[&str] = &[
    "--no-deps",
    "tensorboard==2.20.0",
    "numpy==2.4.6",
    "protobuf==7.36.2",
    "absl-py==2.5.1",
    "packaging==26.4",
];

fn read(folder: &Path) -> BTreeMap<String, Vec<(u64, f64)>> {
    let python = python("tensorboard-2.20.0", PACKAGES);
    serde_json::from_str(&must(Command::new(python).args(["-c", READ]).arg(folder))).unwrap()
}

fn files(folder: &Path) -> usize {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().contains("tfevents")).count()
}

/// A run that was killed takes its last steps again: TensorBoard has each step once, with the number that counts.
#[test]
fn online_every_number_of_every_step_is_there_once() {
    let dir = tempfile::tempdir().unwrap();
    let long = ["--max-steps", "40", "--set", "trainer.save_every=5"];
    let mut running = Running::start(&mut run(&config("ci_test.toml"), dir.path(), &long));
    running.wait_for("step 8");
    running.signal("-KILL");
    assert_eq!(running.end(), None, "killed");
    assert_eq!(output(&mut run(&config("ci_test.toml"), dir.path(), &long)).0, Some(0));
    assert_eq!(files(dir.path()), 2, "one of each life");

    let mut expected: BTreeMap<String, Vec<(u64, f64)>> = BTreeMap::new();
    for row in metrics(dir.path()) {
        let step = row["step"] as u64;
        for (name, value) in row.into_iter().filter(|(name, _)| name != "step") {
            // The format has 32 bits for a number.
            expected.entry(name).or_default().push((step, f64::from(value as f32)));
        }
    }
    assert_eq!(expected["env/all/reward/total"].len(), 40);
    assert_eq!(read(dir.path()), expected);
}

#[test]
fn online_evaluations_are_there_by_the_step_of_their_weights() {
    let dir = tempfile::tempdir().unwrap();
    let config = config("ci_test.toml");
    let held = r#"envs=[{id = "plain_letters"}, {id = "plain_letters", name = "held", weight = 0}]"#;
    let sets = ["--set", held, "--set", "trainer.eval_every=2", "--set", "eval.episodes=3"];
    let (code, _, stderr) =
        output(&mut run(&config, dir.path(), &[&sets[..], &["--max-steps", "4"]].concat()));
    assert_eq!(code, Some(0), "{stderr}");
    let lines = std::fs::read_to_string(dir.path().join("evals.jsonl")).unwrap();
    let rows = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let expected: Vec<(u64, f64)> = rows
        .map(|row| {
            (row["step"].as_u64().unwrap(), f64::from(row["eval/held/reward"].as_f64().unwrap() as f32))
        })
        .collect();
    assert!(expected.len() >= 2 && expected[0].0 == 0, "{expected:?}");
    assert_eq!(read(dir.path())["eval/held/reward"], expected);
}

#[test]
fn it_can_be_turned_off_and_on_again() {
    let dir = tempfile::tempdir().unwrap();
    let train = |steps: &str, on: &str| {
        let set = format!("log.tensorboard={on}");
        output(&mut run(&config("ci_test.toml"), dir.path(), &["--max-steps", steps, "--set", &set]))
    };
    assert_eq!(train("2", "false").0, Some(0));
    assert_eq!(files(dir.path()), 0);
    let (code, _, stderr) = train("3", "true");
    assert_eq!(code, Some(0), "it is the same run: {stderr}");
    assert_eq!((files(dir.path()), steps(dir.path())), (1, vec![1, 2, 3]));
}
