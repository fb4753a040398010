//! A run as people and Prometheus see it: `/metrics`, and a page that shows the line at work.
//!
//! Read-only, and beside the run: it has a thread of its own, reads what the line leaves behind, and nothing in the line
//! waits for it. On other addresses than this machine's own it asks for a token.

mod door;
mod facts;
mod hub;
mod live;
mod page;
mod registry;
mod rollouts;
mod routes;
mod rows;

pub use facts::{Facts, service};
pub use hub::{Hub, Level, State};
pub use live::waits_for;

use crate::config::metrics::MetricsPlan;
use anyhow::Context as _;
use door::Door;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use tokio::sync::oneshot;

/// An address that is taken and not yet answered at.
pub struct Listening {
    listener: TcpListener,
    door: Door,
    /// Whether the usual address was taken, so that this is another one.
    pub elsewhere: bool,
}

impl Listening {
    /// Takes the address of the config; where none is written and the usual one is taken, a free one. `None` where it is
    /// turned off.
    ///
    /// # Errors
    /// The address that is written cannot be had.
    pub fn take(plan: &MetricsPlan) -> anyhow::Result<Option<Self>> {
        let Some(addr) = plan.addr else { return Ok(None) };
        let taken = TcpListener::bind(addr);
        let (listener, elsewhere) = match taken {
            Err(_) if !plan.is_written => (TcpListener::bind(SocketAddr::new(addr.ip(), 0)), true),
            other => (other, false),
        };
        let listener = listener
            .with_context(|| format!("`metrics.addr`: {addr} cannot be had; name another one, or \"off\""))?;
        listener.set_nonblocking(true).context("failed to set up the metrics' address")?;
        let door = Door::new(
            listener.local_addr().context("failed to read the metrics' address")?,
            plan.token.clone(),
        );
        Ok(Some(Self { listener, door, elsewhere }))
    }

    /// Where the page is.
    #[must_use]
    pub fn url(&self) -> String {
        self.door.url()
    }

    /// Answers from now on, until it is dropped.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn serve(self, hub: Arc<Hub>) -> anyhow::Result<Dashboard> {
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("failed to start the dashboard")?;
        let routes = routes::routes(hub.clone(), self.door).context("failed to set up the metrics")?;
        let thread = std::thread::Builder::new().name("dashboard".into()).spawn(move || {
            runtime.block_on(async move {
                let watching = tokio::spawn(live::watch(hub));
                tokio::select! {
                    served = routes::serve(self.listener, routes) => {
                        if let Err(error) = served {
                            tracing::warn!(%error, "the dashboard has ended, the run goes on");
                        }
                    }
                    _ = stopped => {}
                }
                watching.abort();
            });
        });
        thread.context("failed to start the dashboard")?;
        Ok(Dashboard { _stop: stop })
    }
}

/// A dashboard that answers. It ends when this is dropped.
pub struct Dashboard {
    _stop: oneshot::Sender<()>,
}
