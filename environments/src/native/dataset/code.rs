//! Runs the code of an answer with the tests of its row, in a process of its own under limits.
//!
//! Whatever the code does, it costs one rollout. On Linux, where `unshare` may make namespaces, it has no network, sees no other
//! process, can write only to an empty folder in memory, and everything that it starts ends with it. Elsewhere the
//! config has to say that limits of time, memory, file size and processes are enough.

use super::child::{self, ChildEnd, ChildLimits};
use super::extract::code_block;
use minds_core::reward::RewardError;
use rand::TryRng as _;
use rand::rngs::SysRng;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tracing::warn;

const RUNNER: &str = include_str!("scripts/code.py");

/// What the runner writes when its limits are set.
const READY: &[u8] = b"ready\n";

/// Bytes that a program may write to its standard output.
const OUTPUT: usize = 1 << 20;
/// Bytes of one file, and of all files together where they are in memory.
const FILES: u64 = 64 << 20;
/// Processes and threads of one program.
const PROCESSES: u32 = 32;
/// First of the user ids under which a run of the superuser runs code.
const FIRST_USER: u32 = 2_000_000_000;
const USERS: u32 = 100_000;

/// Makes every mount read-only, and the working folder an empty one in memory.
const ENTER: &str = r#"
while read -r _ _ _ _ point _; do mount -o remount,bind,ro "$point" 2>/dev/null || :; done < /proc/self/mountinfo
mount -t tmpfs -o "size=$2,mode=0777,nosuid,nodev" tmpfs "$1" && cd "$1" || exit 97
shift 2
exec "$@""#;

/// What the tests of a row are.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CodeTests {
    /// Python code that runs after the answer's, in the same process; it raises where a test fails.
    Asserts(String),
    /// Inputs of the program, each with the output that it must write.
    Cases(Vec<ProgramCase>),
}

/// An input of a program with its output.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct ProgramCase {
    input: String,
    output: String,
}

impl CodeTests {
    /// Reads the tests of a row: a JSON list of `{"input", "output"}`, an object with the lists `inputs` and `outputs`,
    /// or Python code.
    ///
    /// # Errors
    /// There are no tests, or the lists do not fit each other.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let cases = match serde_json::from_str(text) {
            Ok(Value::Array(cases)) => serde_json::from_value(Value::Array(cases)).map_err(|error| {
                format!("each test must be {{\"input\": text, \"output\": text}}: {error}")
            })?,
            Ok(Value::Object(lists)) => paired(&lists)?,
            _ if text.trim().is_empty() => return Err("there are no tests".into()),
            _ => return Ok(Self::Asserts(text.into())),
        };
        if cases.is_empty() { Err("there are no tests".into()) } else { Ok(Self::Cases(cases)) }
    }
}

fn paired(lists: &serde_json::Map<String, Value>) -> Result<Vec<ProgramCase>, String> {
    let texts = |key: &str| -> Result<Vec<String>, String> {
        let list = lists.get(key).and_then(Value::as_array);
        let texts = list.map(|list| list.iter().map(|text| text.as_str().map(str::to_owned)).collect());
        texts.flatten().ok_or_else(|| format!("tests that are an object must have a list `{key}` of texts"))
    };
    let inputs = texts("inputs")?;
    let outputs = texts("outputs")?;
    if inputs.len() != outputs.len() {
        return Err(format!("there are {} inputs and {} outputs", inputs.len(), outputs.len()));
    }
    let pairs = inputs.into_iter().zip(outputs);
    Ok(pairs.map(|(input, output)| ProgramCase { input, output }).collect())
}

/// What keeps a program from the rest of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Isolation {
    /// Namespaces of its own: no network, no other processes, a read-only file system.
    Namespaces,
    /// Limits alone: the network and the files of this user are within reach.
    Limits,
}

/// Limits that a config sets.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodeLimits {
    /// Seconds for one program, and of processor time for each of its processes.
    pub seconds: u64,
    /// Address space of each process, in MiB.
    pub memory_mib: u64,
    /// Programs that run at a time.
    pub parallel: usize,
}

/// Runs programs with their tests, a number of them at a time.
pub(super) struct CodeVerifier {
    runner: Arc<CodeRunner>,
    permits: Arc<Semaphore>,
}

struct CodeRunner {
    python: PathBuf,
    limits: CodeLimits,
    isolation: Isolation,
    is_superuser: bool,
    next_user: AtomicU32,
}

impl CodeVerifier {
    /// Finds the interpreter, and tries whether this machine offers the isolation.
    ///
    /// # Errors
    /// The interpreter cannot run a program, or cannot run it in isolation.
    pub(super) fn new(python: PathBuf, limits: CodeLimits, isolation: Isolation) -> Result<Self, String> {
        let verifier = Self::with(python, limits, isolation);
        let Err(why) = verifier.try_out() else {
            if isolation == Isolation::Limits {
                warn!(
                    "answers with code run with access to the network, to the files of this user and to its processes: limits \
                     of time, memory, file size and processes are all that holds them"
                );
            }
            return Ok(verifier);
        };
        let limited = Self::with(verifier.runner.python.clone(), limits, Isolation::Limits);
        Err(match (isolation, limited.try_out(), limited.runner.is_superuser) {
            (Isolation::Namespaces, Ok(()), _) => format!(
                "this machine makes no namespaces for code ({why}): run in a container that may, or set `isolation = \"limits\"`, \
                 which leaves the network, the files of this user and its processes, this run included, within reach of the code"
            ),
            (_, _, true) => format!(
                "{why} (for the superuser, code runs as another user, who must be able to read the interpreter)"
            ),
            (_, _, false) => why,
        })
    }

    pub(super) fn with(python: PathBuf, limits: CodeLimits, isolation: Isolation) -> Self {
        let is_superuser = rustix::process::geteuid().is_root();
        let runner = CodeRunner { python, limits, isolation, is_superuser, next_user: AtomicU32::new(0) };
        Self { runner: Arc::new(runner), permits: Arc::new(Semaphore::new(limits.parallel)) }
    }

    /// Runs a program that must pass.
    fn try_out(&self) -> Result<(), String> {
        let tests = CodeTests::Asserts("assert x == 1".into());
        if self.runner.passes("x = 1", &tests)? {
            Ok(())
        } else {
            Err(format!("`{}` ran a program that should pass, and it did not", self.runner.python.display()))
        }
    }

    /// The code of an answer: what its last code block of Python, or of no language, holds.
    pub(super) fn code(answer: &str) -> Option<&str> {
        code_block(answer, &["python", "python3", "py"]).filter(|code| !code.trim().is_empty())
    }

    /// Whether code passes all tests.
    ///
    /// # Errors
    /// No process could be started.
    pub(super) async fn passes(&self, code: &str, tests: CodeTests) -> Result<bool, RewardError> {
        let permit = self.permits.clone().acquire_owned().await;
        let permit = permit.map_err(|error| RewardError::Environment(error.to_string()))?;
        let runner = self.runner.clone();
        let code = code.to_owned();
        let ran = tokio::task::spawn_blocking(move || {
            let passes = runner.passes(&code, &tests);
            drop(permit);
            passes
        });
        let passes = ran.await.map_err(|error| RewardError::Environment(error.to_string()))?;
        passes.map_err(RewardError::Environment)
    }
}

impl CodeRunner {
    fn passes(&self, code: &str, tests: &CodeTests) -> Result<bool, String> {
        match tests {
            CodeTests::Asserts(tests) => {
                // A program that ends early, or that writes what it likes, does not know it.
                let secret = secret()?;
                let task = json!({ "code": code, "tests": tests, "input": "", "secret": secret });
                let end = self.run(task)?;
                Ok(end.is_some_and(|(output, is_success)| is_success && output == secret.as_bytes()))
            }
            CodeTests::Cases(cases) => {
                for ProgramCase { input, output } in cases {
                    let task = json!({ "code": code, "tests": null, "input": input, "secret": "" });
                    let Some((written, is_success)) = self.run(task)? else { return Ok(false) };
                    if !is_success || lines(&String::from_utf8_lossy(&written)) != lines(output) {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// What a program wrote, and whether it ended with success; `None` where it was killed at a limit.
    fn run(&self, mut task: Value) -> Result<Option<(Vec<u8>, bool)>, String> {
        let failed =
            |error: std::io::Error| format!("`{}` cannot run a program: {error}", self.python.display());
        let folder = TempDir::with_prefix("minds-code-").map_err(failed)?;
        let user = match self.is_superuser {
            true => FIRST_USER + self.next_user.fetch_add(1, Ordering::Relaxed) % USERS,
            false => 0,
        };
        task["user"] = user.into();
        task["seconds"] = self.limits.seconds.into();
        task["memory"] = (self.limits.memory_mib << 20).into();
        task["file"] = FILES.into();
        task["processes"] = PROCESSES.into();
        let mut input = task.to_string().into_bytes();
        input.push(b'\n');
        let mut command = match self.isolation {
            Isolation::Namespaces => self.isolated(folder.path(), user),
            Isolation::Limits => {
                if self.is_superuser {
                    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).map_err(failed)?;
                }
                let mut command = Command::new(&self.python);
                command.args(["-I", "-c", RUNNER]);
                command
            }
        };
        command
            .current_dir(folder.path())
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("LANG", "C.UTF-8")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        let limits = ChildLimits { time: Duration::from_secs(self.limits.seconds + 1), output: OUTPUT };
        let ChildEnd { status, stdout, stderr } = child::run(&mut command, input, limits).map_err(failed)?;
        let Some(written) = stdout.strip_prefix(READY) else {
            return Err(format!("no program could be started: {stderr}"));
        };
        Ok(status.map(|status| (written.to_vec(), status.success())))
    }

    /// The runner in namespaces of its own, without privileges.
    fn isolated(&self, folder: &Path, user: u32) -> Command {
        let mut command = Command::new("unshare");
        if !self.is_superuser {
            command.args(["--user", "--map-root-user"]);
        }
        let namespaces =
            ["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child=KILL", "--mount-proc"];
        command.args(namespaces).args(["--", "sh", "-c", ENTER, "enter"]).arg(folder).arg(FILES.to_string());
        command.arg("setpriv");
        if self.is_superuser {
            let user = user.to_string();
            command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
        }
        command.args(["--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]);
        command.arg(&self.python).args(["-I", "-c", RUNNER]);
        command
    }
}

/// Sixteen random bytes in hex.
fn secret() -> Result<String, String> {
    let mut bytes = [0; 16];
    SysRng.try_fill_bytes(&mut bytes).map_err(|error| format!("the system has no randomness: {error}"))?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    }))
}

/// Lines without white space at their ends and without blank lines at the end.
fn lines(text: &str) -> Vec<&str> {
    text.trim_end().lines().map(str::trim_end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn verifier(isolation: Isolation) -> Option<CodeVerifier> {
        let limits = CodeLimits { seconds: 2, memory_mib: 512, parallel: 2 };
        let verifier = CodeVerifier::with("/usr/bin/python3".into(), limits, isolation);
        verifier.try_out().is_ok().then_some(verifier)
    }

    fn passes(verifier: &CodeVerifier, code: &str, tests: &str) -> bool {
        verifier.runner.passes(code, &CodeTests::parse(tests).unwrap()).unwrap()
    }

    /// Both kinds of isolation, where this machine has both.
    fn each() -> Vec<(Isolation, CodeVerifier)> {
        let all = [Isolation::Namespaces, Isolation::Limits];
        let found: Vec<_> = all.into_iter().filter_map(|kind| Some((kind, verifier(kind)?))).collect();
        assert!(!found.is_empty(), "no program can run");
        found
    }

    #[test]
    fn hostile_code_fails_and_the_next_program_runs() {
        for (isolation, verifier) in each() {
            for code in [
                "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
                "import threading, time\nfor n in range(10000):\n    threading.Thread(target=time.sleep, args=(100,)).start()",
                "with open('big', 'wb') as f:\n    while True:\n        f.write(b'x' * 1000000)",
                "import time\ntime.sleep(1000)",
                "while True:\n    print('x' * 1000000)",
                "import sys\nwhile True:\n    sys.stderr.write('x' * 1000000)",
                "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
                "import os, signal\nos.kill(0, signal.SIGKILL)",
                "import signal\nfor n in range(1, 32):\n    try:\n        signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError):\n        pass\nwhile True:\n    pass",
                "import ctypes\nctypes.string_at(0)",
                "x = 1\nimport os\nos.close(1)\nos._exit(0)",
            ] {
                assert!(!passes(&verifier, code, "assert True is False"), "{isolation:?}: {code}");
                assert!(passes(&verifier, "x = 1", "assert x == 1"), "{isolation:?} after {code}");
            }
        }
    }

    #[test]
    fn a_program_sees_an_empty_folder_no_variables_and_no_privileges() {
        let code = "import os\nfiles = os.listdir('.')\nkeys = set(os.environ)\nuser = os.getuid()";
        let tests = "assert files == []\n\
                     assert keys <= {'PATH', 'LANG', 'LC_CTYPE', 'HOME', 'TMPDIR', 'PWD', 'OLDPWD', 'SHLVL', '_', \
                     'PYTHONDONTWRITEBYTECODE'}, keys\n\
                     open('x', 'w').write('x')\n\
                     import subprocess\n\
                     assert subprocess.run(['echo', 'a'], capture_output=True).stdout == b'a\\n'";
        for (isolation, verifier) in each() {
            assert!(passes(&verifier, code, tests), "{isolation:?}");
            assert!(passes(&verifier, code, tests), "{isolation:?}: what the one before wrote is gone");
            let caps = "caps = [l for l in open('/proc/self/status') if l.startswith('CapEff')][0]";
            assert!(
                !cfg!(target_os = "linux") || passes(&verifier, caps, "assert int(caps.split()[1], 16) == 0")
            );
        }
    }

    #[test]
    fn in_namespaces_there_is_no_network_no_other_process_and_no_file_to_write() {
        let Some(verifier) = verifier(Isolation::Namespaces) else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connect = format!("import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=1)");
        assert!(!passes(&verifier, &connect, "assert True"), "it has connected");
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err());
        for (code, tests) in [
            (
                "import os\nnumbers = [int(n) for n in os.listdir('/proc') if n.isdigit()]",
                "assert max(numbers) < 100",
            ),
            (
                "import os, tempfile\ndef can_write(folder):\n    try:\n        open(os.path.join(folder, 'minds-escape'), 'w')\n    except OSError:\n        return False\n    return True",
                "assert not any(map(can_write, ['/', '/tmp', '/var/tmp', '/dev/shm', '..', '/root', '/home']))\nassert can_write('.')",
            ),
            (
                "written = 0\ntry:\n    for n in range(1000):\n        with open(str(n), 'wb') as f:\n            written += f.write(b'x' * 1000000)\nexcept OSError:\n    pass",
                "assert written < 70000000",
            ),
        ] {
            assert!(passes(&verifier, code, tests), "{code}");
        }
    }

    #[test]
    fn what_a_program_starts_ends_with_it() {
        let Some(verifier) = verifier(Isolation::Namespaces) else { return };
        // The number marks the process that leaves the group.
        let code = "import subprocess\nsubprocess.Popen(['sleep', '987654321'], start_new_session=True)";
        assert!(passes(&verifier, code, "assert True"));
        let command = |entry: fs::DirEntry| fs::read(entry.path().join("cmdline")).ok();
        let is_left = || {
            let entries = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
            entries.filter_map(command).any(|line| line.starts_with(b"sleep\0987654321"))
        };
        // The kernel ends a namespace after its first process; that takes a moment.
        let is_gone = (0..100_000).any(|_| {
            std::thread::yield_now();
            !is_left()
        });
        assert!(is_gone, "the process is still there");
    }

    #[test]
    fn tests_are_code_or_inputs_with_outputs() {
        let case = |input: &str, output: &str| ProgramCase { input: input.into(), output: output.into() };
        let cases = CodeTests::Cases(vec![case("1", "2")]);
        assert_eq!(CodeTests::parse(r#"[{"input": "1", "output": "2"}]"#), Ok(cases.clone()));
        assert_eq!(CodeTests::parse(r#"{"inputs": ["1"], "outputs": ["2"]}"#), Ok(cases));
        assert_eq!(CodeTests::parse("assert x"), Ok(CodeTests::Asserts("assert x".into())));
        for (text, error) in [
            (" ", "there are no tests"),
            ("[]", "there are no tests"),
            (r#"[{"input": 1, "output": "2"}]"#, "each test must be"),
            (r#"{"inputs": ["1"], "outputs": []}"#, "there are 1 inputs and 0 outputs"),
            (r#"{"inputs": ["1"]}"#, "must have a list `outputs` of texts"),
        ] {
            assert!(CodeTests::parse(text).unwrap_err().contains(error), "{text}");
        }
    }
}
