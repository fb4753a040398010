//! Two programs over a socket: one serves the engine, the other trains on it.

use crate::command::{checkpoints, config, metrics, output, run, steps};
use crate::dashboard::get;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub const KEY: &str = "tml-of-this-test";

/// A served random model, which ends with the test.
pub struct Served {
    child: Child,
    pub url: String,
}

impl Served {
    pub fn start(data: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
        command.args([
            "serve",
            "--addr",
            "127.0.0.1:0",
            "--model",
            "tiny-random",
            "--api-key-env",
            "THE_KEY",
            "--data",
        ]);
        command.arg(data).env("THE_KEY", KEY).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = lines
            .by_ref()
            .map(Result::unwrap)
            .find_map(|line| line.strip_prefix("address").map(|rest| rest.trim().to_owned()));
        // A process that prints to a closed pipe may end, so the rest is read too.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url: url.unwrap() }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn a_run_trains_on_a_server_and_resumes_there() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(&dir.path().join("data"));
    let set = format!("tinker.base_url={}", served.url);
    let folder = dir.path().join("run");
    let train = |steps: &str, key: Option<&str>| {
        let mut command = run(&config("ci_test.toml"), &folder, &["--set", &set, "--max-steps", steps]);
        output(command.envs(key.map(|key| ("TINKER_API_KEY", key))))
    };
    let (status, _, stderr) = train("2", Some("tml-a-wrong-one"));
    assert_eq!(status, Some(5), "{stderr}");
    assert!(
        stderr.contains("denied") && stderr.contains("TINKER_API_KEY") && !stderr.contains("tml-a-wrong-one"),
        "{stderr}"
    );
    let (status, stdout, stderr) = train("2", Some(KEY));
    assert_eq!(status, Some(0), "{stdout}{stderr}");
    assert_eq!(steps(&folder), [1, 2]);
    let (status, stdout, stderr) = train("3", Some(KEY));
    assert_eq!(status, Some(0), "{stdout}{stderr}");
    assert_eq!(steps(&folder), [1, 2, 3]);
    assert!(metrics(&folder).iter().all(|row| row["optim/lr"] > 0.0));
    let last = checkpoints(&folder).pop().unwrap();
    assert!(last["state_path"].as_str().unwrap().starts_with("tinker://"), "{last}");
    for file in std::fs::read_dir(&folder).unwrap().map(Result::unwrap).filter(|f| f.path().is_file()) {
        let bytes = std::fs::read(file.path()).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains(KEY), "{:?} holds the key", file.path());
    }
}

/// However a run ends, it can be resumed from its newest checkpoint at any time.
#[test]
fn a_checkpoint_expires_only_once_there_is_a_newer_one() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(&dir.path().join("data"));
    let url = format!("tinker.base_url={}", served.url);
    let folder = dir.path().join("run");
    let train = |steps: &str| {
        let sets = [&url, "trainer.state_ttl=\"2h\"", "metrics.addr=\"off\""];
        let mut command = run(&config("ci_test.toml"), &folder, &["--max-steps", steps]);
        for set in sets {
            command.args(["--set", set]);
        }
        let (status, stdout, stderr) = output(command.env("TINKER_API_KEY", KEY));
        assert_eq!(status, Some(0), "{stdout}{stderr}");
    };
    let expire = || -> Vec<bool> {
        let addr = served.url.trim_start_matches("http://");
        let key = format!("X-API-Key: {KEY}");
        let expires = |line: &serde_json::Value| {
            let path = line["state_path"].as_str().unwrap();
            let run = path.strip_prefix("tinker://").unwrap().split('/').next().unwrap();
            let asked = get(addr, &format!("/api/v1/training_runs/{run}/checkpoints"), &[&key]).json();
            let all = asked["checkpoints"].as_array().unwrap();
            let found = all.iter().find(|checkpoint| checkpoint["tinker_path"] == path);
            found.unwrap_or_else(|| panic!("{path} is not in {asked}"))["expires_at"].is_string()
        };
        checkpoints(&folder).iter().map(expires).collect()
    };

    // Saved every two steps: the end of these four has no checkpoint of its own.
    train("4");
    assert_eq!(expire(), [true, false]);
    train("5");
    assert_eq!(expire(), [true, true, false]);
}
