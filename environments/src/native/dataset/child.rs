//! Runs a program to its end under limits of time and output, with everything that it starts.

use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{self, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Time in which the output of a program that has ended is read.
const GRACE: Duration = Duration::from_secs(2);
/// Bytes of the standard error that are kept: the last ones.
const KEPT: usize = 2000;

#[expect(clippy::disallowed_methods, reason = "a thread waits for a process, which no paused clock can hold")]
fn now() -> Instant {
    Instant::now()
}

/// How a program ended.
#[derive(Debug)]
pub(super) struct ChildEnd {
    /// `None` where it was killed at the limit of time or output.
    pub status: Option<ExitStatus>,
    /// What it wrote to its standard output, up to the limit.
    pub stdout: Vec<u8>,
    /// The end of its standard error.
    pub stderr: String,
}

/// Limits of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChildLimits {
    /// Time from its start.
    pub time: Duration,
    /// Bytes that it may write to its standard output.
    pub output: usize,
}

enum ChildEvent {
    Output(Vec<u8>, Output),
    Errors(String),
    Exit(io::Result<ExitStatus>),
}

#[derive(PartialEq)]
enum Output {
    Complete,
    TooLong,
}

/// Starts a program as the leader of a process group of its own, with all three streams piped.
///
/// # Errors
/// It cannot be started.
pub(super) fn start(command: &mut Command) -> io::Result<Child> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn()
}

/// Kills a process group.
pub(super) fn kill_group(leader: u32) {
    if let Some(leader) = Pid::from_raw(leader.cast_signed()) {
        // An error means that the group is empty.
        kill_process_group(leader, Signal::KILL).ok();
    }
}

/// Runs a program, which reads `input`. When it ends or passes a limit, its whole process group is killed.
///
/// # Errors
/// It cannot be started or waited for.
pub(super) fn run(command: &mut Command, input: Vec<u8>, limits: ChildLimits) -> io::Result<ChildEnd> {
    let mut child = start(command)?;
    let leader = child.id();
    let deadline = now() + limits.time;
    let (events, received) = channel();
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read its input has its reasons.
        thread::spawn(move || drop(stdin.write_all(&input)));
    }
    if let Some(stdout) = child.stdout.take() {
        let events = events.clone();
        thread::spawn(move || read_output(stdout, limits.output, &events));
    }
    if let Some(stderr) = child.stderr.take() {
        let events = events.clone();
        thread::spawn(move || read_errors(stderr, &events));
    }
    thread::spawn(move || drop(events.send(ChildEvent::Exit(child.wait()))));
    let end = collect(&received, leader, deadline);
    kill_group(leader);
    end
}

fn collect(events: &Receiver<ChildEvent>, leader: u32, mut deadline: Instant) -> io::Result<ChildEnd> {
    let mut end = ChildEnd { status: None, stdout: Vec::new(), stderr: String::new() };
    let mut is_killed = false;
    let mut open = 3;
    while open > 0 {
        match events.recv_timeout(deadline.saturating_duration_since(now())) {
            Ok(ChildEvent::Exit(status)) => {
                let status = status?;
                if !is_killed {
                    end.status = Some(status);
                }
                // What it left behind must not keep its streams open.
                kill_group(leader);
                deadline = now() + GRACE;
                open -= 1;
            }
            Ok(ChildEvent::Output(bytes, length)) => {
                end.stdout = bytes;
                if length == Output::TooLong {
                    is_killed = true;
                    end.status = None;
                    kill_group(leader);
                    deadline = now() + GRACE;
                }
                open -= 1;
            }
            Ok(ChildEvent::Errors(text)) => {
                end.stderr = text;
                open -= 1;
            }
            // Killed already: a process that left the group still holds a stream.
            Err(RecvTimeoutError::Timeout) if is_killed || end.status.is_some() => break,
            Err(RecvTimeoutError::Timeout) => {
                is_killed = true;
                kill_group(leader);
                deadline = now() + GRACE;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    Ok(end)
}

fn read_output(mut stream: impl Read, limit: usize, events: &Sender<ChildEvent>) {
    let mut bytes = Vec::new();
    let read = stream.by_ref().take(limit as u64 + 1).read_to_end(&mut bytes);
    let is_long = read.is_err() || bytes.len() > limit;
    bytes.truncate(limit);
    let length = if is_long { Output::TooLong } else { Output::Complete };
    // Nothing listens after the limits.
    drop(events.send(ChildEvent::Output(bytes, length)));
}

fn read_errors(mut stream: impl Read, events: &Sender<ChildEvent>) {
    let mut kept: Vec<u8> = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..count]);
        kept.drain(..kept.len().saturating_sub(KEPT));
    }
    drop(events.send(ChildEvent::Errors(String::from_utf8_lossy(&kept).trim().to_owned())));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, time: Duration) -> ChildEnd {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(&mut command, b"in".to_vec(), ChildLimits { time, output: 1000 }).unwrap()
    }

    #[test]
    fn a_program_ends_with_its_output_or_at_a_limit() {
        let long = Duration::from_secs(60);
        let end = shell("cat; echo err >&2; exit 3", long);
        assert_eq!((end.status.unwrap().code(), &end.stdout[..], &*end.stderr), (Some(3), &b"in"[..], "err"));
        let end = shell("yes", long);
        assert!(end.status.is_none() && end.stdout.len() == 1000);
        let end = shell("echo a; sleep 600", Duration::from_millis(300));
        assert!(end.status.is_none(), "{end:?}");
        // A child that keeps the streams open is killed with the program.
        let end = shell("sleep 600 & echo b", long);
        assert_eq!((end.status.unwrap().code(), &end.stdout[..]), (Some(0), &b"b\n"[..]));
    }
}
