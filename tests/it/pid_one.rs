//! The program as the first process of a container: PID 1 of a namespace. Linux only; passes where namespaces are refused.

use crate::command::{config, run};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Arguments of `unshare` that make a command PID 1. The user namespace lets ordinary users do so.
const AS_PID_ONE: [&str; 5] = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child"];

/// Limit for what takes milliseconds.
const SOON: Duration = Duration::from_secs(10);

/// A command that is PID 1 of its own namespace.
struct Container {
    unshare: Child,
}

impl Container {
    /// Starts the command; `None` if this machine has no namespaces.
    #[expect(clippy::print_stdout, reason = "a test that could not be made says so")]
    fn start(command: &Command) -> Option<Self> {
        let probe = Command::new("unshare").args(AS_PID_ONE).arg("true").stderr(Stdio::null()).status();
        if !probe.is_ok_and(|status| status.success()) {
            println!("not tested: this machine refuses namespaces");
            return None;
        }
        let mut unshare = Command::new("unshare");
        unshare.args(AS_PID_ONE).arg(command.get_program()).args(command.get_args());
        unshare.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
        Some(Self { unshare: unshare.spawn().unwrap() })
    }

    /// PID 1 by its number outside of the namespace.
    fn pid_one(&self) -> u32 {
        eventually("PID 1 starts", || children(self.unshare.id()).first().map(|child| child.pid))
    }

    /// The program that PID 1 started, once it is the only child of PID 1.
    fn only_child(&self) -> u32 {
        let pid_one = self.pid_one();
        eventually("PID 1 has one child", || match &children(pid_one)[..] {
            [child] if child.name == "minds-actors" && child.state != 'Z' => Some(child.pid),
            _ => None,
        })
    }

    /// Sends SIGTERM to PID 1 and waits for its end.
    fn terminate(mut self) -> ExitStatus {
        let sent = Command::new("kill").args(["-TERM", &self.pid_one().to_string()]).status().unwrap();
        assert!(sent.success());
        eventually("the container ends", || self.unshare.try_wait().unwrap())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.unshare.kill().ok();
        self.unshare.wait().ok();
    }
}

/// A process, as `/proc` shows it.
struct Process {
    pid: u32,
    name: String,
    state: char,
}

fn children(parent: u32) -> Vec<Process> {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let stat = std::fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
        // The process name in parentheses may contain any characters.
        let (before, after) = stat.rsplit_once(") ")?;
        let (pid, name) = before.split_once(" (")?;
        let mut fields = after.split(' ');
        let state = fields.next()?.chars().next()?;
        let its_parent: u32 = fields.next()?.parse().ok()?;
        (its_parent == parent).then_some(Process { pid: pid.parse().ok()?, name: name.into(), state })
    });
    processes.collect()
}

#[expect(clippy::disallowed_methods, reason = "waits for another process, in real time")]
fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(start.elapsed() < SOON, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_sigterm_during_setup_ends_pid_1() {
    let dir = tempfile::tempdir().unwrap();
    // Nothing listens on port 9, so setup lasts 30 s.
    let silent = ["--set", "tinker.base_url=http://127.0.0.1:9", "--set", "tinker.api_key=tml-test"];
    let command = run(&config("ci_test.toml"), dir.path(), &silent);
    let Some(container) = Container::start(&command) else { return };
    container.only_child();

    let status = container.terminate();
    // 128 + SIGTERM, as shells report it.
    assert_eq!((status.code(), status.signal()), (Some(143), None));
}

#[test]
fn pid_1_reaps_orphans_and_exits_with_the_code_of_its_child() {
    let dir = tempfile::tempdir().unwrap();
    // The shell is PID 1, so the process in the background is its child when the program replaces it.
    let script = format!(
        "(sleep 0.3 &); exec {} serve --model tiny-random --addr 127.0.0.1:0 --data {}",
        env!("CARGO_BIN_EXE_minds-actors"),
        dir.path().display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    let Some(container) = Container::start(&command) else { return };
    let served = container.only_child();
    // `serve` exits with 0 once it listens to signals.
    let handles = |mask: u64| mask & 1 << (15 - 1) != 0;
    eventually("the server listens to SIGTERM", || {
        let status = std::fs::read_to_string(format!("/proc/{served}/status")).ok()?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
        u64::from_str_radix(caught.trim(), 16).is_ok_and(handles).then_some(())
    });

    assert_eq!(container.terminate().code(), Some(0));
}
