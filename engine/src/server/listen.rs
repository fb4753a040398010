//! Accepts connections: bounded in number, and an idle one is closed after a timeout.

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// File descriptors reserved for uses other than connections.
const OTHER_FILES: usize = 128;

/// Pause after `accept` fails because the system lacks a resource; an immediate retry would fail too.
const PAUSE: Duration = Duration::from_millis(500);

/// Limits on the number of connections and their idle time.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Maximum number of open connections; lower if the process may open fewer files. Others wait in the backlog.
    pub connections: usize,
    /// Maximum time until the head of the first request, and of each further request, has arrived.
    pub head_timeout: Duration,
}

/// Accepts connections until `stop` completes, then serves the open ones until their requests complete.
///
/// # Errors
/// The socket of the listener does not listen.
pub async fn serve(
    listener: &TcpListener,
    router: Router,
    limits: ConnectionLimits,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let permits = Arc::new(Semaphore::new(connection_limit(limits.connections)));
    let mut http = Builder::new(TokioExecutor::new()).http1_only();
    // The timeout also runs from the last response on, so it closes idle keep-alive connections.
    http.http1().timer(TokioTimer::new()).header_read_timeout(limits.head_timeout);
    let open = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = async {
            // Acquired before the connection is accepted: without a permit, connections wait in the system's backlog.
            let permit = permits.clone().acquire_owned().await.ok()?;
            Some((accept(listener).await, permit))
        };
        let (stream, permit) = tokio::select! {
            () = &mut stop => break,
            accepted = accepted => match accepted {
                Some((stream, permit)) => (stream?, permit),
                // Unreachable: the semaphore is never closed.
                None => break,
            },
        };
        let service = TowerToHyperService::new(router.clone());
        let serving = open.watch(http.serve_connection(TokioIo::new(stream), service).into_owned());
        tokio::spawn(async move {
            if let Err(error) = serving.await {
                tracing::debug!(%error, "a connection broke");
            }
            drop(permit);
        });
    }
    open.shutdown().await;
    Ok(())
}

/// Accepts the next connection. Retries after [`PAUSE`] if the system has run out of file descriptors.
async fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Ok(stream),
            Err(error) if is_of_connection(&error) => {}
            Err(error) if error.kind() == ErrorKind::InvalidInput => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn is_of_connection(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Number of connections to allow: `wanted`, or fewer if the process may open fewer files.
fn connection_limit(wanted: usize) -> usize {
    #[cfg(unix)]
    let possible = rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    #[cfg(not(unix))]
    let possible = usize::MAX;
    wanted.min(possible.saturating_sub(OTHER_FILES)).max(1)
}
