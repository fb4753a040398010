//! `minds-actors serve`: a service behind the Tinker API.

use super::print_line;
use super::signals::{SignalRequest, Signals};
use crate::assemble;
use crate::cli;
use crate::exit::{CommandError, OrExit, ProcessExit};
use anyhow::{Context as _, anyhow};
use minds_http::AccessToken;
use minds_server::{ServerOptions, serve};
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;

/// Longest time for disk writes after the last response.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// Runs the command.
///
/// # Errors
/// See [`ProcessExit`].
pub fn run(command: &cli::ServeArgs) -> Result<(), CommandError> {
    let mib = |mib: std::num::NonZeroUsize| mib.get().saturating_mul(1 << 20);
    let options = ServerOptions {
        api_key: api_key(command, &|name| std::env::var(name).ok()).or_exit(ProcessExit::Config)?,
        adapter_bytes: mib(command.adapter_mib),
        sampler_bytes: mib(command.sampler_mib),
        session_idle: Duration::from_secs(60 * command.session_minutes.get() as u64),
        ..ServerOptions::new(wall_clock)
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("failed to start the server's threads")
        .or_exit(ProcessExit::Failed)?;
    // An address in use is reported before a model is fetched.
    let listener = runtime
        .block_on(TcpListener::bind(command.addr))
        .with_context(|| format!("failed to listen at {}", command.addr))
        .or_exit(ProcessExit::Unavailable)?;
    // The server itself bounds the queue, and asks clients to retry later.
    let service = assemble::hosted(command, options.max_pending)?;
    let served = runtime.block_on(async {
        let mut signals = Signals::listen().or_exit(ProcessExit::Failed)?;
        let address = listener.local_addr().or_exit(ProcessExit::Failed)?;
        print_line!("address      http://{address}");
        print_line!("model        {}", command.model);
        print_line!("data folder  {}", command.data.display());
        print_line!("key          {}", key_line(command));
        serve(listener, service, options, async move { while signals.next().await != SignalRequest::Stop {} })
            .await
            .context("failed to serve")
            .or_exit(ProcessExit::Failed)
    });
    runtime.shutdown_timeout(LAST_WRITES);
    served
}

/// The key that clients must send, if one is required.
fn api_key(
    command: &cli::ServeArgs,
    env: &dyn Fn(&str) -> Option<String>,
) -> anyhow::Result<Option<AccessToken>> {
    match &command.api_key_env {
        Some(name) => {
            let key = env(name).and_then(|key| AccessToken::new(&key));
            key.map(Some).ok_or_else(|| anyhow!("--api-key-env: the variable {name} is not set"))
        }
        None if command.addr.ip().is_loopback() || command.allow_anyone => Ok(None),
        None => Err(anyhow!(
            "--addr: {} can be reached from other machines: set --api-key-env, or --allow-anyone",
            command.addr
        )),
    }
}

fn key_line(command: &cli::ServeArgs) -> String {
    match &command.api_key_env {
        Some(name) => format!("the one in {name}"),
        None => "none".into(),
    }
}

#[expect(clippy::disallowed_methods, reason = "the wall clock comes in from here")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
