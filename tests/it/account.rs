//! Runs on a server that denies the account requests: no credit, no permission, keys that run out.

use crate::command::{checkpoints, config, output, run, steps};
use crate::gate::{Gate, Refusal};
use crate::remote::{KEY, Served};
use std::path::Path;

const STEPS: [u64; 6] = [1, 2, 3, 4, 5, 6];

fn train(gate: &Gate, folder: &Path, weights: &str) -> (Option<i32>, String, String) {
    let url = format!("tinker.base_url={}", gate.url);
    let weights_set = format!("trainer.weights={weights}");
    let extra = ["--max-steps", "6", "--set", &url, "--set", "metrics.addr=\"off\"", "--set", &weights_set];
    let mut command = run(&config("ci_test.toml"), folder, &extra);
    if weights == "inflight" {
        // Nothing needs a version as it was, and no checkpoint is due, so only the publication itself is denied.
        command.args(["--set", "envs=[{ id = \"plain_letters\" }]", "--set", "trainer.save_every=0"]);
    }
    output(command.env("TINKER_API_KEY", KEY))
}

#[test]
fn a_denied_account_ends_the_run_with_what_it_has_and_a_resume_completes_it() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(&dir.path().join("data"));
    let gate = Gate::start(&served.url);
    let paid = "402 Payment Required";
    let all = &["asample", "forward_backward", "optim_step", "save_weights_for_sampler", "save_weights"];
    for (n, (weights, status, paths, saved, advice)) in [
        ("snapshot", paid, &["asample"][..], true, "add credit"),
        ("snapshot", paid, &["forward_backward"], true, "add credit"),
        ("snapshot", paid, &["optim_step"], true, "add credit"),
        ("snapshot", paid, &["save_weights_for_sampler"], true, "add credit"),
        ("inflight", paid, &["save_weights_for_sampler"], true, "add credit"),
        ("snapshot", paid, all, false, "add credit"),
        ("snapshot", "403 Forbidden", &["asample"], true, "TINKER_PROJECT_ID"),
        ("snapshot", "401 Unauthorized", all, false, "TINKER_API_KEY"),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = dir.path().join(format!("run{n}"));
        gate.refuse(Some(Refusal { status, paths, after_passes: 3, forwarded: false }));
        let (code, stdout, stderr) = train(&gate, &folder, weights);
        assert_eq!(code, Some(5), "{weights} {paths:?} {stdout}{stderr}");
        assert!(stderr.contains("ask the accountant") && stderr.contains(advice), "{stderr}");
        assert!(!format!("{stdout}{stderr}").contains(KEY));
        // Requests that were under way are answered so, too; none is sent again.
        assert!(gate.refused() <= 40, "{} were denied", gate.refused());
        let last = checkpoints(&folder).pop().unwrap();
        let done = steps(&folder).pop().unwrap();
        // Groups that were ready are trained where the service still does that.
        assert!((2..6).contains(&done), "{done} steps");
        match saved {
            true => assert_eq!(last["step"].as_u64(), Some(done), "{last}"),
            // Saved every two steps.
            false => assert_eq!(last["step"].as_u64(), Some(2), "{last}"),
        }
        assert_eq!(last["groups"]["failed"].as_u64(), Some(0), "{last}");

        gate.refuse(None);
        let (code, stdout, stderr) = train(&gate, &folder, weights);
        assert_eq!(code, Some(0), "{stdout}{stderr}");
        assert_eq!(steps(&folder), STEPS);
        assert_eq!(checkpoints(&folder).pop().unwrap()["groups"]["failed"].as_u64(), Some(0));
    }
}

#[test]
fn the_key_of_a_command_and_the_project_reach_the_server_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(&dir.path().join("data"));
    let gate = Gate::start(&served.url);
    let url = format!("tinker.base_url={}", gate.url);
    let train = |folder: &str, command: &str| {
        let extra = ["--max-steps", "1", "--set", &url, "--set", "metrics.addr=\"off\""];
        let mut command_line = run(&config("ci_test.toml"), &dir.path().join(folder), &extra);
        command_line.env("TINKER_CREDENTIAL_CMD", command).env("TINKER_PROJECT_ID", "proj-of-this-test");
        output(command_line.env("MINDS_LOG", "debug"))
    };
    // The first key is wrong and is refused; the command runs again for another one.
    let count = dir.path().join("count");
    let count = count.display();
    let command =
        format!("echo x >> '{count}'; test $(wc -l < '{count}') = 1 && echo tml-stale || echo {KEY}");
    let (code, stdout, stderr) = train("fine", &command);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(gate.session().contains(r#""project_id":"proj-of-this-test""#));
    assert!(!format!("{stdout}{stderr}").contains(KEY));
    let folder = dir.path().join("fine");
    for file in std::fs::read_dir(&folder).unwrap().map(Result::unwrap).filter(|f| f.path().is_file()) {
        let bytes = std::fs::read(file.path()).unwrap();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains(KEY) && !text.contains("wc -l"), "{:?} holds a secret", file.path());
    }

    let (code, _, stderr) = train("empty", "true");
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains("TINKER_CREDENTIAL_CMD printed no key"), "{stderr}");
}
