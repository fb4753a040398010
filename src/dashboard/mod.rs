//! A run as people and Prometheus see it: `/metrics`, and a page that shows the line at work.
//!
//! Read-only, and beside the run: it has a thread of its own, reads what the line leaves behind, and nothing in the line
//! waits for it. On other addresses than this machine's own it asks for a token.

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
pub use run_info::{RunInfo, service};
pub use view::{EventLevel, RunState, RunView};
pub use warnings::WarningLayer;

use crate::config::metrics::MetricsPlan;
use access::AccessGuard;
use anyhow::Context as _;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Longest that the end of a run waits until everybody who looks on has its last state.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

/// An address that is taken and not yet answered at.
pub struct DashboardListener {
    listener: TcpListener,
    guard: AccessGuard,
    /// Whether the usual address was taken, so that this is another one.
    pub elsewhere: bool,
}

impl DashboardListener {
    /// Takes the address of the config; where none is written and the usual one is taken, a free one. `None` where it is
    /// turned off.
    ///
    /// # Errors
    /// The address that is written cannot be had.
    pub fn bind(plan: &MetricsPlan) -> anyhow::Result<Option<Self>> {
        let Some(addr) = plan.addr else { return Ok(None) };
        let taken = TcpListener::bind(addr);
        let (listener, elsewhere) = match taken {
            Err(_) if !plan.is_written => (TcpListener::bind(SocketAddr::new(addr.ip(), 0)), true),
            other => (other, false),
        };
        let listener = listener
            .with_context(|| format!("`metrics.addr`: {addr} cannot be had; name another one, or \"off\""))?;
        listener.set_nonblocking(true).context("failed to set up the metrics' address")?;
        let guard = AccessGuard::new(
            listener.local_addr().context("failed to read the metrics' address")?,
            plan.token.clone(),
        );
        Ok(Some(Self { listener, guard, elsewhere }))
    }

    /// Where the page is.
    #[must_use]
    pub fn url(&self) -> String {
        self.guard.url()
    }

    /// Answers from now on, until it is closed or dropped.
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
                            tracing::warn!(%error, "the dashboard has ended, the run goes on");
                        }
                        return;
                    }
                    () = watching => {}
                }
                // Streams end by themselves once they have told the last state; whoever does not read is not waited for.
                drop(tokio::time::timeout(SHUTDOWN_GRACE, serving).await);
            });
            drop(finishing);
        });
        thread.context("failed to start the dashboard")?;
        Ok(Dashboard { stop, finished })
    }
}

/// A dashboard that answers. It ends when this is closed or dropped.
pub struct Dashboard {
    stop: oneshot::Sender<()>,
    /// Breaks when the last state is told.
    finished: oneshot::Receiver<Infallible>,
}

impl Dashboard {
    /// Tells those that look on how the run has ended, and answers no more. Whoever does not read is waited for only a
    /// second.
    pub async fn close(self) {
        drop(self.stop);
        // The thread's own limit, and a moment for its last reading.
        drop(tokio::time::timeout(2 * SHUTDOWN_GRACE, self.finished).await);
    }
}
