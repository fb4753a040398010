//! What a process is asked from outside: to stop, or to say what it is doing.

use anyhow::Context as _;

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalRequest {
    /// Ctrl-C, SIGTERM, or the end of the terminal.
    Stop,
    /// SIGUSR1: say what waits for what.
    Report,
}

/// The signals that a process listens to.
pub struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    user: tokio::signal::unix::Signal,
}

/// From now on, a question for a report does not end the process while it is setting up: there is nothing to report yet.
/// Must be called in a runtime.
pub fn ignore_user_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    // Once listened to, a signal keeps its new meaning for the life of the process.
    drop(signal(SignalKind::user_defined1()));
}

impl Signals {
    /// Begins to listen.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn listen() -> anyhow::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("failed to listen for Ctrl-C")?,
            terminate: signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?,
            hangup: signal(SignalKind::hangup()).context("failed to listen for SIGHUP")?,
            user: signal(SignalKind::user_defined1()).context("failed to listen for SIGUSR1")?,
        })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            _ = self.interrupt.recv() => SignalRequest::Stop,
            _ = self.terminate.recv() => SignalRequest::Stop,
            _ = self.hangup.recv() => SignalRequest::Stop,
            _ = self.user.recv() => SignalRequest::Report,
        }
    }
}
