//! Runs that are stopped, kindly and otherwise.

use crate::command::{Running, checkpoints, config, metrics, output, run, steps};

const LONG: &[&str] = &["--max-steps", "40"];
/// Without checkpoints but the last.
const UNSAVED: &[&str] = &["--max-steps", "40", "--set", "trainer.save_every=0"];

#[test]
fn a_killed_run_leaves_a_readable_folder_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = Running::start(&mut run(&config("ci_test.toml"), dir.path(), LONG));
    running.wait_for("step 7");
    running.signal("-KILL");
    assert_eq!(running.end(), None, "killed");
    assert!(metrics(dir.path()).len() >= 7);
    let saved = checkpoints(dir.path()).pop().unwrap()["step"].as_u64().unwrap();
    assert!(saved >= 4);

    let (code, stdout, stderr) = output(&mut run(&config("ci_test.toml"), dir.path(), LONG));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains(&format!("goes on      after step {saved}")), "{stdout}");
    assert_eq!(steps(dir.path()), (1..=40).collect::<Vec<_>>());
}

#[test]
fn an_interrupted_run_saves_where_it_is_and_goes_on_from_there() {
    for signal in ["-INT", "-TERM"] {
        let dir = tempfile::tempdir().unwrap();
        let mut running = Running::start(&mut run(&config("ci_test.toml"), dir.path(), UNSAVED));
        running.wait_for("step 3");
        running.signal(signal);
        assert_eq!(running.end(), Some(0), "{signal}");
        let last = checkpoints(dir.path()).pop().unwrap();
        assert_eq!(
            last["step"].as_u64(),
            steps(dir.path()).last().copied(),
            "the last step is the saved one"
        );
        assert!(last["name"].as_str().unwrap().ends_with("-stop"), "{last}");

        assert_eq!(output(&mut run(&config("ci_test.toml"), dir.path(), UNSAVED)).0, Some(0));
        assert_eq!(steps(dir.path()), (1..=40).collect::<Vec<_>>());
    }
}

#[test]
fn every_item_is_trained_once_across_an_interruption() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = Running::start(&mut run(&config("ci_test.toml"), dir.path(), UNSAVED));
    running.wait_for("step 3");
    running.signal("-INT");
    assert_eq!(running.end(), Some(0));
    assert_eq!(output(&mut run(&config("ci_test.toml"), dir.path(), UNSAVED)).0, Some(0));
    let mut groups = Vec::new();
    for step in 1..=40 {
        let file = dir.path().join(format!("rollouts/step_{step:06}.jsonl"));
        for line in std::fs::read_to_string(file).unwrap().lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            groups.push((row["group"].as_u64().unwrap(), row["member"].as_u64().unwrap()));
        }
    }
    groups.sort_unstable();
    let once: Vec<_> = (0..80).flat_map(|group| (0..4).map(move |member| (group, member))).collect();
    assert_eq!(groups, once, "40 steps of 2 groups of 4");
}
