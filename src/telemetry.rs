//! The log: standard error, filtered by `MINDS_LOG` (default `info`, without the hub client's own words, which the
//! fetch repeats).

use crate::cli::Command;
use std::io::IsTerminal as _;
use tracing_subscriber::EnvFilter;

/// Starts logging. A simulation's faults are counted and not told one by one.
pub fn init(command: &Command) {
    let usual = if matches!(command, Command::Simulate(_)) { "error" } else { "info,hf_hub=off" };
    let filter = EnvFilter::try_from_env("MINDS_LOG").unwrap_or_else(|_| EnvFilter::new(usual));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        .init();
}
