//! `minds-actors serve`: a service behind the Tinker API.

use super::print_line;
use super::signals::{ONE_ORDER, SignalRequest, Signals};
use crate::assemble;
use crate::cli;
use crate::config::simulated_service::{MOST_REQUESTS, SimulatedServiceFile};
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::simulate::{EventFile, EventLog};
use crate::simulated_service::{self, MeasuredService, TrafficSummary};
use crate::terminal;
use anyhow::{Context as _, anyhow};
use minds_core::hosting::HostedService;
use minds_http::AccessToken;
use minds_server::{ServerOptions, serve};
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Longest time for disk writes after the last response.
const LAST_WRITES: Duration = Duration::from_secs(1);

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
    let events = command.events.as_deref().map(EventFile::create).transpose().or_exit(ProcessExit::Config)?;
    let (service, traffic) = match &simulated {
        // The server itself bounds the queue, and asks clients to retry later.
        None => (assemble::hosted(command, options.max_pending)?, None),
        Some(file) => {
            let log = EventLog::new(events.clone());
            let MeasuredService { service, faults, traffic } =
                simulated_service::start(file, log, wall_clock);
            options.faults = faults;
            options.max_sample_requests = file.max_sample_requests.get();
            options.max_connections = MOST_REQUESTS.get();
            options.max_pending = MOST_REQUESTS.get();
            options.max_pending_of_session = MOST_REQUESTS.get();
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
        let stop = Notify::new();
        let serving = serve(listener, service.clone(), options, stop.notified());
        let flushing = async {
            match &events {
                Some(events) => events.flush_regularly().await,
                None => pending().await,
            }
        };
        let served = tokio::select! {
            served = serving => served,
            () = interrupted_twice(&mut signals, &stop) => Ok(()),
            never = flushing => match never {},
        };
        served.context("failed to serve").or_exit(ProcessExit::Failed)
    });
    runtime.shutdown_timeout(LAST_WRITES);
    let logged = events.as_ref().map_or(Ok(()), EventFile::finish);
    if let Some(traffic) = traffic {
        let events_error = logged.as_ref().err().map(ToString::to_string);
        let summary = TrafficSummary { events_error, ..traffic.summary() };
        match command.json {
            true => print_line!("{}", summary.to_json()),
            false => summary.lines().iter().for_each(|line| print_line!("{line}")),
        }
    }
    served.and(logged.or_exit(ProcessExit::Failed))?;
    match simulated {
        // The summary is what the service was started for.
        Some(_) => terminal::written().or_exit(ProcessExit::Failed),
        None => Ok(()),
    }
}

/// Asks for an end at the first signal, and returns at the second one.
async fn interrupted_twice(signals: &mut Signals, stop: &Notify) {
    let mut asked: Option<Instant> = None;
    loop {
        if signals.next().await != SignalRequest::Stop {
            continue;
        }
        match asked {
            None => stop.notify_one(),
            Some(first) if first.elapsed() < ONE_ORDER => continue,
            Some(_) => return tracing::warn!("interrupted a second time: left the open requests"),
        }
        asked = Some(Instant::now());
    }
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
