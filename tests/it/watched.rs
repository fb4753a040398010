//! A run that is watched from outside, and a Prometheus of the test's own that watches it.

use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

pub fn deployed(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file)
}

/// A file of `deploy`.
pub fn text(file: &str) -> String {
    std::fs::read_to_string(deployed(file)).unwrap()
}

/// What Prometheus shows at the door of a run that asks for it.
pub const TOKEN: &str = "sesame-of-this-test";

/// What is at this address. HTTP/1.0, so that the body is whole and ends with the connection.
pub fn get(addr: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {addr}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(head.split(' ').nth(1), Some("200"), "{path}: {answer}");
    body.to_owned()
}

/// The program, started; a missing one is named with its package.
fn spawn(command: &mut Command) -> Child {
    command.spawn().unwrap_or_else(|error| {
        panic!("{command:?}: {error}; this test needs Prometheus (Debian: prometheus)")
    })
}

/// Runs `promtool`, which must find nothing wrong; what it prints.
pub fn promtool(args: &[&str], input: &str) -> String {
    let mut command = Command::new("promtool");
    command.args(args).current_dir(deployed("prometheus"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn(&mut command);
    // Whatever does not read its input has gone before it is written.
    drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success() && err.is_empty(), "promtool {args:?}: {}\n{out}{err}", output.status);
    out
}

/// A process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.0.kill());
        self.0.wait().unwrap();
    }
}

/// Reads lines until `find` matches one, and the rest in the background: a process that writes to a full pipe blocks.
fn hear(output: impl std::io::Read + Send + 'static, mut find: impl FnMut(&str) -> Option<String>) -> String {
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    let mut heard = Vec::new();
    for line in lines.by_ref() {
        if let Some(found) = find(&line) {
            std::thread::spawn(move || lines.for_each(drop));
            return found;
        }
        heard.push(line);
    }
    panic!("it ended before it said where it is:\n{}", heard.join("\n"))
}

/// A run that answers Prometheus.
pub struct Watched {
    process: Ends,
    /// Where it answers.
    pub addr: String,
}

impl Watched {
    /// Starts a run that does not end by itself, on a free port.
    pub fn start(mut run: Command) -> Self {
        run.args(["--max-steps", "1000000", "--set", "metrics.addr=\"127.0.0.1:0\""]).stdout(Stdio::piped());
        let mut process = Ends(run.spawn().unwrap());
        let addr = hear(process.0.stdout.take().unwrap(), |line| {
            let url = line.strip_prefix("dashboard")?.split_whitespace().next()?;
            Some(url.trim_start_matches("http://").trim_end_matches('/').to_owned())
        });
        Self { process, addr }
    }

    /// Sends it a signal; its exit code.
    pub fn end(mut self, name: &str) -> Option<i32> {
        let id = self.process.0.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
        self.process.0.wait().unwrap().code()
    }
}

/// A Prometheus with the rules of `deploy/prometheus`, in a hurry: readings and rules every second, rates over ten, and no alert
/// waits before it fires.
pub struct Prometheus {
    _process: Ends,
    addr: String,
    _dir: TempDir,
}

/// What rates are taken over.
const SHORT: &str = "[10s]";

fn hurried(rules: &str) -> String {
    let short = |line: &str| match line.split_once("for: ") {
        Some((indent, _)) if indent.trim().is_empty() => format!("{indent}for: 1s\n"),
        _ => format!("{}\n", line.replace("[5m]", SHORT).replace("[15m]", SHORT).replace("[30m]", SHORT)),
    };
    rules.lines().map(short).collect()
}

impl Prometheus {
    /// Starts it on a free port; it reads these runs.
    pub fn start(runs: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for rules in ["rules.yml", "alerts.yml"] {
            std::fs::write(dir.path().join(rules), hurried(&text(&format!("prometheus/{rules}")))).unwrap();
        }
        std::fs::write(dir.path().join("token"), TOKEN).unwrap();
        let config = dir.path().join("prometheus.yml");
        let written = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
             rule_files: [rules.yml, alerts.yml]\n\
             scrape_configs:\n\
             - job_name: minds-actors\n\
            \x20 authorization: {{ credentials_file: token }}\n\
            \x20 static_configs: [{{ targets: {runs:?} }}]\n"
        );
        std::fs::write(&config, written).unwrap();
        let mut command = Command::new("prometheus");
        command.arg("--config.file").arg(&config).arg("--storage.tsdb.path").arg(dir.path().join("data"));
        command.arg("--web.listen-address=127.0.0.1:0").stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = Ends(spawn(&mut command));
        let mut listening = None;
        let addr = hear(process.0.stderr.take().unwrap(), |line| {
            if let Some((_, address)) = line.split_once("msg=\"Listening on\" address=") {
                listening = Some(address.trim().to_owned());
            }
            listening.take_if(|_| line.contains("Server is ready"))
        });
        Self { _process: process, addr, _dir: dir }
    }

    /// Asks until there is an answer.
    pub async fn until<T>(&self, what: &str, mut ask: impl FnMut(&Self) -> Option<T>) -> T {
        let asking = async {
            loop {
                if let Some(answer) = ask(self) {
                    return answer;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let answer = tokio::time::timeout(Duration::from_secs(120), asking).await;
        answer.unwrap_or_else(|_| panic!("two minutes have passed without {what}: {}", self.api("targets")))
    }

    /// An answer of the HTTP API.
    pub fn api(&self, path: &str) -> Value {
        let answer: Value = serde_json::from_str(&get(&self.addr, &format!("/api/v1/{path}"))).unwrap();
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// What PromQL gives at a time in seconds since 1970, or now.
    pub fn query(&self, expr: &str, at: Option<f64>) -> Vec<Value> {
        let encoded: String = expr.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let at = at.map(|at| format!("&time={at}")).unwrap_or_default();
        self.api(&format!("query?query={encoded}{at}"))["result"].as_array().unwrap().clone()
    }

    /// All readings of one series: times and values.
    pub fn readings(&self, series: &str) -> Vec<(f64, f64)> {
        let found = self.query(&format!("{series}[1h]"), None);
        let pair = |pair: &Value| (pair[0].as_f64().unwrap(), number(&pair[1]));
        found
            .first()
            .map_or_else(Vec::new, |one| one["values"].as_array().unwrap().iter().map(pair).collect())
    }

    /// Names of the alerts that fire, each with its alert.
    pub fn alerts(&self) -> Vec<(String, Value)> {
        let all = self.api("alerts")["alerts"].as_array().unwrap().clone();
        let firing = all.into_iter().filter(|alert| alert["state"] == "firing");
        firing.map(|alert| (alert["labels"]["alertname"].as_str().unwrap().to_owned(), alert)).collect()
    }

    /// All rules, as they are evaluated.
    pub fn rules(&self) -> Vec<Value> {
        let groups = self.api("rules")["groups"].as_array().unwrap().clone();
        groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
    }

    /// Names of all series.
    pub fn names(&self) -> BTreeSet<String> {
        serde_json::from_value(self.api("label/__name__/values")).unwrap()
    }
}

/// A value of PromQL, which writes numbers as text.
pub fn number(value: &Value) -> f64 {
    value.as_str().unwrap().parse().unwrap()
}
