//! Connections: bounded in number, and none is held open by somebody who does not say what he wants.

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

/// Descriptors that are left to everything that is no connection.
const OTHER_FILES: usize = 128;

/// Pause after the system has refused a connection: it has run out of something, and asking at once changes nothing.
const PAUSE: Duration = Duration::from_millis(500);

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Most of them at a time; fewer where the process may not have so many files. Others wait at the system's door.
    pub connections: usize,
    /// Longest that one may take to say what it wants, also for the next time.
    pub head_timeout: Duration,
}

/// Serves connections until `stop` completes, and then those that are open until their requests are answered.
///
/// # Errors
/// The listener is none.
pub async fn serve(
    listener: &TcpListener,
    router: Router,
    limits: ConnectionLimits,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let permits = Arc::new(Semaphore::new(connection_limit(limits.connections)));
    let mut http = Builder::new(TokioExecutor::new()).http1_only();
    // It counts from the last answer, too, so a connection that is kept for later has an end.
    http.http1().timer(TokioTimer::new()).header_read_timeout(limits.head_timeout);
    let open = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = async {
            // Taken before the connection is: those that find no permit wait at the system's door.
            let permit = permits.clone().acquire_owned().await.ok()?;
            Some((accept(listener).await, permit))
        };
        let (stream, permit) = tokio::select! {
            () = &mut stop => break,
            accepted = accepted => match accepted {
                Some((stream, permit)) => (stream?, permit),
                // The permits are closed, which they never are.
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

/// The next connection. A system that has run out of descriptors is asked again after a while.
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

/// As many as are wanted and the process may have.
fn connection_limit(wanted: usize) -> usize {
    #[cfg(unix)]
    let possible = rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .map_or(usize::MAX, |files| usize::try_from(files).unwrap_or(usize::MAX));
    #[cfg(not(unix))]
    let possible = usize::MAX;
    wanted.min(possible.saturating_sub(OTHER_FILES)).max(1)
}
