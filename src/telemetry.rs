//! The log: standard error, filtered by `MINDS_LOG` (default `info`, without the hub client's own words, which the
//! fetch repeats).

use crate::cli::{Cli, Command, LogFormat};
use crate::terminal;
use std::io::IsTerminal as _;
use tracing_subscriber::EnvFilter;

/// Starts logging. A simulation's faults are counted and not told one by one. In JSON, a run's lines are records, too.
pub fn init(cli: &Cli) {
    let usual = if matches!(cli.command, Command::Simulate(_)) { "error" } else { "info,hf_hub=off" };
    let filter = EnvFilter::try_from_env("MINDS_LOG").unwrap_or_else(|_| EnvFilter::new(usual));
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| terminal::Log).with_target(false);
    match cli.log_format {
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            log.with_ansi(colours).init();
        }
        LogFormat::Json => {
            log.json().flatten_event(true).with_current_span(false).with_span_list(true).init();
            if matches!(cli.command, Command::Run(_)) {
                terminal::log_lines();
            }
        }
    }
}
