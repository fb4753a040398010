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
pub use run_info::RunInfo;
pub use view::{EventLevel, RunState, RunView};
pub use warnings::WarningLayer;

use crate::config::metrics::MetricsPlan;
use anyhow::Context as _;
use minds_http::AccessGuard;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Grace period at shutdown for open dashboard connections.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// A bound address that does not serve requests yet.
pub struct DashboardListener {
    listener: TcpListener,
    guard: AccessGuard,
    /// Whether the default address was in use, so that this is another one.
    pub elsewhere: bool,
}

impl DashboardListener {
    /// Binds the address of the config; if the config sets none and the default is in use, a free one. `None` if the
    /// dashboard is turned off.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub fn bind(plan: &MetricsPlan) -> anyhow::Result<Option<Self>> {
        let Some(addr) = plan.addr else { return Ok(None) };
        let taken = TcpListener::bind(addr);
        let (listener, elsewhere) = match taken {
            Err(_) if !plan.is_written => (TcpListener::bind(SocketAddr::new(addr.ip(), 0)), true),
            other => (other, false),
        };
        let listener = listener.with_context(|| {
            format!("`metrics.addr`: cannot listen on {addr}; use another address, or \"off\"")
        })?;
        listener.set_nonblocking(true).context("failed to set up the metrics' address")?;
        let guard = AccessGuard::new(
            listener.local_addr().context("failed to read the metrics' address")?,
            plan.token.clone(),
        );
        Ok(Some(Self { listener, guard, elsewhere }))
    }

    /// URL of the page for browsers on this machine.
    #[must_use]
    pub fn url(&self) -> String {
        access::page_url(self.guard.bound())
    }

    /// Starts to serve requests, until the dashboard is closed or dropped.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn serve(self, view: Arc<RunView>) -> anyhow::Result<Dashboard> {
        let (stop, stopped) = oneshot::channel();
        let (finishing, finished) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("failed to start the dashboard")?;
        let routes = routes::routes(view.clone(), self.guard).context("failed to set up the metrics")?;
        let thread = std::thread::Builder::new().name("dashboard".into()).spawn(move || {
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
        });
        thread.context("failed to start the dashboard")?;
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
