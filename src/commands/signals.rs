//! Signals that request a stop or a report from the process.

use anyhow::Context as _;
use std::time::Duration;

/// Signals within this time after a first one count as the same request.
pub const ONE_ORDER: Duration = Duration::from_secs(1);

/// The request that a signal stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalRequest {
    /// Ctrl-C, SIGTERM, or SIGHUP when the terminal closes.
    Stop,
    /// SIGUSR1: report what each stage waits for.
    Report,
}

/// The signals that a process listens to.
pub struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    user: tokio::signal::unix::Signal,
}

/// Ignores report requests during setup, when there is nothing to report yet, so that SIGUSR1 does not end the process.
/// Must be called in a runtime.
pub fn ignore_user_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    // A registered signal stays handled for the life of the process.
    drop(signal(SignalKind::user_defined1()));
}

impl Signals {
    /// Registers the signal handlers of the process.
    ///
    /// # Errors
    /// The operating system rejects a handler.
    pub fn listen() -> anyhow::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("failed to listen for Ctrl-C")?,
            terminate: signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?,
            hangup: signal(SignalKind::hangup()).context("failed to listen for SIGHUP")?,
            user: signal(SignalKind::user_defined1()).context("failed to listen for SIGUSR1")?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            _ = self.interrupt.recv() => SignalRequest::Stop,
            _ = self.terminate.recv() => SignalRequest::Stop,
            _ = self.hangup.recv() => SignalRequest::Stop,
            _ = self.user.recv() => SignalRequest::Report,
        }
    }
}
