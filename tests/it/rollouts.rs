//! Which rollouts a run writes, and when.

use crate::command::{check, checkpoints, config, output, run, steps};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Every step has the same groups in each run: it is sampled by the newest weights alone.
const SYNCHRONOUS: &[&str] =
    &["--set", "trainer.async_off_policy_steps=0", "--set", "trainer.groups_per_batch=6"];

fn written(dir: &Path, step: u64) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join(format!("rollouts/step_{step:06}.jsonl"))).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn groups(rollouts: &[Value]) -> BTreeSet<(String, u64)> {
    let group = |row: &Value| (row["environment"].as_str().unwrap().into(), row["group"].as_u64().unwrap());
    rollouts.iter().map(group).collect()
}

fn page(dir: &Path) -> String {
    let mut report = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    let (code, page, stderr) = output(report.arg("report").arg(dir).args(["-o", "-"]));
    assert_eq!(code, Some(0), "{stderr}");
    page
}

#[test]
fn a_sample_is_one_group_of_each_environment_and_off_is_none() {
    let [all, sample, off] = ["all", "sample", "off"].map(|which| {
        let dir = tempfile::tempdir().unwrap();
        let set = format!("log.rollouts={which}");
        let extra = [SYNCHRONOUS, &["--set", &set, "--max-steps", "3"]].concat();
        let (code, _, stderr) = output(&mut run(&config("ci_test.toml"), dir.path(), &extra));
        assert_eq!(code, Some(0), "{stderr}");
        let (_, checked, _) =
            output(&mut check(&config("ci_test.toml"), &["--json", "--offline", "--set", &set]));
        assert_eq!(serde_json::from_str::<Value>(&checked).unwrap()["rollouts"], which);
        dir
    });
    for step in 1..=3 {
        let all = written(all.path(), step);
        let sample = written(sample.path(), step);
        assert_eq!(groups(&all).len(), 6, "step {step}");
        let environments = |rows| groups(rows).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let unique: BTreeSet<_> = environments(&all).into_iter().collect();
        assert_eq!(environments(&sample), unique.into_iter().collect::<Vec<_>>(), "one of each, step {step}");
        assert!(sample.iter().all(|row| all.contains(row)), "step {step}");
        assert_eq!(sample.len(), 4 * groups(&sample).len(), "whole groups, step {step}");
    }
    assert_eq!(std::fs::read_dir(off.path().join("rollouts")).unwrap().count(), 0);
    assert!(page(all.path()).contains("Chosen among the rollouts of all 3 steps"));
    assert!(page(sample.path()).contains("Chosen among one group of each environment in all 3 steps"));
    assert!(page(off.path()).contains("None recorded: the config turns them off"));

    // The run may be resumed with another choice.
    let more = [SYNCHRONOUS, &["--set", "log.rollouts=all", "--max-steps", "4"]].concat();
    assert_eq!(output(&mut run(&config("ci_test.toml"), off.path(), &more)).0, Some(0));
    assert_eq!(groups(&written(off.path(), 4)).len(), 6);
}

#[test]
fn a_run_whose_rollouts_cannot_be_written_fails_before_it_saves_them() {
    let dir = tempfile::tempdir().unwrap();
    let start = |steps: &str| {
        let set = ["--set", "trainer.save_every=0", "--max-steps", steps];
        output(&mut run(&config("ci_test.toml"), dir.path(), &set))
    };
    assert_eq!(start("1").0, Some(0));
    let blocked = dir.path().join("rollouts/step_000003.new");
    std::fs::create_dir(&blocked).unwrap();
    let (code, _, stderr) = start("3");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("failed to keep the rollouts of step 3"), "{stderr}");
    assert_eq!(checkpoints(dir.path()).last().unwrap()["step"], 1, "no checkpoint without its rollouts");

    std::fs::remove_dir(&blocked).unwrap();
    assert_eq!(start("3").0, Some(0));
    assert_eq!(steps(dir.path()), [1, 2, 3]);
    assert_eq!(written(dir.path(), 3).len(), 8);
}
