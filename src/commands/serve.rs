//! `minds-actors serve`: the embedded engine behind the Tinker API.

use super::signals::{Asked, Signals};
use super::{progress, say};
use crate::assemble;
use crate::cli;
use crate::exit::{Exit, Fault, OrExit};
use anyhow::{Context as _, anyhow};
use minds_engine::local::LocalService;
use minds_engine::runtime::EngineOptions;
use minds_engine::server::{ApiKey, ServerOptions, serve};
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;

/// Longest that work on the disk may go on after the last answer.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// Runs the command.
///
/// # Errors
/// See [`Exit`].
pub fn run(command: &cli::Serve) -> Result<(), Fault> {
    let mib = |mib: std::num::NonZeroUsize| mib.get().saturating_mul(1 << 20);
    let options = ServerOptions {
        api_key: api_key(command, &|name| std::env::var(name).ok()).or_exit(Exit::Config)?,
        adapter_bytes: mib(command.adapter_mib),
        sampler_bytes: mib(command.sampler_mib),
        session_idle: Duration::from_secs(60 * command.session_minutes.get() as u64),
        ..ServerOptions::new(wall_clock)
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("failed to start the threads that answer")
        .or_exit(Exit::Failed)?;
    // A taken address is found before a model is fetched.
    let listener = runtime
        .block_on(TcpListener::bind(command.addr))
        .with_context(|| format!("failed to listen at {}", command.addr))
        .or_exit(Exit::Unavailable)?;
    let (model, tokenizer) = assemble::model(&command.model, command.seed, &progress::bars())?;
    let engine = EngineOptions {
        threads: command.threads,
        kv_bytes: mib(command.kv_cache_mib),
        // The server itself bounds what waits, and asks clients to come back.
        max_waiting: options.max_pending,
        seed: command.seed,
        state_dir: Some(command.data.clone()),
        ..EngineOptions::new(command.model.clone())
    };
    let service = LocalService::start(model, Some(tokenizer), &engine).or_exit(Exit::Unavailable)?;
    let served = runtime.block_on(async {
        let mut signals = Signals::listen().or_exit(Exit::Failed)?;
        let address = listener.local_addr().or_exit(Exit::Failed)?;
        say!("address      http://{address}");
        say!("model        {}", command.model);
        say!("data folder  {}", command.data.display());
        say!("key          {}", key_line(command));
        serve(listener, service, options, async move { while signals.next().await != Asked::Stop {} })
            .await
            .context("failed to serve")
            .or_exit(Exit::Failed)
    });
    runtime.shutdown_timeout(LAST_WRITES);
    served
}

/// The key that clients must send, if they must.
fn api_key(command: &cli::Serve, env: &dyn Fn(&str) -> Option<String>) -> anyhow::Result<Option<ApiKey>> {
    match &command.api_key_env {
        Some(name) => {
            let key = env(name).and_then(|key| ApiKey::new(&key));
            key.map(Some).ok_or_else(|| anyhow!("--api-key-env: the variable {name} is not set"))
        }
        None if command.addr.ip().is_loopback() || command.allow_anyone => Ok(None),
        None => Err(anyhow!(
            "--addr: {} can be reached from other machines: set --api-key-env, or --allow-anyone",
            command.addr
        )),
    }
}

fn key_line(command: &cli::Serve) -> String {
    match &command.api_key_env {
        Some(name) => format!("the one in {name}"),
        None => "none".into(),
    }
}

#[expect(clippy::disallowed_methods, reason = "the wall clock comes in from here")]
fn wall_clock() -> SystemTime {
    SystemTime::now()
}
