//! Runs that are stopped, kindly and otherwise.

use crate::command::{Running, adapter, checkpoints, config, metrics, output, run, steps};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

const LONG: &[&str] = &["--max-steps", "40"];
/// Without checkpoints but the last.
const UNSAVED: &[&str] = &["--max-steps", "40", "--set", "trainer.save_every=0"];

/// Group and member of every rollout that was trained in the first `steps` steps.
fn trained(dir: &Path, steps: u64) -> Vec<(u64, u64)> {
    let mut rollouts = Vec::new();
    for step in 1..=steps {
        let file = dir.join(format!("rollouts/step_{step:06}.jsonl"));
        for line in std::fs::read_to_string(file).unwrap().lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            rollouts.push((row["group"].as_u64().unwrap(), row["member"].as_u64().unwrap()));
        }
    }
    rollouts
}

#[test]
fn a_killed_run_leaves_a_readable_folder_and_resumes() {
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
    assert!(stdout.contains(&format!("resumed      at step {saved}")), "{stdout}");
    assert_eq!(steps(dir.path()), (1..=40).collect::<Vec<_>>());
}

#[test]
fn an_interrupted_run_saves_and_resumes_from_there() {
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

/// Every write of the log fails here, as it does when the reader of a pipe has exited.
#[test]
fn a_run_continues_when_its_log_cannot_be_written() {
    for format in ["text", "json"] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = run(&config("ci_test.toml"), dir.path(), &["--max-steps", "20"]);
        command.args(["--log-format", format]).stdout(Stdio::null());
        let status = command.stderr(File::options().write(true).open("/dev/full").unwrap()).status().unwrap();
        assert_eq!(status.code(), Some(0), "{format}");
        assert_eq!(steps(dir.path()), (1..=20).collect::<Vec<_>>());
    }
}

/// Starts a program on a terminal of its own, closes that after its third step, and prints the program's exit code.
const CLOSED: &str = r#"
import os, pty, sys
child, terminal = pty.fork()
if child == 0:
    os.execv(sys.argv[1], sys.argv[1:])
seen = b""
while b"step 3 " not in seen:
    seen += os.read(terminal, 65536)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"#;

#[test]
fn a_run_saves_when_its_terminal_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let command = run(&config("ci_test.toml"), dir.path(), UNSAVED);
    let mut python = Command::new("python3");
    python.args(["-c", CLOSED]).arg(command.get_program()).args(command.get_args());
    python.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let (code, said, stderr) = output(&mut python);
    assert_eq!((code, said.trim()), (Some(0), "0"), "{stderr}");
    let last = checkpoints(dir.path()).pop().unwrap();
    assert!(last["name"].as_str().unwrap().ends_with("-stop"), "{last}");
}

#[test]
fn every_item_is_trained_once_across_an_interruption() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = Running::start(&mut run(&config("ci_test.toml"), dir.path(), UNSAVED));
    running.wait_for("step 3");
    running.signal("-INT");
    assert_eq!(running.end(), Some(0));
    assert_eq!(output(&mut run(&config("ci_test.toml"), dir.path(), UNSAVED)).0, Some(0));
    let mut groups = trained(dir.path(), 40);
    groups.sort_unstable();
    let once: Vec<_> = (0..80).flat_map(|group| (0..4).map(move |member| (group, member))).collect();
    assert_eq!(groups, once, "40 steps of 2 groups of 4");
}

#[test]
fn a_run_killed_twenty_times_ends_with_the_weights_of_one_that_was_not() {
    const SYNCHRONOUS: &[&str] =
        &["--max-steps", "60", "--set", "trainer.async_off_policy_steps=0", "--set", "trainer.save_every=3"];
    let [alone, killed] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let start = |dir: &tempfile::TempDir| run(&config("ci_test.toml"), dir.path(), SYNCHRONOUS);
    assert_eq!(output(&mut start(&alone)).0, Some(0));
    for kill in 0..20_usize {
        let mut running = Running::start(&mut start(&killed));
        // Moments of every kind: while it starts, at its first steps, and after a save.
        let line = ["model", "run folder", "step", "saved"][kill % 4];
        running.wait_for(line);
        running.signal("-KILL");
        assert_eq!(running.end(), None, "kill {kill} found it running");
    }
    assert_eq!(output(&mut start(&killed)).0, Some(0));
    assert_eq!(steps(killed.path()), (1..=60).collect::<Vec<_>>());
    let mut groups = trained(killed.path(), 60);
    let count = groups.len();
    groups.sort_unstable();
    groups.dedup();
    assert_eq!(groups.len(), count, "no rollout was trained twice");
    let last = |dir: &tempfile::TempDir| {
        let path = checkpoints(dir.path()).pop().unwrap()["state_path"].as_str().unwrap().to_owned();
        adapter(dir.path(), &path)
    };
    let expected = last(&alone);
    let found = last(&killed);
    assert!(!expected.is_empty());
    assert_eq!(expected, found, "names and bytes of all tensors");
}

#[test]
fn a_damaged_state_is_passed_over_for_the_one_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let start = |steps: &str| run(&config("ci_test.toml"), dir.path(), &["--max-steps", steps]);
    assert_eq!(output(&mut start("4")).0, Some(0));
    let last = checkpoints(dir.path()).pop().unwrap()["state_path"].as_str().unwrap().to_owned();
    let state = dir.path().join("weights").join(last.strip_prefix("tinker://").unwrap());
    std::fs::write(state.join("optimizer.safetensors"), b"half of it").unwrap();
    let (code, stdout, stderr) = output(&mut start("6"));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stdout.contains("resumed      at step 2") && stderr.contains("failed to load a checkpoint"),
        "{stderr}"
    );
    assert_eq!(steps(dir.path()), (1..=6).collect::<Vec<_>>());
    assert!(dir.path().join("checkpoints.past_000002.jsonl").is_file());
    assert!(dir.path().join("rollouts/step_000003.past.jsonl").is_file());
}

#[test]
fn a_checkpoint_that_no_run_can_have_written_is_refused_by_its_line_and_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let start = |steps: &str| run(&config("ci_test.toml"), dir.path(), &["--max-steps", steps]);
    assert_eq!(output(&mut start("4")).0, Some(0));
    let file = dir.path().join("checkpoints.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    // Two groups a step; the first line is that of step 2.
    let (second, far) = (r#""below":8"#, r#""below":18446744073709551615"#);
    assert!(text.lines().nth(1).unwrap().contains(second), "{text}");
    std::fs::write(&file, text.replace(second, far)).unwrap();
    let (code, _, stderr) = output(&mut start("6"));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("line 2 of ") && stderr.contains("checkpoints.jsonl is damaged"), "{stderr}");
    assert!(stderr.contains("`settled.below`: 18446744073709551615 is more than any run counts"), "{stderr}");
    std::fs::write(&file, text).unwrap();
    assert_eq!(output(&mut start("6")).0, Some(0), "mended, it goes on");
    assert_eq!(steps(dir.path()), (1..=6).collect::<Vec<_>>());
}

#[test]
fn a_deadline_ends_a_run_as_an_interruption_does() {
    let dir = tempfile::tempdir().unwrap();
    let extra = ["--max-steps", "100000", "--deadline", "1s", "--set", "trainer.save_every=0"];
    let (code, stdout, stderr) = output(&mut run(&config("ci_test.toml"), dir.path(), &extra));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("deadline reached"), "{stdout}");
    assert!(checkpoints(dir.path()).pop().unwrap()["name"].as_str().unwrap().ends_with("-stop"));
    let (code, _, stderr) =
        output(&mut run(&config("ci_test.toml"), dir.path(), &["--max-steps", "9", "--resume", "never"]));
    assert!(code == Some(2) && stderr.contains("holds a run already"), "{stderr}");
}
