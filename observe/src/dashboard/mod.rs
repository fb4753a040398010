//! The dashboard of a run: Prometheus metrics at `/metrics`, and a page that shows the live pipeline.
//!
//! Read-only, on a thread of its own: it reads what the pipeline records, and nothing in the pipeline waits for it. On
//! addresses other than this machine's own it requires a token.

mod access;
mod live;
mod page;
mod recent_groups;
mod registry;
mod routes;
mod run_info;
mod thinned_rows;
mod view;
mod warnings;

pub use live::trainer_activity;
pub use run_info::{EnvironmentShare, RunInfo};
pub use view::{EventLevel, RunState, RunView};
pub use warnings::WarningLayer;

use minds_http::{AccessGuard, AccessToken};
use prometheus::core::Collector;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Grace period at shutdown for open dashboard connections.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// Why a run has no dashboard.
#[derive(Debug, thiserror::Error)]
pub enum DashboardError {
    /// The address is in use, or belongs to another machine.
    #[error("`metrics.addr`: cannot listen on {addr}; use another address, or \"off\"")]
    Listen {
        /// The address of the config.
        addr: SocketAddr,
        /// What the operating system says.
        source: io::Error,
    },
    /// The operating system refuses a thread or a socket.
    #[error("failed to start the dashboard")]
    Start(#[from] io::Error),
    /// Two metrics have the same name.
    #[error("failed to set up the metrics")]
    Metrics(#[from] prometheus::Error),
}

/// A bound address that does not serve requests yet.
pub struct DashboardListener {
    listener: TcpListener,
    guard: AccessGuard,
    /// Whether the default address was in use, so that this is another one.
    pub elsewhere: bool,
}

impl DashboardListener {
    /// Binds an address, or a free one of the same machine if the address is in use and not `fixed`. Requests must carry
    /// the token, if there is one.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn bind(addr: SocketAddr, fixed: bool, token: Option<AccessToken>) -> Result<Self, DashboardError> {
        let taken = TcpListener::bind(addr);
        let (listener, elsewhere) = match taken {
            Err(_) if !fixed => (TcpListener::bind(SocketAddr::new(addr.ip(), 0)), true),
            other => (other, false),
        };
        let listener = listener.map_err(|source| DashboardError::Listen { addr, source })?;
        listener.set_nonblocking(true)?;
        let guard = AccessGuard::new(listener.local_addr()?, token);
        Ok(Self { listener, guard, elsewhere })
    }

    /// URL of the page for browsers on this machine.
    #[must_use]
    pub fn url(&self) -> String {
        access::page_url(self.guard.bound())
    }

    /// Starts to serve requests, until the dashboard is closed or dropped. Prometheus also gets the metrics of these
    /// `collectors`.
    ///
    /// # Errors
    /// The operating system refuses a thread, or a metric of the collectors has the name of another one.
    pub fn serve(
        self,
        view: Arc<RunView>,
        collectors: Vec<Box<dyn Collector>>,
    ) -> Result<Dashboard, DashboardError> {
        let (stop, stopped) = oneshot::channel();
        let (finishing, finished) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let registry = registry::registry(view.clone(), collectors)?;
        let routes = routes::routes(view.clone(), registry, self.guard);
        std::thread::Builder::new().name("dashboard".into()).spawn(move || {
            runtime.block_on(async move {
                let closed = view.closed.subscribe();
                let mut serving = tokio::spawn(routes::serve(self.listener, routes, closed));
                let end = async { drop(stopped.await) };
                let watching = async {
                    live::publish_status(&view, end).await;
                    view.closed.send_replace(true);
                };
                tokio::select! {
                    served = &mut serving => {
                        if let Ok(Err(error)) = served {
                            tracing::warn!(%error, "the dashboard has stopped, the run continues");
                        }
                        return;
                    }
                    () = watching => {}
                }
                // Streams end by themselves after the last status; clients that do not read are cut off.
                drop(tokio::time::timeout(SHUTDOWN_GRACE, serving).await);
            });
            drop(finishing);
        })?;
        Ok(Dashboard { stop, finished })
    }
}

/// A running dashboard. It ends when this is closed or dropped.
pub struct Dashboard {
    stop: oneshot::Sender<()>,
    /// Disconnects after the last status is sent.
    finished: oneshot::Receiver<Infallible>,
}

impl Dashboard {
    /// Sends the final status to open connections and stops serving. Clients that do not read delay this by only a
    /// second.
    pub async fn close(self) {
        drop(self.stop);
        // The grace period of the thread, and time for its last reading.
        drop(tokio::time::timeout(2 * SHUTDOWN_GRACE, self.finished).await);
    }
}
