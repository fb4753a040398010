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
            Ok((stream, _)) => {
                // Responses are small and latency matters, so Nagle's algorithm is off.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "a connection keeps its delay");
                }
                return Ok(stream);
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::oneshot;

    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

    async fn read(stream: &mut TcpStream) -> String {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[tokio::test]
    async fn an_idle_connection_is_closed_and_leaves_its_place_to_the_next() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(|| async { "done" }));
        let limits = ConnectionLimits { connections: 1, head_timeout: Duration::from_millis(20) };
        tokio::spawn(async move { serve(&listener, router, limits, std::future::pending()).await });
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut next = TcpStream::connect(address).await.unwrap();
        next.write_all(REQUEST).await.unwrap();
        assert!(!read(&mut silent).await.contains("200 OK"));
        // Kept alive after its response, and closed when it stays idle.
        assert!(read(&mut next).await.ends_with("done"));
    }

    #[tokio::test]
    async fn open_requests_complete_after_the_stop() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (arrived, mut arrival) = tokio::sync::mpsc::channel::<oneshot::Sender<()>>(1);
        let handler = move || {
            let arrived = arrived.clone();
            async move {
                let (release, released) = oneshot::channel();
                arrived.send(release).await.unwrap();
                released.await.unwrap();
                "done"
            }
        };
        let router = Router::new().route("/", get(handler));
        let limits = ConnectionLimits { connections: 8, head_timeout: Duration::from_secs(60) };
        let (stop, stopped) = oneshot::channel::<()>();
        let serving =
            tokio::spawn(
                async move { serve(&listener, router, limits, async { drop(stopped.await) }).await },
            );
        let mut open = TcpStream::connect(address).await.unwrap();
        open.write_all(REQUEST).await.unwrap();
        let release = arrival.recv().await.unwrap();
        stop.send(()).unwrap();
        tokio::task::yield_now().await;
        assert!(!serving.is_finished());
        release.send(()).unwrap();
        assert!(read(&mut open).await.ends_with("done"));
        serving.await.unwrap().unwrap();
    }
}
