//! Runs whose rewards `minds-actors worker` processes compute, over a NATS server that the test starts.

use crate::command::{checkpoints, metrics, output, run};
use crate::python::BORROWS;
use crate::venv;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A NATS server with JetStream that is killed at the end of the test.
struct TestBroker {
    dir: TempDir,
    port: u16,
    server: Child,
}

impl TestBroker {
    /// Starts a server. `users` are entries of the `users` list in its configuration; empty for no authorization.
    fn start(users: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let authorization =
            if users.is_empty() { String::new() } else { format!("authorization {{ users: [{users}] }}") };
        let store = dir.path().display();
        let config =
            format!("listen: 127.0.0.1:{port}\njetstream {{ store_dir: \"{store}\" }}\n{authorization}\n");
        fs::write(dir.path().join("nats.conf"), config).unwrap();
        let server = Self::launch(dir.path());
        let broker = Self { dir, port, server };
        broker.ready();
        broker
    }

    fn launch(dir: &Path) -> Child {
        let mut command = Command::new("nats-server");
        command.arg("--config").arg(dir.join("nats.conf")).stdout(Stdio::null()).stderr(Stdio::null());
        command.env("RUN_PASSWORD", "run-password").env("WORKER_PASSWORD", "worker-password");
        command.spawn().expect("tests/run.sh installs nats-server")
    }

    fn ready(&self) {
        wait("the NATS server starts", || TcpStream::connect(("127.0.0.1", self.port)).is_ok());
    }

    fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills the server, like a crash, and restarts it with its data.
    fn crash(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
        self.server = Self::launch(self.dir.path());
        self.ready();
    }
}

impl Drop for TestBroker {
    fn drop(&mut self) {
        drop(self.server.kill());
        drop(self.server.wait());
    }
}

#[expect(clippy::disallowed_methods, reason = "processes are waited for in real time")]
fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(120), "not within 120 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    command.env_remove("NATS_URL").env("MINDS_LOG", "warn").env("NO_COLOR", "1");
    command
}

/// A worker process that is killed at the end of the test.
struct WorkerProcess(Child);

impl WorkerProcess {
    fn start(broker: &TestBroker, extra: &[&str]) -> Self {
        let mut command = program();
        command.args(["worker", "--nats", &broker.url()]).args(extra);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The native environments whose rewards workers compute, and a Python package. On-policy, so that a run depends on
/// its rewards alone.
const MIXTURE: &str = r#"
    [[envs]]
    id = "ghost_trace"
    [[envs]]
    id = "self_prediction"
    [[envs]]
    id = "gradient_prophet"
    [[envs]]
    id = "entropy_intuition"
    [[envs]]
    id = "PACKAGE"
    name = "package"
    [[envs]]
    id = "TRAINS_AN_ADAPTER"

    [trainer]
    rollouts_per_example = 2
    groups_per_batch = 12
    total_batches = 2
    async_off_policy_steps = 0
    training_rank = 2
    [trainer.args]
    max_new_tokens = 6
    [shadow]
    from = "base"
    [model]
    base_model = "tiny-random"
    renderer_name = "role_colon"
    [tinker]
    base_url = "embedded"
    [metrics]
    addr = "off"
"#;

fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    path
}

/// All rows of a run's rollout files, by step, group and member. Files that a resumed run has replaced
/// (`step_000007.past.jsonl`) do not count.
fn rollouts(dir: &Path) -> BTreeMap<(u64, u64, u64), serde_json::Value> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(dir.join("rollouts")).unwrap() {
        let path = entry.unwrap().path();
        if path.file_stem().unwrap().to_str().unwrap().contains(".past") {
            continue;
        }
        for line in fs::read_to_string(path).unwrap().lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            let number = |key: &str| row[key].as_u64().unwrap();
            let key = (number("step"), number("group"), number("member"));
            assert!(all.insert(key, row).is_none(), "{key:?} occurs twice");
        }
    }
    all
}

#[test]
fn a_run_with_workers_is_the_same_run_bit_for_bit() {
    let dir = TempDir::new().unwrap();
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("environments/python/example_classic");
    let trains = write(dir.path(), "trains.py", BORROWS);
    let mixture = MIXTURE.replace("PACKAGE", package.to_str().unwrap());
    let mixture = mixture.replace("TRAINS_AN_ADAPTER", trains.to_str().unwrap());
    let config = write(dir.path(), "mixture.toml", &mixture);
    let here = dir.path().join("here");
    let (code, out, err) = output(&mut run(&config, &here, &[]));
    assert_eq!(code, Some(0), "{out}\n{err}");

    let broker = TestBroker::start("");
    let _workers =
        [WorkerProcess::start(&broker, &[]), WorkerProcess::start(&broker, &["--concurrency", "3"])];
    let there = dir.path().join("there");
    let url = format!("nats.url={}", broker.url());
    let mut command = run(&config, &there, &["--set", "scorer.transport=nats", "--set", &url]);
    let (code, out, err) = output(&mut command);
    assert_eq!(code, Some(0), "{out}\n{err}");
    assert_eq!(rollouts(&here), rollouts(&there));
    assert_eq!(rollouts(&here).len(), 2 * 12 * 2);
    let environments: BTreeSet<String> =
        rollouts(&there).values().map(|row| row["environment"].as_str().unwrap().to_owned()).collect();
    assert_eq!(environments.len(), 6, "{environments:?}");
    // The broker has no dead letters, and the run folder does not contain the broker's address.
    let (code, out, _) = output(program().args(["dead-letters", "list", "--nats", &broker.url()]));
    assert_eq!((code, &*out), (Some(0), "there are no dead letters\n"));
    assert!(!fs::read_to_string(there.join("config.toml")).unwrap().contains("nats://"));
}

/// A package of the verifiers library, which samples its own turns: the run's engine answers its model calls.
#[test]
fn online_a_verifiers_package_earns_the_same_rewards_on_workers() {
    let dir = TempDir::new().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = root.join("configs/python_verifiers.toml");
    let python = format!("env.python={}", venv::verifiers().display());
    let on_policy = ["trainer.async_off_policy_steps=0", "trainer.total_batches=2"];
    let train = |name: &str, sets: &[&str]| {
        let folder = dir.path().join(name);
        let mut command = run(&config, &folder, &["--set", &python]);
        for set in on_policy.iter().chain(sets) {
            command.args(["--set", set]);
        }
        let (code, out, err) = output(command.current_dir(root));
        assert_eq!(code, Some(0), "{out}\n{err}");
        rollouts(&folder)
    };
    let here = train("here", &[]);
    let broker = TestBroker::start("");
    let _workers = [WorkerProcess::start(&broker, &[]), WorkerProcess::start(&broker, &[])];
    let there = train("there", &["scorer.transport=nats", &format!("nats.url={}", broker.url())]);
    assert_eq!(here.len(), 2 * 2 * 4);
    assert_eq!(here, there);
}

/// The five packages of the original trainer, each with its own config.
#[test]
#[ignore = "needs a checkout of the original: `just original CHECKOUT`"]
fn packages_of_the_original_earn_the_same_rewards_on_workers() {
    let dir = TempDir::new().unwrap();
    let python = format!("env.python={}", venv::verifiers_of_the_original().display());
    let broker = TestBroker::start("");
    let _workers = [WorkerProcess::start(&broker, &[]), WorkerProcess::start(&broker, &[])];
    let url = format!("nats.url={}", broker.url());
    let small = [
        &*python,
        "model.base_model=tiny-random",
        "tinker.base_url=embedded",
        "trainer.args.max_new_tokens=24",
        "trainer.async_off_policy_steps=0",
    ];
    for name in ["ghost", "self_pred", "entropy_intuition", "prophet", "gradient_intuition"] {
        let config = venv::original().join(format!("configs/train_{name}.toml"));
        let train = |place: &str, sets: &[&str]| {
            let folder = dir.path().join(format!("{name}-{place}"));
            let mut command = run(&config, &folder, &["--max-steps", "2"]);
            for set in small.iter().chain(sets) {
                command.args(["--set", set]);
            }
            let (code, out, err) = output(command.current_dir(venv::original()));
            assert_eq!(code, Some(0), "{name}: {out}\n{err}");
            rollouts(&folder)
        };
        let here = train("here", &[]);
        assert!(!here.is_empty(), "{name}");
        assert_eq!(here, train("there", &["scorer.transport=nats", &url]), "{name}");
    }
}

/// Many small groups whose rewards query logprobs.
const CROWD: &str = r#"
    [env]
    id = "ghost_trace"
    [trainer]
    rollouts_per_example = 2
    groups_per_batch = 20
    total_batches = 100
    async_off_policy_steps = 2
    save_every = 5
    training_rank = 1
    [trainer.args]
    max_new_tokens = 2
    [model]
    base_model = "tiny-random"
    renderer_name = "role_colon"
    [tinker]
    base_url = "embedded"
    [metrics]
    addr = "off"
    [log]
    tensorboard = false
    [scorer]
    transport = "nats"
    [nats]
    ack_wait_s = 1
    max_deliver = 1000
"#;

#[test]
fn through_kills_stops_and_crashes_each_group_is_trained_once() {
    let dir = TempDir::new().unwrap();
    let config = write(dir.path(), "crowd.toml", CROWD);
    let mut broker = TestBroker::start("");
    let folder = dir.path().join("run");
    let url = format!("nats.url={}", broker.url());
    let start = || {
        let mut command = run(&config, &folder, &["--set", &url]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let step = || if folder.join("metrics.json").exists() { metrics(&folder).len() } else { 0 };
    let mut workers: Vec<_> =
        (0..3).map(|_| WorkerProcess::start(&broker, &["--concurrency", "2"])).collect();
    let mut trainer = start();
    let reach = |steps: usize| wait("some steps are done", || step() >= steps);

    reach(5);
    workers[0].kill();
    workers[1].signal("-STOP"); // longer than ack_wait_s: its jobs are redelivered
    reach(15);
    workers[1].signal("-CONT");
    workers[0] = WorkerProcess::start(&broker, &["--concurrency", "2"]);
    broker.crash();
    let then = step();
    reach(then + 10);
    trainer.kill().unwrap();
    trainer.wait().unwrap();
    workers[2].signal("-TERM");
    assert_eq!(workers[2].0.wait().unwrap().code(), Some(0));
    trainer = start();
    reach(60);
    workers.iter_mut().for_each(WorkerProcess::kill);
    workers.push(WorkerProcess::start(&broker, &["--concurrency", "2"]));
    let ended = trainer.wait().unwrap();
    assert_eq!(ended.code(), Some(0));

    let last = checkpoints(&folder).pop().unwrap();
    let counts = &last["groups"];
    assert_eq!(counts["trained"], 2000, "{counts}");
    assert_eq!(counts["failed"], 0, "{counts}");
    let trained = rollouts(&folder);
    let groups: BTreeSet<u64> = trained.keys().map(|(_, group, _)| *group).collect();
    let members: BTreeSet<(u64, u64)> = trained.keys().map(|(_, group, member)| (*group, *member)).collect();
    assert_eq!(
        (groups.len(), members.len(), trained.len()),
        (2000, 4000, 4000),
        "each rollout is trained once"
    );
}

#[test]
fn users_with_the_least_permissions_are_enough_and_no_more() {
    // The entries of the printed list of users: that of the server has those of two runs.
    let users = |run: &str| {
        let args = ["nats", "check", "--permissions", run, "--env", "ghost_trace"];
        let (code, printed, err) = output(program().args(args));
        assert_eq!(code, Some(0), "{err}");
        let (_, list) = printed.split_once("authorization { users: [").unwrap();
        list.trim_end().strip_suffix("] }").unwrap().to_owned()
    };
    let broker = TestBroker::start(&(users("mine") + &users("theirs")));
    let dir = TempDir::new().unwrap();
    let config = write(dir.path(), "crowd.toml", CROWD);
    let worker = |user: &str, run: &str, password: &str| {
        let mut command = program();
        command.args(["worker", "--nats", &broker.url(), "--run", run]);
        command.env("NATS_USER", user).env("NATS_PASSWORD", password).env("MINDS_LOG", "info");
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    };
    // A wrong password, and a worker of another run.
    let (code, _, err) = output(&mut worker("mine-worker", "mine", "guessed"));
    assert_eq!(code, Some(3), "{err}");
    assert!(err.contains("does not accept the credentials") && !err.contains("guessed"), "{err}");
    let mut stranger = WorkerProcess(worker("theirs-worker", "mine", "worker-password").spawn().unwrap());
    let mut own = WorkerProcess(worker("mine-worker", "mine", "worker-password").spawn().unwrap());
    // The commands with the permissions of the run: its own user may use them, that of its workers may not.
    let ask = |user: &str, password: &str, args: &[&str]| {
        let mut command = program();
        command
            .args(args)
            .env("NATS_URL", broker.url())
            .env("NATS_USER", user)
            .env("NATS_PASSWORD", password);
        output(&mut command)
    };
    let (code, out, err) = ask("mine-run", "run-password", &["nats", "check", "--run", "mine"]);
    assert_eq!(code, Some(0), "{out}\n{err}");
    assert!(out.contains("a test job of the run mine was published and deleted"), "{out}");
    // A password in the address comes before one in a variable.
    let address = format!("nats://mine-run:run%2Dpassword@127.0.0.1:{}", broker.port);
    let list = ["dead-letters", "list", "--run", "mine", "--nats", &address];
    let (code, out, err) = ask("mine-run", "guessed", &list);
    assert_eq!((code, &*out), (Some(0), "there are no dead letters\n"), "{err}");
    let (code, _, err) = ask("mine-worker", "worker-password", &["nats", "check", "--run", "mine"]);
    assert_eq!(code, Some(3), "{err}");
    let (code, _, err) = ask("mine-run", "run-password", &["dead-letters", "list"]);
    assert_eq!(code, Some(3), "{err}");
    assert!(err.contains("`--run RUN`"), "{err}");
    let url = format!("nats.url={}", broker.url());
    let folder = dir.path().join("run");
    let sets = ["--set", &url, "--set", "nats.run=mine", "--set", "trainer.total_batches=3"];
    let mut command = run(&config, &folder, &sets);
    command.env("NATS_USER", "mine-run").env("NATS_PASSWORD", "run-password");
    let (code, out, err) = output(&mut command);
    assert_eq!(code, Some(0), "{out}\n{err}");
    stranger.kill();
    own.kill();
    let mut said = String::new();
    std::io::Read::read_to_string(stranger.0.stderr.as_mut().unwrap(), &mut said).unwrap();
    assert!(!said.contains("serving an environment"), "{said}");
    for file in ["config.toml", "broker.json"] {
        assert!(!fs::read_to_string(folder.join(file)).unwrap().contains("password"), "{file}");
    }
}

#[test]
fn mistakes_are_named() {
    let cases: [(&[&str], i32, &str); 8] = [
        (&["worker", "--nats", "nats://127.0.0.1:1", "--run", "a.b"], 2, "--run is \"a.b\""),
        (&["worker"], 2, "--nats is missing: give the broker's address, or set NATS_URL"),
        (&["worker", "--nats", "nats://127.0.0.1:1", "--stream", "a.b"], 2, "--stream is \"a.b\""),
        (
            &["worker", "--nats", "nats://127.0.0.1:1", "--env", "a=/nowhere"],
            2,
            "--env a: /nowhere does not exist",
        ),
        (&["nats", "check"], 2, "the argument URL is missing: give the broker's address, or set NATS_URL"),
        (&["dead-letters", "purge", "--nats", "nats://127.0.0.1:1"], 2, "--all"),
        (&["nats", "check", "nats://127.0.0.1:1"], 3, "failed to connect to nats://127.0.0.1:1"),
        (
            &["dead-letters", "list", "--nats", "nats://u:hunter2@127.0.0.1:1"],
            3,
            "failed to connect to nats://127.0.0.1:1",
        ),
    ];
    for (arguments, expected, text) in cases {
        let (code, out, err) = output(program().args(arguments));
        assert_eq!(code, Some(expected), "{arguments:?}: {out}{err}");
        assert!(err.contains(text) && !err.contains("hunter2"), "{arguments:?}: {err}");
    }
    let dir = TempDir::new().unwrap();
    let config = write(dir.path(), "crowd.toml", CROWD);
    for (set, text) in [
        ("trainer.seed=0", "`nats.url` is missing"),
        ("nats.run=a.b", "`nats.run` is \"a.b\""),
        ("nats.tls_cert=cert.pem", "`nats.tls_key` is missing"),
        ("scorer.transport=pigeon", "it must be one of: local, nats"),
    ] {
        let mut command = run(&config, &dir.path().join("run"), &["--set", set]);
        let url = if set == "trainer.seed=0" { "" } else { "nats://127.0.0.1:1" };
        let (code, _, err) = output(command.env("NATS_URL", url));
        assert_eq!(code, Some(2), "{set}: {err}");
        assert!(err.contains(text), "{set}: {err}");
    }
}
