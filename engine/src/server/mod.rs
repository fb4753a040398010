//! The engine behind the Tinker API, over HTTP.
//!
//! The server accepts a request at once, and the client fetches the result later. Requests of one model run in the
//! order of their numbers and exactly once, even if they arrive repeatedly or out of order. Models, samplers and
//! sessions are independent of each other. An invalid request gets the reason as its response, a valid one never waits
//! forever, and everything that is kept in memory is bounded. Checkpoints outlive the server.

mod api_error;
mod api_key;
mod body;
mod body_budget;
mod futures;
mod host;
mod ids;
pub mod listen;
mod model_handle;
mod operation;
mod options;
mod order;
mod outcome;
mod routes;
mod samplers;
mod sessions;
mod state;

pub use api_key::ApiKey;
pub use host::names_this_machine;
pub use options::ServerOptions;

use crate::embedded::EmbeddedService;
use listen::ConnectionLimits;
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
    service: EmbeddedService,
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
    let serving = listen::serve(&listener, routes::router(server.clone()), limits, stop);
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
