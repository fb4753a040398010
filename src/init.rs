//! What a process does before its command: how many files it may open, and the duties of PID 1, which apply to the
//! program as the entry point of a container.
//!
//! The kernel drops signals for which PID 1 has no handler, so a SIGTERM during setup would be lost. It also makes PID
//! 1 the parent of every orphaned process, which stays a zombie until PID 1 reaps it. PID 1 therefore runs the program
//! in a child process, in which signals have their default actions. It forwards signals, reaps orphans, and exits with
//! the child's code.

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, kill_process, setrlimit, wait};
use std::future::poll_fn;
use std::io::{self, IsTerminal as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::task::Poll;
use tokio::signal::unix::{self, SignalKind};

/// Offset of exit codes that stand for a signal, as in shells.
const SIGNAL_EXIT: i32 = 128;

/// Most files that a process opens. Each request in flight has a connection.
const OPEN_FILES: u64 = 65_536;

/// Raises the number of files that this process may open, often 1,024, as far as the system allows, to [`OPEN_FILES`].
pub fn allow_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(OPEN_FILES, |maximum| maximum.min(OPEN_FILES));
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
        if let Err(error) = raised {
            tracing::debug!(%error, "the number of files that may be open could not be raised");
        }
    }
}

/// Runs the program in a child process if this process is PID 1, and returns the child's exit code.
///
/// Returns `None` in any other process, and if the child could not be started.
pub fn run_child() -> Option<ExitCode> {
    if std::process::id() != 1 {
        return None;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(supervise()).ok()
}

async fn supervise() -> io::Result<ExitCode> {
    // A terminal sends its signals to the child too, since both are in its foreground process group. A second SIGINT
    // would end a run without a checkpoint.
    let from_terminal = io::stdin().is_terminal();
    let mut signals = ForwardedSignals::listen(from_terminal)?;
    let mut children = unix::signal(SignalKind::child())?;
    let child = start_child()?;

    loop {
        tokio::select! {
            signal = signals.next() => {
                // An error means that the child has ended. Its exit code follows.
                kill_process(child, signal).ok();
            }
            _ = children.recv() => {
                if let Some(code) = reap(child) {
                    return Ok(code);
                }
            }
        }
    }
}

/// Starts this program again, with the same arguments.
fn start_child() -> io::Result<Pid> {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    // Without /proc, only the name is available.
    let program = std::env::current_exe().unwrap_or_else(|_| name.clone().into());
    let child = Command::new(program).arg0(name).args(arguments).spawn()?;
    Ok(Pid::from_raw(child.id().cast_signed()).expect("the PID of a child is positive"))
}

/// Reaps all children that have ended. Returns the exit code of `child` if it is one of them.
fn reap(child: Pid) -> Option<ExitCode> {
    let mut code = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if pid != child {
            continue;
        }
        let signal = status.terminating_signal().map(|signal| SIGNAL_EXIT + signal);
        let exit = status.exit_status().or(signal).unwrap_or(1);
        code = Some(ExitCode::from(u8::try_from(exit).unwrap_or(1)));
    }
    code
}

/// The signals that PID 1 forwards to the child.
struct ForwardedSignals(Vec<(unix::Signal, Signal)>);

impl ForwardedSignals {
    /// Registers the handlers. If `from_terminal`, signals that a terminal sends are handled but not forwarded.
    fn listen(from_terminal: bool) -> io::Result<Self> {
        let sent_by_terminal = [
            (SignalKind::interrupt(), Signal::INT),
            (SignalKind::hangup(), Signal::HUP),
            (SignalKind::quit(), Signal::QUIT),
        ];
        let others = [
            (SignalKind::terminate(), Signal::TERM),
            (SignalKind::user_defined1(), Signal::USR1),
            (SignalKind::user_defined2(), Signal::USR2),
        ];
        let listen = |(kind, signal)| unix::signal(kind).map(|stream| (stream, signal));

        let mut forwarded: Vec<_> = others.into_iter().map(listen).collect::<io::Result<_>>()?;
        // Tokio keeps a registered handler until the process ends.
        let handled: Vec<_> = sent_by_terminal.into_iter().map(listen).collect::<io::Result<_>>()?;
        if !from_terminal {
            forwarded.extend(handled);
        }
        Ok(Self(forwarded))
    }

    async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (stream, signal) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}
