//! `serve --simulated`: a run against a scripted service, measured by that service.

use crate::command::{Running, check, config, output, run, steps};
use serde_json::Value;
use std::fs::File;
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
    let (status, summary, stderr) = served(dir, text, extra, changed);
    assert_eq!(status, Some(0), "{stderr}");
    summary
}

/// The same with the service's exit code, summary and log.
fn served(dir: &Path, text: &str, extra: &[&str], changed: &[&str]) -> (Option<i32>, Value, String) {
    let file = dir.join("service.toml");
    std::fs::write(&file, text).unwrap();
    let log = dir.join("service.log");
    let mut served = Running::start_with_log(&mut serve(&file, extra), File::create(&log).unwrap());
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
    (served.end(), summary, std::fs::read_to_string(log).unwrap())
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

/// Staleness is that of the oldest weights of a sample, whose tokens follow the weights while it is drawn.
#[test]
fn tokens_of_in_flight_weights_are_fresher_than_their_samples() {
    let dir = tempfile::tempdir().unwrap();
    let events = dir.path().join("events.jsonl");
    let slow = FAST.replace("mean = 0.01", "mean = 0.2");
    let options = ["--set", "trainer.weights=inflight", "--set", "trainer.async_off_policy_steps=2"];
    let summary = trained(dir.path(), &slow, &["--events", events.to_str().unwrap()], &options);
    let number = |key: &str| summary[key].as_f64().unwrap_or_else(|| panic!("{key} in {summary}"));
    let tokens = number("staleness_token_mean");
    assert!(0.0 < tokens && tokens < number("staleness_mean"), "{summary}");

    // The events tell the same: of each sample its number, its tokens, its staleness and that of its tokens in total.
    let [mut stale, mut all] = [0; 2];
    for line in std::fs::read_to_string(events).unwrap().lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        for sample in event["samples"].as_array().into_iter().flatten() {
            let [tokens, staleness, of_tokens] = [1, 2, 3].map(|at| sample[at].as_u64().unwrap());
            assert!(of_tokens <= tokens * staleness, "{event}");
            stale += of_tokens;
            all += tokens;
        }
    }
    assert!((tokens - stale as f64 / all as f64).abs() < 1e-9);
}

#[test]
fn samples_without_a_logprob_are_counted_as_a_fault() {
    let dir = tempfile::tempdir().unwrap();
    let events = dir.path().join("events.jsonl");
    let file = format!("{FAST}not_finite = 0.1\n");
    let summary = trained(dir.path(), &file, &["--events", events.to_str().unwrap()], &[]);
    let counted = summary["faults"]["not_finite"].as_u64().unwrap();
    let text = std::fs::read_to_string(events).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let bad = events.filter(|event| event["event"] == "not_finite");
    assert_eq!(bad.map(|event| event["samples"].as_u64().unwrap()).sum::<u64>(), counted);
    assert!(counted > 0 && summary["unknown_spans"] == 0, "{summary}");
}

#[test]
fn events_that_cannot_be_written_are_reported_and_change_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (status, summary, stderr) = served(dir.path(), FAST, &["--events", "/dev/full"], &[]);
    let error = "failed to write /dev/full: No space left on device (os error 28); events are missing";
    assert_eq!((status, summary["events_error"].as_str()), (Some(1), Some(error)));
    // When it happens, and as what the process ends with.
    assert_eq!(stderr.matches(error).count(), 2, "{stderr}");
    assert!(summary["trained"].as_u64().unwrap() > 0, "{summary}");

    let missing = dir.path().join("none/events.jsonl");
    let (status, _, stderr) =
        output(&mut serve(&dir.path().join("service.toml"), &["--events", missing.to_str().unwrap()]));
    assert!(status == Some(2) && stderr.contains("none/events.jsonl: No such file"), "{stderr}");
}

/// Starts the service of a file, and gives its address.
fn started(file: &Path, extra: &[&str]) -> (Running, String) {
    let mut served = Running::start(&mut serve(file, extra));
    let url = served.wait_for("address").split_whitespace().last().unwrap().to_owned();
    (served, url)
}

/// A client of the service at an address.
fn client(url: &str, folder: &Path, steps: &str) -> Command {
    let set = format!("tinker.base_url={url}");
    let mut command = run(&config("ci_test.toml"), folder, &["--set", &set, "--max-steps", steps]);
    command.env("TINKER_API_KEY", "tml-of-this-test");
    command
}

#[test]
fn clients_at_once_do_not_disturb_each_other_even_if_one_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("service.toml");
    std::fs::write(&file, FAST).unwrap();
    let (mut served, url) = started(&file, &[]);
    let folder = |name: &str| dir.path().join(name);
    // The one that is killed has requests in flight all the time.
    let mut killed = Running::start(&mut client(&url, &folder("killed"), "1000000"));
    killed.wait_for("step");
    let clients = ["one", "two"].map(|name| {
        let folder = folder(name);
        (Running::start(&mut client(&url, &folder, "6")), folder)
    });
    killed.wait_for("step");
    killed.child.kill().unwrap();
    assert_eq!(killed.end(), None);
    for (running, folder) in clients {
        assert_eq!(running.end(), Some(0));
        assert_eq!(steps(&folder), [1, 2, 3, 4, 5, 6]);
    }
    served.signal("-INT");
    let summary: Value = serde_json::from_str(&served.wait_for("{")).unwrap();
    assert_eq!(served.end(), Some(0));
    assert_eq!((&summary["unknown_spans"], &summary["trained_again"]), (&0.into(), &0.into()), "{summary}");
}

#[test]
fn the_requests_of_a_killed_client_are_counted_as_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("service.toml");
    std::fs::write(&file, format!("{FAST}hangs = 0.999999\n")).unwrap();
    let events = dir.path().join("events.jsonl");
    let (mut served, url) = started(&file, &["--events", events.to_str().unwrap()]);
    let mut killed = Running::start(&mut client(&url, &dir.path().join("run"), "6"));
    // Four groups are under way.
    let count = |event: &str| std::fs::read_to_string(&events).unwrap().matches(event).count();
    while count("\"hung\"") < 4 {
        std::thread::yield_now();
    }
    killed.child.kill().unwrap();
    assert_eq!(killed.end(), None);
    served.signal("-INT");
    let summary: Value = serde_json::from_str(&served.wait_for("{")).unwrap();
    assert_eq!(served.end(), Some(0));
    assert_eq!(summary["faults"], serde_json::json!({ "hung": 4, "cancelled": 4 }));
    assert_eq!((summary["in_flight_max"].as_u64(), count("\"cancelled\"")), (Some(16), 4));
}

/// At the second signal, or when the requests that are open have had their time.
#[test]
fn a_service_ends_at_one_signal_and_at_two() {
    for signals in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("service.toml");
        std::fs::write(&file, FAST).unwrap();
        let (mut served, _) = started(&file, &[]);
        served.wait_for("key");
        (0..signals).for_each(|_| served.signal("-INT"));
        let summary: Value = serde_json::from_str(&served.wait_for("{")).unwrap();
        assert_eq!(summary["steps"], 0);
        assert_eq!(served.end(), Some(0));
    }
}

#[test]
fn a_summary_that_cannot_be_written_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("service.toml");
    std::fs::write(&file, FAST).unwrap();
    let log = dir.path().join("log");
    let mut served = Running::start_with_log(&mut serve(&file, &[]), File::create(&log).unwrap());
    served.wait_for("key");
    served.close_output();
    served.signal("-INT");
    assert_eq!(served.child.wait().unwrap().code(), Some(1));
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("failed to write to standard output: Broken pipe"), "{said}");

    let mut simulate = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    simulate.arg("simulate").arg(config("ci_test.toml")).args(["--steps", "2"]);
    let mut list = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    list.args(["envs", "list"]);
    for mut command in [simulate, list] {
        command.stdout(File::options().write(true).open("/dev/full").unwrap());
        let said = command.output().unwrap();
        let stderr = String::from_utf8(said.stderr).unwrap();
        assert_eq!(said.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("failed to write to standard output: No space left on device"), "{stderr}");
    }
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
fn a_file_that_is_wrong_is_refused_by_line_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("service.toml");
    for (text, said) in [
        (
            "sampel = 1",
            "service.toml:1:1: there is no key `sampel` outside of tables; did you mean `sample`?",
        ),
        ("seed = 1\n\nsample = -1", "service.toml:3:10: `sample` is -1 s; it must lie between"),
        ("sample = 1e300", "`sample` is 1e300 s"),
        ("base_model = ' '", "service.toml:1:14: `base_model` is empty: name the model"),
        ("context = 0", "service.toml:1:11: `context` is 0; it must lie between 7"),
        ("context = 48", "`tokens` is 64; it must lie between 1 and `context`, which is 48"),
        ("vocab = 1", "`vocab` is 1; it must lie between 2 and 16777216"),
        ("vocab = 1000000000000", "`vocab` is 1000000000000; it must lie between"),
        ("alphabet = [126, 33]", "`alphabet` is [126, 33]; the first token must be smaller"),
        ("alphabet = [33, 33]", "`alphabet` is [33, 33]; the first token must be smaller"),
        ("alphabet = [40, 400]", "`alphabet` is [40, 400]; both tokens must be below `vocab`, which is 256"),
        (
            "vocab = 300\nalphabet = [33, 299]",
            "no stop token may lie between them, and 258 is one of tiny-random",
        ),
        ("tokens = 0", "`tokens` is 0"),
        ("hangs = 1", "`hangs` is 1; it must lie in [0, 1)"),
        ("hangs = nan", "`hangs` is NaN; it must lie in [0, 1)"),
        (
            "hangs = 0.6\nfailures = 0.7",
            ":2:12: `failures` is 0.7, together with `hangs` 1.300; they must be at most 1",
        ),
        ("resets = 0.6\ngone = 0.5", ":1:10: `resets` is 0.6, together with `unavailable` and"),
        ("cycle_s = -1", "`cycle_s` is -1"),
        ("max_sample_requests = 2000000", "`max_sample_requests` is 2000000; it must be at most 1048576"),
        ("warm_up_steps = 9223372036854775807", "`warm_up_steps` is 9223372036854775807; it must be at most"),
        ("[[outages]]\nat_s = 1\nfor_s = -1", "service.toml:3:9: `outages[0].for_s` is -1"),
        (
            "[[faults]]\nat_s = 1\nfor_s = 1\nwhat = 'foo'",
            ":4:8: `faults[0].what` is \"foo\"; it must be one of: away, slow\n",
        ),
        (
            "[[faults]]\nat_s = 1\nfor_s = 1\nwhat = 'workers'",
            "`faults[0].what` is \"workers\"; it must be one of: away, slow\n",
        ),
        ("[[faults]]\nat_s = 1\nfor_s = 1\nwhat = 'slow'", "`faults[0]` needs a `factor`"),
        ("[[faults]]\nat_s = 1\nfor_s = 1\nwhat = 'slow'\nleft = 1", "there is no key `left` in [[faults]]"),
    ] {
        std::fs::write(&file, text).unwrap();
        let (status, _, stderr) = output(&mut serve(&file, &[]));
        assert!(status == Some(2) && stderr.contains(said), "{text}: {stderr}");
        assert!(stderr.contains("service.toml"), "{stderr}");
    }
    let (status, _, stderr) = output(&mut serve(&dir.path().join("none.toml"), &[]));
    assert!(status == Some(2) && stderr.contains("none.toml"), "{stderr}");
}

/// What has no end or blocks is not read, for this file and for every other config.
#[test]
fn only_a_regular_file_of_bounded_size_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
    std::fs::File::create(path("large")).unwrap().set_len(1 << 30).unwrap();
    for (file, said) in [
        (Path::new("/dev/zero").to_owned(), "it is not a regular file"),
        (path("pipe"), "it is not a regular file"),
        (dir.path().to_owned(), "it is a folder"),
        (path("large"), "it is longer than 16 MiB"),
    ] {
        let mut completion = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
        completion
            .args(["envs", "score", "plain_letters", "--index", "0", "--completion"])
            .arg(format!("@{}", file.display()));
        for mut command in [serve(&file, &[]), run(&file, &path("run"), &[]), check(&file, &[]), completion] {
            let (status, _, stderr) = output(&mut command);
            assert!(status == Some(2) && stderr.contains(said), "{command:?}: {stderr}");
            assert!(stderr.contains(&file.display().to_string()), "{stderr}");
        }
    }
}
