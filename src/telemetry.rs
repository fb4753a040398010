//! The log: standard error, filtered by `MINDS_LOG` (default `info`, without the hub client's own words, which the
//! fetch repeats).

use std::io::IsTerminal as _;
use tracing_subscriber::EnvFilter;

/// Starts logging.
pub fn init() {
    let filter = EnvFilter::try_from_env("MINDS_LOG").unwrap_or_else(|_| EnvFilter::new("info,hf_hub=off"));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        .init();
}
