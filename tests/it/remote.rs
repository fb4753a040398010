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
    assert_eq!(status, Some(3), "{stderr}");
    assert!(stderr.contains("denied") && !stderr.contains("tml-a-wrong-one"), "{stderr}");
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

#[test]
fn states_have_an_end_but_those_of_the_runs_ends() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(&dir.path().join("data"));
    let set = format!("tinker.base_url={}", served.url);
    let folder = dir.path().join("run");
    let extra = [
        "--set",
        &set,
        "--max-steps",
        "3",
        "--set",
        "trainer.state_ttl=\"2h\"",
        "--set",
        "metrics.addr=\"off\"",
    ];
    let (status, stdout, stderr) =
        output(run(&config("ci_test.toml"), &folder, &extra).env("TINKER_API_KEY", KEY));
    assert_eq!(status, Some(0), "{stdout}{stderr}");
    // Saved after step 2, and at the end.
    let paths: Vec<String> =
        checkpoints(&folder).iter().map(|line| line["state_path"].as_str().unwrap().to_owned()).collect();
    let run = paths[0].strip_prefix("tinker://").unwrap().split('/').next().unwrap();
    let addr = served.url.trim_start_matches("http://");
    let asked =
        get(addr, &format!("/api/v1/training_runs/{run}/checkpoints"), &[&format!("X-API-Key: {KEY}")])
            .json();
    let end = |path: &str| {
        let all = asked["checkpoints"].as_array().unwrap();
        let found = all.iter().find(|checkpoint| checkpoint["tinker_path"] == path);
        found.unwrap_or_else(|| panic!("{path} is not in {asked}"))["expires_at"].clone()
    };
    assert_eq!(paths.len(), 2);
    assert!(end(&paths[0]).is_string() && end(&paths[1]).is_null(), "{asked}");
}
