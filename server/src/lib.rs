//! The Tinker API over core's traits.
//!
//! Any [`HostedService`](minds_core::hosting::HostedService) can stand behind it: the engine implements it, and
//! [`PlainService`] makes one of every other service, simulated or remote.
//!
//! The server accepts a request at once, and the client fetches the result later. Requests of one model run in the
//! order of their numbers and exactly once, even if they arrive repeatedly or out of order. Models, samplers and
//! sessions are independent of each other. An invalid request gets the reason as its response, a valid one never waits
//! forever, and everything that is kept in memory is bounded. Checkpoints outlive the server.
//!
//! ```no_run
//! use minds_core::service::Service;
//! use minds_server::{PlainService, ServerOptions, serve};
//! use std::sync::Arc;
//! use std::time::SystemTime;
//!
//! # async fn offer(service: Arc<dyn Service>, wall_clock: fn() -> SystemTime) -> std::io::Result<()> {
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8017").await?;
//! let hosted = Arc::new(PlainService::new(service));
//! serve(listener, hosted, ServerOptions::new(wall_clock), std::future::pending()).await
//! # }
//! ```

mod api_error;
mod body;
mod body_budget;
mod fault;
mod futures;
mod ids;
mod models;
mod operation;
mod options;
mod order;
mod outcome;
mod plain;
mod routes;
mod samplers;
mod sessions;
mod state;

pub use fault::{FaultInjector, InjectedFault};
pub use options::ServerOptions;
pub use plain::PlainService;

use minds_core::hosting::HostedService;
use minds_http::ConnectionLimits;
use state::ServerState;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval, sleep};

/// Interval between sweeps for expired results and idle sessions.
const SWEEP: Duration = Duration::from_secs(5);
/// Interval between searches for expired checkpoints.
const EXPIRY: Duration = Duration::from_secs(60);

/// Serves until `stop` completes. Open polls then return "try again" at once, and open requests have
/// [`ServerOptions::drain`] to complete.
///
/// # Errors
/// The local address of the listener cannot be read, or its socket does not listen.
pub async fn serve(
    listener: TcpListener,
    service: Arc<dyn HostedService>,
    options: ServerOptions,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let drain = options.drain;
    let server = ServerState::new(service, options, listener.local_addr()?);
    let closing = server.closing.clone();
    let mut closed = server.closing.subscribe();
    let stop = async move {
        stop.await;
        closing.send_replace(true);
    };
    let deadline = async {
        // This function keeps the server alive, and with it the sender.
        closed.wait_for(|closed| *closed).await.ok();
        sleep(drain).await;
    };
    let sweeping = sweep(server.clone());
    let options = server.options();
    let limits =
        ConnectionLimits { connections: options.max_connections, head_timeout: options.head_timeout };
    let serving = minds_http::serve(&listener, routes::router(server.clone()), limits, stop);
    tokio::select! {
        served = serving => served,
        () = deadline => {
            tracing::warn!("left requests that did not end in time");
            Ok(())
        }
        () = sweeping => Ok(()),
    }
}

async fn sweep(server: Arc<ServerState>) {
    let [mut often, mut seldom] = [SWEEP, EXPIRY].map(interval);
    for ticks in [&mut often, &mut seldom] {
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    loop {
        tokio::select! {
            _ = often.tick() => server.sweep(),
            _ = seldom.tick() => routes::delete_expired(&server).await,
        }
    }
}
