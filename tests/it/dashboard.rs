//! A run watched from outside: its page's addresses, who may ask, and the log for machines.

use crate::command::{Running, config, metrics, output, run};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

/// An answer over HTTP.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

/// The address in `dashboard    http://127.0.0.1:1234/`.
pub fn address(line: &str) -> String {
    let url = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
    url.trim_start_matches("http://").trim_end_matches('/').to_owned()
}

fn ask(addr: &str, path: &str, headers: &[&str]) -> TcpStream {
    let mut stream = TcpStream::connect(addr).unwrap();
    let host = if headers.iter().any(|h| h.starts_with("Host:")) {
        String::new()
    } else {
        format!("Host: {addr}\r\n")
    };
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    write!(stream, "GET {path} HTTP/1.1\r\n{host}Connection: close\r\n{headers}\r\n").unwrap();
    stream
}

pub fn get(addr: &str, path: &str, headers: &[&str]) -> Answer {
    let mut text = Vec::new();
    ask(addr, path, headers).read_to_end(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// The events of the stream from now to its end: names and data.
pub fn told(addr: &str) -> impl Iterator<Item = (String, Value)> {
    let mut lines = BufReader::new(ask(addr, "/api/live", &[])).lines().map(Result::unwrap);
    std::iter::from_fn(move || {
        let name = lines.by_ref().find_map(|line| line.strip_prefix("event: ").map(str::to_owned))?;
        let data = lines.next()?;
        Some((name, serde_json::from_str(data.strip_prefix("data: ")?).unwrap()))
    })
}

/// A run of the random model that continues until it is stopped.
pub fn endless(dir: &Path, extra: &[&str]) -> Command {
    let set = ["--max-steps", "1000000", "--set", "trainer.save_every=5"];
    run(&config("ci_test.toml"), dir, &[&set[..], extra].concat())
}

const ANYWHERE: [&str; 2] = ["--set", "metrics.addr=\"127.0.0.1:0\""];

#[test]
fn a_run_can_be_watched_while_it_works() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = Running::start(&mut endless(dir.path(), &ANYWHERE));
    let addr = address(&running.wait_for("dashboard"));
    running.wait_for("saved        step 5");

    let head = get(&addr, "/api/run", &[]).json();
    assert_eq!((&head["base_model"], &head["credits"]), (&"tiny-random".into(), &4.into()), "{head}");
    assert!(head["config"].as_str().unwrap().contains("[trainer]"));
    let page = get(&addr, "/", &[]);
    assert!(page.status == 200 && page.head.contains("text/html"));
    for header in ["content-security-policy: default-src 'none'", "x-content-type-options: nosniff"] {
        assert!(page.head.contains(header), "{}", page.head);
    }
    assert_eq!(get(&addr, "/assets/../Cargo.toml", &[]).status, 404);

    // The API reports a step as the run folder holds it.
    let rows = get(&addr, "/api/steps", &[]).json();
    let kept = metrics(dir.path());
    assert!(rows.as_array().unwrap().len() >= 5);
    for row in rows.as_array().unwrap().iter().take(5) {
        let step = row["step"].as_f64().unwrap();
        let same = kept.iter().find(|kept| kept["step"] == step).unwrap();
        assert_eq!(row["env/all/reward/total"].as_f64(), same.get("env/all/reward/total").copied());
        assert_eq!(row["time/total"].as_f64(), same.get("time/total").copied());
    }
    assert_eq!(get(&addr, "/api/checkpoints", &[]).json()[0]["step"].as_u64(), Some(5));
    assert!(get(&addr, "/api/events", &[]).json()[0]["text"].as_str().unwrap().starts_with("saved step"));

    let groups = get(&addr, "/api/groups?env=plain_letters", &[]).json();
    // The oldest: the rollouts of the newest step may not be written yet.
    let group = groups.as_array().unwrap().last().unwrap();
    assert_eq!(group["environment"], "plain_letters");
    let whole = get(&addr, &format!("/api/groups/{}", group["id"].as_str().unwrap()), &[]).json();
    let step = group["step"].as_u64().unwrap();
    let rollouts =
        std::fs::read_to_string(dir.path().join(format!("rollouts/step_{step:06}.jsonl"))).unwrap();
    let rollouts = rollouts.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let id: u64 = group["id"].as_str().unwrap().parse().unwrap();
    let rollouts: Vec<Value> = rollouts.filter(|rollout| rollout["group"].as_u64() == Some(id)).collect();
    assert_eq!(rollouts.len(), 4);
    for (member, rollout) in whole["members"].as_array().unwrap().iter().zip(&rollouts) {
        let number = |value: &Value| value.as_f64().unwrap() as f32;
        for key in ["reward", "advantage"] {
            assert_eq!(number(&member[key]), number(&rollout[key]), "{key}");
        }
        let tokens = member["turns"][0]["tokens"].as_array().unwrap();
        let logprobs: Vec<f32> = tokens.iter().map(|token| number(&token[1])).collect();
        let kept = rollout["turns"][0]["logprobs"].as_array().unwrap().iter().map(number);
        assert_eq!(logprobs, kept.collect::<Vec<_>>());
    }
    let gone = get(&addr, "/api/groups/123456789", &[]);
    assert!(gone.status == 404 && gone.body.contains("no longer kept"), "{}", gone.body);

    let text = get(&addr, "/metrics", &[]).body;
    let value = |name: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name} is not in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(value("minds_run_step") >= 5.0 && value("minds_trainer_tokens_total") > 0.0);
    assert!(value("minds_run_step_timestamp_seconds") > value("minds_run_start_timestamp_seconds"));
    assert!(value("process_resident_memory_bytes") > 1e6);

    // The stream sends the state at once, and then each step.
    let mut lines = BufReader::new(ask(&addr, "/api/live", &[])).lines().map(Result::unwrap);
    let first = lines.by_ref().find(|line| line.starts_with("event: ")).unwrap();
    assert_eq!(first, "event: state");
    let state = lines.by_ref().find_map(|line| line.strip_prefix("data: ").map(str::to_owned)).unwrap();
    let state: Value = serde_json::from_str(&state).unwrap();
    assert_eq!(
        (&state["state"], state["mailboxes"].as_array().unwrap().len()),
        (&"running".into(), 4),
        "{state}"
    );
    let counts = &state["counts"];
    let settled =
        ["trained", "filtered", "dropped", "failed", "in_flight"].map(|key| counts[key].as_u64().unwrap());
    assert_eq!(counts["opened"].as_u64().unwrap(), settled.iter().sum::<u64>());
    assert!(lines.by_ref().any(|line| line == "event: step"));

    running.signal("-INT");
    assert!(running.child.wait().unwrap().success());
}

/// Open connections receive the end of the run before the process exits.
#[test]
fn the_last_event_is_the_end_of_the_run() {
    for (asked, state, text) in
        [(true, "stopped", "stopped after step "), (false, "done", "done: all 30 steps")]
    {
        let dir = tempfile::tempdir().unwrap();
        let mut command = endless(dir.path(), &ANYWHERE);
        if !asked {
            command =
                run(&config("ci_test.toml"), dir.path(), &[&ANYWHERE[..], &["--max-steps", "30"]].concat());
        }
        let mut running = Running::start(&mut command);
        // The listener is bound before its address is printed, so no connection is refused.
        let addr = address(&running.wait_for("dashboard"));
        let mut told = told(&addr);
        let mut all: Vec<(String, Value)> = told.by_ref().take_while(|(name, _)| name != "step").collect();
        if asked {
            running.signal("-INT");
        }
        all.extend(told);
        assert_eq!(running.end(), Some(0));

        let (name, last) = all.last().unwrap();
        let steps = metrics(dir.path()).len();
        assert_eq!((name.as_str(), &last["state"]), ("state", &state.into()), "{last}");
        assert_eq!(last["step"].as_u64(), Some(steps as u64));
        let events: Vec<&str> = all
            .iter()
            .filter(|(name, _)| name == "event")
            .filter_map(|(_, event)| event["text"].as_str())
            .collect();
        assert!(events.iter().any(|event| event.starts_with(text)), "{events:?}");
    }
}

#[test]
fn unauthorized_requests_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = Running::start(&mut endless(dir.path(), &ANYWHERE));
    let addr = address(&running.wait_for("dashboard"));
    let port = addr.rsplit(':').next().unwrap();
    // A browser that a foreign page sends here by a name of its own.
    for (host, status) in [(format!("localhost:{port}"), 200), (format!("evil.example:{port}"), 421)] {
        assert_eq!(get(&addr, "/api/run", &[&format!("Host: {host}")]).status, status, "{host}");
    }
    running.signal("-KILL");
    running.child.wait().unwrap();

    let open = ["--set", "metrics.addr=\"0.0.0.0:0\"", "--set", "metrics.token_env=\"DOOR\"", "--force"];
    let mut running = Running::start(endless(dir.path(), &open).env("DOOR", "sesame-of-this-test"));
    let addr = address(&running.wait_for("dashboard"));
    let refused = get(&addr, "/metrics", &[]);
    assert!(refused.status == 401 && refused.body.contains("metrics.token_env"), "{}", refused.body);
    assert_eq!(get(&addr, "/metrics", &["Authorization: Bearer sesame"]).status, 401);
    assert_eq!(get(&addr, "/metrics", &["Authorization: Bearer sesame-of-this-test"]).status, 200);
    let door = get(&addr, "/?token=sesame-of-this-test", &[]);
    assert!(door.status == 303 && door.head.contains("set-cookie: minds_token="), "{}", door.head);
    assert!(door.head.contains("httponly") && door.head.contains("samesite=strict"));
    assert_eq!(get(&addr, "/api/run", &["Cookie: minds_token=sesame-of-this-test"]).status, 200);
    assert!(!get(&addr, "/api/run", &["Cookie: minds_token=sesame-of-this-test"]).body.contains("sesame"));
    running.signal("-KILL");
    running.child.wait().unwrap();
    let kept = std::fs::read_to_string(dir.path().join("config.toml")).unwrap();
    assert!(!kept.contains("sesame") && !kept.contains("metrics"), "{kept}");
}

/// Two hundred connections that say half of what they want take 64 files at most.
#[test]
fn silent_connections_do_not_exhaust_file_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = Running::start(&mut endless(dir.path(), &ANYWHERE));
    let addr = address(&running.wait_for("dashboard"));
    let idle = (0..200).map(|_| {
        let mut stream = TcpStream::connect(&addr).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
        stream
    });
    let idle: Vec<TcpStream> = idle.collect();
    let step: u64 = running.wait_for("step").split_whitespace().nth(1).unwrap().parse().unwrap();
    running.wait_for(&format!("step {} ", step + 20));
    let files = std::fs::read_dir(format!("/proc/{}/fd", running.child.id())).unwrap();
    let is_socket = |path: std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"))
    };
    let sockets = files.filter(|file| is_socket(file.as_ref().unwrap().path())).count();
    assert!((1..=64 + 8).contains(&sockets), "{sockets} sockets");
    drop(idle);
    assert_eq!(get(&addr, "/metrics", &[]).status, 200);
    running.signal("-KILL");
    running.child.wait().unwrap();
}

#[test]
fn an_address_in_use_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let set = format!("metrics.addr=\"{}\"", taken.local_addr().unwrap());
    let (status, _, stderr) =
        output(&mut run(&config("ci_test.toml"), &dir.path().join("a"), &["--set", &set]));
    assert_eq!(status, Some(3));
    assert!(stderr.contains("`metrics.addr`") && stderr.contains("cannot listen on"), "{stderr}");

    let off = ["--set", "metrics.addr=\"off\"", "--max-steps", "1"];
    let (status, stdout, _) = output(&mut run(&config("ci_test.toml"), &dir.path().join("b"), &off));
    assert!(status == Some(0) && !stdout.contains("dashboard"), "{stdout}");
}

#[test]
fn the_log_for_machines_is_json_and_names_the_group() {
    let dir = tempfile::tempdir().unwrap();
    let extra = ["--max-steps", "2", "--log-format", "json", "--set", "metrics.addr=\"off\""];
    let mut command = run(&config("ci_test.toml"), dir.path(), &extra);
    let (status, stdout, stderr) = output(command.env("MINDS_LOG", "info,minds_stages=debug"));
    assert_eq!((status, stdout.as_str()), (Some(0), ""), "{stderr}");
    let records: Vec<Value> = stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps: Vec<&Value> = records.iter().filter(|record| record["message"] == "step").collect();
    let rewards: Vec<_> = metrics(dir.path()).iter().map(|row| Some(row["env/all/reward/total"])).collect();
    assert_eq!(steps.iter().map(|step| step["reward"].as_f64()).collect::<Vec<_>>(), rewards);
    // Two groups a step, each in a span of its own.
    let trained = records.iter().filter(|record| record["message"] == "trained");
    let groups: Vec<String> = trained.map(|record| record["spans"][0]["id"].to_string()).collect();
    assert_eq!(groups.len(), 4);
    assert!(groups.iter().all(|id| id.starts_with("\"g")), "{groups:?}");
}
