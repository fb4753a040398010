//! Runs on a server that fails: what is saved, how the run ends, and what resumes it.

use crate::command::{checkpoints, config, output, run, steps};
use crate::gate::{Gate, Refusal};
use crate::remote::{KEY, Served};
use std::path::Path;
use std::process::Command;

const STEPS: [u64; 6] = [1, 2, 3, 4, 5, 6];

fn train(gate: &Gate, folder: &Path, weights: &str) -> Command {
    let url = format!("tinker.base_url={}", gate.url);
    let weights = format!("trainer.weights={weights}");
    let mut command = run(&config("ci_test.toml"), folder, &["--max-steps", "6"]);
    for set in [&url, &weights, "tinker.outage=\"1s\"", "metrics.addr=\"off\""] {
        command.args(["--set", set]);
    }
    command.env("TINKER_API_KEY", KEY);
    command
}

#[test]
fn a_run_whose_weights_cannot_be_published_saves_them_and_ends_as_unavailable() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(&dir.path().join("data"));
    let gate = Gate::start(&served.url);
    let paths = &["save_weights_for_sampler"][..];
    for weights in ["snapshot", "inflight"] {
        for (status, forwarded) in
            [("503 Service Unavailable", false), ("400 Bad Request", true), ("404 Not Found", true)]
        {
            let folder = dir.path().join(format!("{weights}-{}", &status[..3]));
            gate.refuse(Some(Refusal { status, paths, after_passes: 3, forwarded }));
            let (code, stdout, stderr) = output(&mut train(&gate, &folder, weights));
            assert_eq!(code, Some(3), "{weights} {status} {stdout}{stderr}");
            let done = steps(&folder).pop().unwrap();
            let last = checkpoints(&folder).pop().unwrap();
            assert_eq!(last["step"].as_u64(), Some(done), "{weights} {status} {stdout}{stderr}");
            assert!(stderr.contains("ask the accountant"), "{stderr}");
            assert!(stderr.contains(&format!("resumes it after step {done}")), "{stderr}");

            gate.refuse(None);
            let (code, stdout, stderr) = output(&mut train(&gate, &folder, weights));
            assert_eq!(code, Some(0), "{stdout}{stderr}");
            assert_eq!(steps(&folder), STEPS);
            assert_eq!(checkpoints(&folder).pop().unwrap()["groups"]["failed"].as_u64(), Some(0));
        }
    }
}

#[test]
fn a_server_that_takes_in_flight_weights_for_snapshots_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(&dir.path().join("data"));
    let gate = Gate::start(&served.url);
    for hidden in [false, true] {
        if hidden {
            gate.hide_kinds();
        }
        let (code, stdout, stderr) =
            output(&mut train(&gate, &dir.path().join(hidden.to_string()), "inflight"));
        assert_eq!(code, Some(0), "{stdout}{stderr}");
        let warnings = stderr.matches("does not replace in-flight weights").count();
        assert_eq!(warnings, usize::from(hidden), "{stderr}");
    }
}

/// The new server has the saved weights and knows none of the sessions.
#[test]
fn a_run_whose_server_was_restarted_says_that_the_same_command_resumes_it() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let served = Served::start(&data);
    let gate = Gate::start(&served.url);
    let folder = dir.path().join("run");
    // The state of step 2 is saved before the fifth pass is submitted.
    let reached = gate.after_passes(5);
    let running = std::thread::scope(|scope| {
        let running =
            scope.spawn(|| output(train(&gate, &folder, "snapshot").args(["--set", "tinker.outage=\"1h\""])));
        reached.recv().unwrap();
        drop(served);
        let again = Served::start(&data);
        gate.forward_to(&again.url);
        (running.join().unwrap(), again)
    });
    let ((code, stdout, stderr), _again) = running;
    assert_eq!(code, Some(3), "{stdout}{stderr}");
    let saved = checkpoints(&folder).pop().unwrap()["step"].as_u64().unwrap();
    assert!(stderr.contains(&format!("the same command with --output-dir {}", folder.display())), "{stderr}");
    assert!(stderr.contains(&format!("resumes it after step {saved}")), "{stderr}");

    let (code, stdout, stderr) = output(&mut train(&gate, &folder, "snapshot"));
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert_eq!(steps(&folder), STEPS);
}
