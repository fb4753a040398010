//! Runs the built binary in a folder of its own.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

pub type Row = BTreeMap<String, f64>;

pub fn config(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("configs").join(name)
}

/// `minds-actors run CONFIG --output-dir DIR EXTRA…`, in an environment without a service of the user's.
pub fn run(config: &Path, dir: &Path, extra: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    command.arg("run").arg(config).arg("--output-dir").arg(dir).args(extra);
    command
        .env_remove("TINKER_BASE_URL")
        .env_remove("TINKER_API_KEY")
        .env_remove("TINKER_CREDENTIAL_CMD")
        .env("MINDS_LOG", "warn");
    command
}

/// `minds-actors check CONFIG EXTRA…`, in such an environment and with an empty cache.
pub fn check(config: &Path, extra: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    command.arg("check").arg(config).args(extra).env("MINDS_LOG", "warn").env("NO_COLOR", "1");
    command.env_remove("TINKER_BASE_URL").env_remove("TINKER_API_KEY").env_remove("TINKER_CREDENTIAL_CMD");
    command.env("MINDS_MODELS", Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-models"));
    command
}

pub fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// The rows of `metrics.json`. A run may be writing one, and then the file is read again.
pub fn metrics(dir: &Path) -> Vec<Row> {
    let read = || serde_json::from_str(&std::fs::read_to_string(dir.join("metrics.json")).unwrap());
    let again = |_| {
        std::thread::yield_now();
        read().ok()
    };
    read().ok().or_else(|| (0..10_000).find_map(again)).expect("metrics.json is an array")
}

pub fn steps(dir: &Path) -> Vec<u64> {
    metrics(dir).iter().map(|row| row["step"] as u64).collect()
}

pub fn checkpoints(dir: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(dir.join("checkpoints.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The saved adapter behind a `tinker://run/weights/name` path: name and bytes of every tensor.
pub fn adapter(dir: &Path, path: &str) -> Vec<(String, Vec<u8>)> {
    let relative = path.strip_prefix("tinker://").unwrap();
    let file = dir.join("weights").join(relative).join("adapter_model.safetensors");
    let bytes = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Vec<_> =
        tensors.iter().map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect();
    all.sort();
    all
}

/// A run whose output is read as it comes.
pub struct Running {
    pub child: Child,
    lines: Option<std::io::Lines<BufReader<ChildStdout>>>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        Self::start_with_log(command, Stdio::null())
    }

    /// The same, with standard error in a file.
    pub fn start_with_log(command: &mut Command, log: impl Into<Stdio>) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines: Some(lines) }
    }

    /// Reads on until a line starts with this.
    pub fn wait_for(&mut self, start: &str) -> String {
        self.try_wait_for(start)
            .unwrap_or_else(|| panic!("the run ended without a line that starts with {start:?}"))
    }

    /// The same; `None` if the run ended before.
    pub fn try_wait_for(&mut self, start: &str) -> Option<String> {
        self.lines.as_mut()?.map(Result::unwrap).find(|line| line.starts_with(start))
    }

    /// Closes the reading end of standard output.
    pub fn close_output(&mut self) {
        self.lines = None;
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").arg(signal).arg(self.child.id().to_string()).status().unwrap();
        assert!(status.success());
    }

    /// Reads the rest and gives the exit code.
    pub fn end(mut self) -> Option<i32> {
        self.lines.iter_mut().flatten().for_each(drop);
        self.child.wait().unwrap().code()
    }
}
