//! `minds-actors worker`: computes rewards and runs environments for runs on other machines.

use super::signals::{SignalRequest, Signals};
use super::{count, print_line};
use crate::assemble::WorkerLoader;
use crate::cli::{BrokerArgs, VERSION, WorkerArgs};
use crate::config::error::KeyProblem;
use crate::config::file::NatsConfig;
use crate::config::{ProcessVariables, nats};
use crate::exit::{CommandError, OrExit, ProcessExit};
use anyhow::{Context as _, anyhow};
use minds_stages::remote::{
    Broker, BrokerError, BrokerOptions, StreamNames, WorkerOptions, WorkerSummary, run_worker, token,
};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::watch;
use tracing::warn;

/// Pause between two attempts to connect to a broker that is not running yet.
const PAUSE: Duration = Duration::from_secs(2);
/// Threads in addition to those for jobs, so that a worker can acknowledge progress while all jobs compute.
const SPARE_THREADS: usize = 2;
/// Upper bound on the threads for jobs.
const MOST_THREADS: usize = 64;

/// Runs the `worker` command.
///
/// # Errors
/// See [`ProcessExit`].
pub fn run(command: &WorkerArgs) -> Result<(), CommandError> {
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let concurrency = command.concurrency.unwrap_or(cores);
    let name = command.name.clone().unwrap_or_else(own_name);
    let address = BrokerAddress { url: command.nats.clone(), argument: "--nats" };
    let (broker, names) = broker_of(address, &command.broker, command.run.as_deref(), &name)?;
    let (environments, paths) = environments(&command.env).or_exit(ProcessExit::Config)?;
    let options = WorkerOptions {
        name: name.clone(),
        program: VERSION.into(),
        concurrency,
        environments,
        run: command.run.clone(),
        grace: Duration::from_secs(command.grace),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(concurrency.get().min(MOST_THREADS) + SPARE_THREADS)
        .enable_all()
        .build()
        .context("failed to start the threads of the worker")
        .or_exit(ProcessExit::Failed)?;
    let summary = runtime.block_on(async {
        let mut signals = Signals::listen().or_exit(ProcessExit::Failed)?;
        let (stop, stopped) = watch::channel(false);
        let loader = Arc::new(WorkerLoader { paths });
        let connected = AtomicBool::new(false);
        let working = async {
            let broker = connect(&broker, names).await?;
            connected.store(true, Relaxed);
            print_line!("worker       {name}, {} at a time", count(concurrency.get(), "job"));
            print_line!("broker       {}", broker.address());
            if !broker.has_jetstream() {
                warn!(broker = broker.address(), "the server has no JetStream of its own, which jobs need");
            }
            Ok(run_worker(broker, loader, options, stopped).await)
        };
        tokio::pin!(working);
        loop {
            tokio::select! {
                summary = &mut working => break summary,
                request = signals.next() => if request == SignalRequest::Stop {
                    if *stop.borrow() || !connected.load(Relaxed) {
                        break Ok(WorkerSummary::default()); // a second signal, or no connection yet
                    }
                    stop.send_replace(true);
                },
            }
        }
    })?;
    runtime.shutdown_background();
    let WorkerSummary { done, handed_back } = summary;
    print_line!("{} done, {handed_back} returned to the queue", count(done as usize, "job"));
    Ok(())
}

/// Connects to the broker. Retries without a limit, but not after an error that a retry cannot fix.
async fn connect(options: &BrokerOptions, names: StreamNames) -> Result<Broker, CommandError> {
    let mut told = false;
    loop {
        match Broker::connect(options, names.clone()).await {
            Ok(broker) => return Ok(broker),
            Err(error @ BrokerError::Connect { .. }) if !error.is_final() => {
                if !std::mem::replace(&mut told, true) {
                    warn!(%error, "waiting for the broker");
                }
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error).or_exit(ProcessExit::Unavailable),
        }
    }
}

/// The address of a broker as it was given.
pub(super) struct BrokerAddress {
    /// The address, or several; `None` for that of the variable `NATS_URL`.
    pub url: Option<String>,
    /// The argument that gives it.
    pub argument: &'static str,
}

/// Reads the broker and the names on it from arguments and variables. With a run, replies arrive where the users of
/// the run may read.
///
/// # Errors
/// No broker is given, or an argument is invalid.
pub(super) fn broker_of(
    address: BrokerAddress,
    args: &BrokerArgs,
    run: Option<&str>,
    name: &str,
) -> Result<(BrokerOptions, StreamNames), CommandError> {
    if let Some(run) = run.filter(|run| token(run) != **run) {
        let problem = "it must begin with a letter or digit, and consist of letters, digits, - and _";
        return Err(anyhow!("--run is {run:?}: {problem}")).or_exit(ProcessExit::Config);
    }
    let given = NatsConfig {
        url: address.url,
        credentials: args.credentials.clone(),
        tls_ca: args.tls_ca.clone(),
        tls_cert: args.tls_cert.clone(),
        tls_key: args.tls_key.clone(),
        ..NatsConfig::default()
    };
    let argument = |KeyProblem { key, problem }: KeyProblem| match key.trim_start_matches("nats.") {
        "url" => anyhow!("{} {problem}", address.argument),
        option => anyhow!("--{} {problem}", option.replace('_', "-")),
    };
    let broker = nats::broker(&given, name, &ProcessVariables::current());
    let broker = broker.map_err(argument).or_exit(ProcessExit::Config)?;
    let names = nats::names(args.stream.as_deref()).map_err(argument).or_exit(ProcessExit::Config)?;
    Ok((BrokerOptions { inbox: run.map(|run| names.inbox(run)), ..broker }, names))
}

/// Names of environments, and paths of packages by name.
type NamesAndPaths = (Vec<String>, BTreeMap<String, PathBuf>);

fn environments(written: &[String]) -> anyhow::Result<NamesAndPaths> {
    let mut names = Vec::new();
    let mut paths = BTreeMap::new();
    for env in written {
        let (name, path) = match env.split_once('=') {
            Some((name, path)) => (name, Some(PathBuf::from(path))),
            None => (env.as_str(), None),
        };
        names.push(name.to_owned());
        if let Some(path) = path {
            anyhow::ensure!(path.exists(), "--env {name}: {} does not exist", path.display());
            paths.insert(name.to_owned(), path);
        }
    }
    Ok((names, paths))
}

/// Returns a name from the host, the process id and a random number.
fn own_name() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().into_owned();
    format!("{host}-{}-{:04x}", std::process::id(), rand::random::<u16>())
}
