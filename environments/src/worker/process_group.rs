//! A process as the operating system sees it: its input, its group, and its end.

use super::json_lines::JsonLineError;
use rustix::process::{Pid, Signal, kill_process_group};
use std::process::ExitStatus;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Maximum number of messages per write.
const BATCH: usize = 64;

/// Writes messages to a process until the channel closes. Queued ones are written together: that wakes it once.
pub(super) async fn write(mut stdin: ChildStdin, mut lines: mpsc::Receiver<Vec<u8>>) {
    // A process that no longer reads is dead or about to die; its end is reported elsewhere. When the worker is
    // dropped, so is its queue of messages, and the process exits at the end of its input.
    let mut waiting = Vec::with_capacity(BATCH);
    while lines.recv_many(&mut waiting, BATCH).await > 0 {
        if stdin.write_all(&waiting.concat()).await.is_err() {
            return;
        }
        waiting.clear();
    }
}

/// A process and all its descendants.
pub(super) struct ProcessGroup(pub Child);

impl ProcessGroup {
    /// Waits for the process to end, or kills it; returns the cause.
    pub(super) async fn end(
        mut self,
        mut kill: mpsc::Receiver<String>,
        reader: tokio::task::JoinHandle<Result<(), JsonLineError>>,
    ) -> String {
        let id = self.0.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let end_all = || {
            // An error means that the group is empty.
            id.map(|id| kill_process_group(id, Signal::KILL))
        };
        tokio::pin!(reader);
        let mut kill_cause = None;
        let mut reading = true;
        let cause = loop {
            tokio::select! {
                status = self.0.wait() => break describe_exit(status),
                Some(cause) = kill.recv() => {
                    kill_cause = Some(cause);
                    end_all();
                }
                read = &mut reader, if reading => {
                    reading = false;
                    if let Ok(Err(error)) = read {
                        kill_cause = Some(error.to_string());
                        end_all();
                    }
                }
            }
        };
        end_all();
        // Everything that it wrote before it ended is read before its end is reported.
        if reading {
            drop(timeout(Duration::from_secs(1), reader).await);
        }
        kill_cause.unwrap_or(cause)
    }
}

fn describe_exit(status: std::io::Result<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match status {
        Ok(status) => match (status.signal(), status.code()) {
            (Some(signal), _) => format!("it was ended by signal {signal}"),
            (None, Some(code)) => format!("it ended with code {code}"),
            (None, None) => "it ended".to_owned(),
        },
        Err(error) => format!("its end was not seen: {error}"),
    }
}
