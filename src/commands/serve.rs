//! `minds-actors serve`: a service behind the Tinker API.

use super::print_line;
use super::signals::{SignalRequest, Signals};
use crate::assemble;
use crate::cli;
use crate::config::simulated_service::SimulatedServiceFile;
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::simulate::{EventFile, EventLog};
use crate::simulated_service::{self, MeasuredService};
use anyhow::{Context as _, anyhow};
use minds_core::hosting::HostedService;
use minds_http::AccessToken;
use minds_server::{ServerOptions, serve};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;

/// Longest time for disk writes after the last response.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// Most pending requests, and connections that fetch their results, of a simulated service: clients request samples in
/// great numbers at once.
const SIMULATED_PENDING: usize = 1 << 20;

/// Runs the command.
///
/// # Errors
/// See [`ProcessExit`].
pub fn run(command: &cli::ServeArgs) -> Result<(), CommandError> {
    let mib = |mib: std::num::NonZeroUsize| mib.get().saturating_mul(1 << 20);
    let mut options = ServerOptions {
        api_key: api_key(command, &|name| std::env::var(name).ok()).or_exit(ProcessExit::Config)?,
        adapter_bytes: mib(command.adapter_mib),
        sampler_bytes: mib(command.sampler_mib),
        session_idle: Duration::from_secs(60 * command.session_minutes.get() as u64),
        ..ServerOptions::new(wall_clock)
    };
    let simulated = command.simulated.as_deref().map(SimulatedServiceFile::load).transpose();
    let simulated = simulated.or_exit(ProcessExit::Config)?;
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
    let events = command.events.as_deref().map(EventFile::create).transpose().or_exit(ProcessExit::Failed)?;
    let (service, traffic) = match &simulated {
        // The server itself bounds the queue, and asks clients to retry later.
        None => (assemble::hosted(command, options.max_pending)?, None),
        Some(file) => {
            let log = EventLog::new(events.as_ref().map(EventFile::writer));
            let MeasuredService { service, faults, traffic } =
                simulated_service::start(file, log, wall_clock);
            options.faults = faults;
            options.max_sample_requests = file.max_sample_requests.get();
            options.max_connections = SIMULATED_PENDING;
            options.max_pending = SIMULATED_PENDING;
            options.max_pending_of_session = SIMULATED_PENDING;
            options.pending_bytes_of_session = options.pending_bytes;
            (service as Arc<dyn HostedService>, Some(traffic))
        }
    };
    let served = runtime.block_on(async {
        let mut signals = Signals::listen().or_exit(ProcessExit::Failed)?;
        let address = listener.local_addr().or_exit(ProcessExit::Failed)?;
        print_line!("address      http://{address}");
        print_line!("model        {}", service.info().base_model);
        match &command.simulated {
            Some(file) => print_line!("simulated    {}", file.display()),
            None => print_line!("data folder  {}", command.data.display()),
        }
        print_line!("key          {}", key_line(command));
        serve(listener, service.clone(), options, async move {
            while signals.next().await != SignalRequest::Stop {}
        })
        .await
        .context("failed to serve")
        .or_exit(ProcessExit::Failed)
    });
    runtime.shutdown_timeout(LAST_WRITES);
    if let Some(traffic) = traffic {
        match command.json {
            true => print_line!("{}", traffic.summary().to_json()),
            false => traffic.summary().lines().iter().for_each(|line| print_line!("{line}")),
        }
    }
    events.as_ref().map(EventFile::flush).transpose().or_exit(ProcessExit::Failed)?;
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
