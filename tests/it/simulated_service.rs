//! `serve --simulated`: a run against a scripted service, measured by that service.

use crate::command::{Running, config, output, run, steps};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn serve(file: &Path, extra: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    command.args(["serve", "--addr", "127.0.0.1:0", "--json", "--simulated"]).arg(file).args(extra);
    command
}

/// Trains six steps of two groups of four rollouts, with four groups under way, on a service of this file. Returns the
/// service's summary.
fn trained(dir: &Path, text: &str, extra: &[&str], changed: &[&str]) -> Value {
    let file = dir.join("service.toml");
    std::fs::write(&file, text).unwrap();
    let mut served = Running::start(&mut serve(&file, extra));
    let url = served.wait_for("address").split_whitespace().last().unwrap().to_owned();
    served.wait_for("simulated");
    let folder = dir.join("run");
    let set = format!("tinker.base_url={url}");
    let options = [&["--set", &set, "--max-steps", "6"][..], changed].concat();
    let mut command = run(&config("ci_test.toml"), &folder, &options);
    let (status, _, stderr) = output(command.env("TINKER_API_KEY", "tml-of-this-test"));
    assert_eq!(status, Some(0), "{stderr}");
    assert_eq!(steps(&folder), [1, 2, 3, 4, 5, 6]);
    served.signal("-INT");
    let summary = serde_json::from_str(&served.wait_for("{")).unwrap();
    assert_eq!(served.end(), Some(0));
    summary
}

const FAST: &str = "sample = { mean = 0.01, spread = \"exponential\" }\nforward_backward = 0.01\ndatum_s = 0\n\
                    optim_step = 0.01\nexport = 0.01\nsave = 0.01\nwarm_up_steps = 2\n";

#[test]
fn the_service_recognizes_what_a_run_trains() {
    let dir = tempfile::tempdir().unwrap();
    let events = dir.path().join("events.jsonl");
    let summary = trained(dir.path(), FAST, &["--events", events.to_str().unwrap()], &[]);
    let number = |key: &str| summary[key].as_f64().unwrap_or_else(|| panic!("{key} in {summary}"));
    for none in ["unknown_spans", "trained_again"] {
        assert_eq!(number(none), 0.0, "{none}");
    }
    // Groups whose rewards are equal are not sent to be trained.
    assert!((1.0..=48.0).contains(&number("trained")), "{summary}");
    assert!(number("sampled") >= 48.0 && number("steps") <= 6.0, "{summary}");
    assert_eq!(number("sampled"), number("trained") + number("not_trained"));
    assert_eq!(summary["faults"], serde_json::json!({}));

    let text = std::fs::read_to_string(events).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &'static str| events.iter().filter(move |event| event["event"] == name);
    let counted: u64 = of("sampled").map(|event| event["samples"].as_u64().unwrap()).sum();
    assert_eq!(counted as f64, number("sampled"));
    let spans: usize = of("trained").map(|event| event["samples"].as_array().unwrap().len()).sum();
    assert_eq!(spans as f64, number("trained"));
}

/// A request draws the four samples of a group.
#[test]
fn the_service_and_the_config_limit_the_requests_in_flight() {
    for (told, set, most) in [(2000, None, 16), (3, None, 12), (3, Some("tinker.max_sample_requests=2"), 8)] {
        let dir = tempfile::tempdir().unwrap();
        let changed = set.map(|set| vec!["--set", set]).unwrap_or_default();
        let file = format!("{FAST}max_sample_requests = {told}\n");
        let summary = trained(dir.path(), &file, &[], &changed);
        assert_eq!(summary["in_flight_max"], most, "{told} {set:?}");
    }
}

#[test]
fn a_run_loses_nothing_to_faults_of_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let faults = "seed = 2\nfailures = 0.05\ntoo_many_requests = 0.05\nunavailable = 0.03\ngone = 0.05\nresets = 0.03\n";
    let summary = trained(dir.path(), &format!("{FAST}{faults}"), &[], &[]);
    assert_eq!((&summary["unknown_spans"], &summary["trained_again"]), (&0.into(), &0.into()));
    let met = summary["faults"].as_object().unwrap();
    assert!(met.len() > 2, "{summary}");
}

#[test]
fn a_file_that_is_wrong_is_refused_by_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("service.toml");
    for (text, said) in [
        ("sampel = 1", "unknown field `sampel`"),
        ("sample = -1", "is -1 s; it must lie between"),
        ("alphabet = [40, 400]", "`alphabet` is [40, 400]"),
        ("hangs = 1", "`hangs` is 1; it must lie in [0, 1)"),
        ("cycle_s = -1", "`cycle_s` is -1"),
        ("tokens = 0", "`tokens` is 0"),
        ("outages = [{ at_s = 1, for_s = -1 }]", "`outages.for_s` is -1"),
        ("faults = [{ at_s = 1, for_s = 1, what = \"workers\" }]", "`faults` has what = \"workers\""),
    ] {
        std::fs::write(&file, text).unwrap();
        let (status, _, stderr) = output(&mut serve(&file, &[]));
        assert!(status == Some(2) && stderr.contains(said), "{text}: {stderr}");
        assert!(stderr.contains("service.toml"), "{stderr}");
    }
    let (status, _, stderr) = output(&mut serve(&dir.path().join("none.toml"), &[]));
    assert!(status == Some(2) && stderr.contains("none.toml"), "{stderr}");
}
