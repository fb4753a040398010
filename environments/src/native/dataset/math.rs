//! Compares mathematical answers through the Python library math-verify, in processes of their own.
//!
//! A process answers one comparison at a time. One that crashes or does not answer in time is killed and costs one rollout;
//! the next comparison starts another.

use super::child;
use minds_core::reward::RewardError;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use tokio::sync::Semaphore;

const SCRIPT: &str = include_str!("scripts/math.py");
/// Exits with 0 if the library is installed, without importing it.
const FIND: &str = "import importlib.util as u, sys; sys.exit(u.find_spec('math_verify') is None)";
/// Time in which a process must have imported the library.
const IMPORT: Duration = Duration::from_secs(120);
/// Address space of a process, in MiB.
const MEMORY: u64 = 4096;
/// Longest line that is read of a process, in bytes.
const LINE: u64 = 1 << 20;
/// Bytes of the standard error that are kept: the last ones.
const ERRORS: usize = 2000;
/// Longest answer that is compared, in bytes: only long ones keep the library busy for minutes.
const ANSWER: usize = 10_000;

/// What the library found.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct MathFinding {
    /// Whether it could read the reference.
    pub reference: bool,
    /// What it read in the answer.
    pub read: Option<String>,
    /// Whether both are equal.
    pub correct: bool,
}

/// Compares answers in up to a number of processes.
pub(super) struct MathVerifier {
    idle: Arc<Mutex<Vec<MathProcess>>>,
    permits: Arc<Semaphore>,
    python: PathBuf,
    timeout: Duration,
}

impl MathVerifier {
    /// Checks that the interpreter has the library. No process stays.
    ///
    /// # Errors
    /// The interpreter cannot be started, or lacks the library.
    pub(super) fn new(python: PathBuf, timeout: Duration, processes: usize) -> Result<Self, String> {
        let shown = python.display();
        let found = interpreter_command(&python).args(["-c", FIND]).output();
        let found = found.map_err(|error| format!("`{shown}` cannot be started: {error}"))?;
        if !found.status.success() {
            return Err(format!(
                "{shown} has no module math_verify: `{shown} -m pip install math-verify` adds it, in a virtual \
                 environment if that is refused (`python` names its interpreter)"
            ));
        }
        Ok(Self { idle: Arc::default(), permits: Arc::new(Semaphore::new(processes)), python, timeout })
    }

    /// Compares an answer with a reference.
    ///
    /// # Errors
    /// The process crashed, or did not answer in time.
    pub(super) async fn compare(&self, answer: &str, reference: &str) -> Result<MathFinding, RewardError> {
        if answer.len() > ANSWER {
            return Ok(MathFinding { reference: true, read: None, correct: false });
        }
        let permit = self.permits.clone().acquire_owned().await;
        let permit = permit.map_err(|error| RewardError::Environment(error.to_string()))?;
        let idle = self.idle.clone();
        let python = self.python.clone();
        let timeout = self.timeout;
        let task = json!({ "answer": answer, "reference": reference });
        let compared = tokio::task::spawn_blocking(move || {
            let waiting = idle.lock().pop();
            let (mut process, limit) = match waiting {
                Some(process) => (process, timeout),
                None => (MathProcess::start(&python)?, timeout + IMPORT),
            };
            let found = process.compare(&task.to_string(), limit)?;
            idle.lock().push(process);
            drop(permit);
            Ok(found)
        });
        compared.await.map_err(|error| RewardError::Environment(error.to_string()))?
    }
}

/// The interpreter without the variables of this process, which may hold keys.
fn interpreter_command(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.env_clear();
    for name in ["PATH", "HOME", "LANG", "LC_ALL", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command.env("PYTHONHASHSEED", "0").env("PYTHONIOENCODING", "utf-8");
    command
}

/// A process that has imported the library.
struct MathProcess {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<Vec<u8>>,
    errors: Arc<Mutex<Vec<u8>>>,
}

impl MathProcess {
    fn start(python: &Path) -> Result<Self, RewardError> {
        let failed = |why: String| RewardError::Environment(format!("math-verify cannot be started: {why}"));
        let mut command = interpreter_command(python);
        command.args(["-u", "-c", SCRIPT]).arg(MEMORY.to_string());
        let mut child = child::start(&mut command).map_err(|error| failed(error.to_string()))?;
        let streams = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(mut stderr)) = streams else {
            return Err(failed("its streams are not open".into()));
        };
        let (send, lines) = channel();
        thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            loop {
                let mut line = Vec::new();
                let read = reader.by_ref().take(LINE).read_until(b'\n', &mut line);
                if !matches!(read, Ok(1..)) || send.send(line).is_err() {
                    return;
                }
            }
        });
        let errors: Arc<Mutex<Vec<u8>>> = Arc::default();
        let last = errors.clone();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = stderr.read(&mut buffer) {
                let mut last = last.lock();
                last.extend_from_slice(&buffer[..count]);
                let cut = last.len().saturating_sub(ERRORS);
                last.drain(..cut);
            }
        });
        Ok(Self { child, stdin, lines, errors })
    }

    fn compare(&mut self, task: &str, limit: Duration) -> Result<MathFinding, RewardError> {
        let written = writeln!(self.stdin, "{task}").and_then(|()| self.stdin.flush());
        let line = match self.lines.recv_timeout(limit) {
            Ok(line) if written.is_ok() => line,
            Err(RecvTimeoutError::Timeout) => return Err(RewardError::TimedOut(limit.as_secs())),
            Ok(_) | Err(RecvTimeoutError::Disconnected) => {
                let ended =
                    self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                let errors = String::from_utf8_lossy(&self.errors.lock()).into_owned();
                let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
                return Err(RewardError::Environment(format!("math-verify ended ({ended}): {last}")));
            }
        };
        serde_json::from_slice(&line).map_err(|error| {
            RewardError::Environment(format!("math-verify gave an unreadable answer: {error}"))
        })
    }
}

impl Drop for MathProcess {
    fn drop(&mut self) {
        child::kill_group(self.child.id());
        // It is dead, so this returns at once.
        drop(self.child.wait());
    }
}
