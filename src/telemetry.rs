//! The log: standard error, filtered by `MINDS_LOG` (default `info`, without the hub client's messages, which the
//! fetch repeats). Its warnings are also events of the dashboard.

use crate::cli::{Cli, Command, LogFormat};
use crate::terminal;
use minds_observe::dashboard::WarningLayer;
use std::fmt::{self, Debug};
use std::io::IsTerminal as _;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Starts logging. A simulation's faults are counted, not logged. In JSON, a run's lines are log records too.
pub fn init(cli: &Cli) {
    let usual =
        if matches!(cli.command, Command::Simulate(_)) { "error" } else { "info,hf_hub=off,async_nats=warn" };
    let filter = EnvFilter::try_from_env("MINDS_LOG").map_or_else(|_| EnvFilter::new(usual), without_secrets);
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| terminal::StderrWriter)
        .with_target(false);
    match cli.log_format {
        LogFormat::Text => {
            let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            let log = log.with_ansi(colours).fmt_fields(debug_fn(field).delimited(" "));
            log.finish().with(WarningLayer).init();
        }
        LogFormat::Json => {
            let log = log.json().flatten_event(true).with_current_span(false).with_span_list(true);
            log.finish().with(WarningLayer).init();
            if matches!(cli.command, Command::Run(_)) {
                terminal::log_lines();
            }
        }
    }
}

/// Limits the client of the broker to `info`: below, it logs addresses with their passwords.
fn without_secrets(filter: EnvFilter) -> EnvFilter {
    let most = filter.max_level_hint().unwrap_or(LevelFilter::TRACE).min(LevelFilter::INFO);
    filter.add_directive(format!("async_nats={most}").parse().expect("a target and a level are a directive"))
}

/// Writes a field of a text line. Its value may come from user code or a server.
fn field(to: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    let text = format!("{value:?}");
    let text = terminal::escape_controls(&text);
    match field.name() {
        "message" => to.write_str(&text),
        name if to.has_ansi_escapes() => write!(to, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{text}"),
        name => write!(to, "{name}={text}"),
    }
}
