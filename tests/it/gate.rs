//! A proxy between a run and a server, which answers some requests itself and counts passes.

use crate::http_message::message;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// Requests that are refused after a number of passes.
#[derive(Clone)]
pub struct Refusal {
    pub status: &'static str,
    /// Ends of the paths that are refused.
    pub paths: &'static [&'static str],
    pub after_passes: usize,
    /// Whether the server receives them all the same: one that runs requests in order waits for their numbers.
    pub forwarded: bool,
}

#[derive(Default)]
struct GateState {
    upstream: String,
    refusal: Option<Refusal>,
    passes: usize,
    refused: usize,
    /// Body of the request that opened the last session.
    session: String,
    /// Whether the server takes each publication for a snapshot.
    hides_kinds: bool,
    /// Receives a message when there were this many passes.
    awaited: Option<(usize, Sender<()>)>,
}

/// Forwards requests to a server, and refuses some.
pub struct Gate {
    pub url: String,
    state: Arc<Mutex<GateState>>,
    _runtime: Runtime,
}

impl Gate {
    pub fn start(upstream: &str) -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::<Mutex<GateState>>::default();
        let shared = state.clone();
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = shared.clone();
                // A connection ends when its client leaves.
                tokio::spawn(async move { drop(forward(client, &state).await) });
            }
        });
        let gate = Self { url, state, _runtime: runtime };
        gate.forward_to(upstream);
        gate
    }

    /// Sends requests to this server from now on.
    pub fn forward_to(&self, upstream: &str) {
        upstream.trim_start_matches("http://").clone_into(&mut self.state.lock().unwrap().upstream);
    }

    /// Makes the server take each publication of in-flight weights for a snapshot.
    pub fn hide_kinds(&self) {
        self.state.lock().unwrap().hides_kinds = true;
    }

    /// Refuses these requests, with new counts.
    pub fn refuse(&self, refusal: Option<Refusal>) {
        let mut state = self.state.lock().unwrap();
        let upstream = std::mem::take(&mut state.upstream);
        *state = GateState { upstream, refusal, ..GateState::default() };
    }

    /// Gets a message when there were this many passes.
    pub fn after_passes(&self, passes: usize) -> Receiver<()> {
        let (sender, reached) = channel();
        self.state.lock().unwrap().awaited = Some((passes, sender));
        reached
    }

    /// Number of refused requests.
    pub fn refused(&self) -> usize {
        self.state.lock().unwrap().refused
    }

    /// Body of the request that opened the last session.
    pub fn session(&self) -> String {
        self.state.lock().unwrap().session.clone()
    }
}

async fn forward(mut client: TcpStream, state: &Mutex<GateState>) -> io::Result<()> {
    let mut buffer = Vec::new();
    while let Some(mut request) = message(&mut client, &mut buffer).await? {
        if state.lock().unwrap().hides_kinds {
            hide_kind(&mut request);
        }
        let refusal = state.lock().unwrap().refusal_of(&request);
        if refusal.as_ref().is_none_or(|refusal| refusal.forwarded) {
            let upstream = state.lock().unwrap().upstream.clone();
            let mut server = TcpStream::connect(upstream).await?;
            server.write_all(&request).await?;
            let Some(answer) = message(&mut server, &mut Vec::new()).await? else { return Ok(()) };
            if refusal.is_none() {
                client.write_all(&answer).await?;
            }
        }
        if let Some(Refusal { status, .. }) = refusal {
            let body = r#"{"detail":"ask the accountant"}"#;
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
            );
            client.write_all(answer.as_bytes()).await?;
        }
    }
    Ok(())
}

/// Writes another kind of the same length into a request.
fn hide_kind(request: &mut [u8]) {
    let kind = br#""kind":"inflight""#;
    if let Some(at) = request.windows(kind.len()).position(|bytes| bytes == kind) {
        request[at..at + kind.len()].copy_from_slice(br#""kind":"snapshot""#);
    }
}

impl GateState {
    /// Counts a request, and returns its refusal if there is one.
    fn refusal_of(&mut self, request: &[u8]) -> Option<Refusal> {
        let text = String::from_utf8_lossy(request);
        let path = text.split(' ').nth(1).unwrap();
        if path.ends_with("create_session") {
            text.split("\r\n\r\n").nth(1).unwrap().clone_into(&mut self.session);
        }
        let refusal = self.refusal.as_ref();
        let refusal = refusal
            .filter(|r| self.passes >= r.after_passes && r.paths.iter().any(|end| path.ends_with(end)));
        if let Some(refusal) = refusal {
            self.refused += 1;
            return Some(refusal.clone());
        }
        self.passes += usize::from(path.ends_with("forward_backward"));
        if let Some((_, sender)) = self.awaited.take_if(|(passes, _)| self.passes >= *passes) {
            sender.send(()).unwrap();
        }
        None
    }
}
