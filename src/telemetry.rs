//! The log: standard error, filtered by `MINDS_LOG` (default `info`, without the hub client's own words, which the
//! fetch repeats).

use tracing_subscriber::EnvFilter;

/// Starts logging.
pub fn init() {
    let filter = EnvFilter::try_from_env("MINDS_LOG").unwrap_or_else(|_| EnvFilter::new("info,hf_hub=off"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
}
