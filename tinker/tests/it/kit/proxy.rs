//! A bad network: forwards requests, and loses, delays, cuts and replaces answers.
//!
//! The fault of a request is drawn from a seed, its content and its number of attempts, so that a run does not depend
//! on timing; nothing is hit more than twice in a row.

use super::http_message::message;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    Delay,
    ResetBefore,
    ResetAfter,
    Busy,
    Unavailable,
    Gone,
    Truncated,
    Garbage,
    Silent,
}

const FAULTS: [Fault; 9] = [
    Fault::Delay,
    Fault::ResetBefore,
    Fault::ResetAfter,
    Fault::Busy,
    Fault::Unavailable,
    Fault::Gone,
    Fault::Truncated,
    Fault::Garbage,
    Fault::Silent,
];

pub struct Proxy {
    pub url: String,
    upstream: String,
    seed: u64,
    attempts: Mutex<HashMap<u64, u32>>,
    pub done: Mutex<HashMap<Fault, u32>>,
}

impl Proxy {
    pub async fn start(upstream: &str, seed: u64) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Arc::new(Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            upstream: upstream.trim_start_matches("http://").into(),
            seed,
            attempts: Mutex::default(),
            done: Mutex::default(),
        });
        let accepting = proxy.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let proxy = accepting.clone();
                // A connection that breaks is what this is for.
                tokio::spawn(async move { drop(proxy.serve(stream).await) });
            }
        });
        proxy
    }

    async fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        let mut buffer = Vec::new();
        while let Some(request) = message(&mut client, &mut buffer).await? {
            let fault = self.draw(&request);
            if let Some(fault) = fault {
                *self.done.lock().unwrap().entry(fault).or_default() += 1;
            }
            match fault {
                Some(Fault::ResetBefore) => return reset(client),
                Some(Fault::Busy) => {
                    client.write_all(&canned("429 Too Many Requests", r#"{"detail":"full"}"#)).await?;
                    continue;
                }
                Some(Fault::Unavailable) => {
                    client.write_all(&canned("503 Service Unavailable", "upstream is away")).await?;
                    continue;
                }
                Some(Fault::Gone) => {
                    client.write_all(&canned("410 Gone", r#"{"detail":"gone"}"#)).await?;
                    continue;
                }
                Some(Fault::Silent) => {
                    // Until the client has had enough of it.
                    let heard = client.read(&mut [0; 1]).await?;
                    assert_eq!(heard, 0, "the client went on without an answer");
                    return Ok(());
                }
                _ => {}
            }
            let mut server = TcpStream::connect(&self.upstream).await?;
            server.write_all(&request).await?;
            let mut from_server = Vec::new();
            let Some(answer) = message(&mut server, &mut from_server).await? else { return reset(client) };
            match fault {
                Some(Fault::ResetAfter) => return reset(client),
                Some(Fault::Truncated) => {
                    client.write_all(&answer[..answer.len() - 1]).await?;
                    return Ok(());
                }
                Some(Fault::Garbage) => client.write_all(&canned("200 OK", "<html>welcome</html>")).await?,
                Some(Fault::Delay) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    client.write_all(&answer).await?;
                }
                _ => client.write_all(&answer).await?,
            }
        }
        Ok(())
    }

    /// One request in three is hit, which is far worse than any network that is worth training over.
    fn draw(&self, request: &[u8]) -> Option<Fault> {
        let head = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let body =
            request.windows(4).position(|four| four == b"\r\n\r\n").map_or(&[][..], |at| &request[at..]);
        let mut hasher = DefaultHasher::new();
        (self.seed, head, body).hash(&mut hasher);
        let key = hasher.finish();
        let attempt = {
            let mut attempts = self.attempts.lock().unwrap();
            let attempt = attempts.entry(key).or_default();
            *attempt += 1;
            *attempt - 1
        };
        let head = String::from_utf8_lossy(head);
        let poll = head.contains("retrieve_future");
        let quick = ["client/", "create_session", "heartbeat"].iter().any(|path| head.contains(path));
        let mut rng = ChaCha8Rng::seed_from_u64(key.wrapping_add(attempt.into()));
        if attempt >= 2 || quick || !rng.random_bool(1.0 / 3.0) {
            return None;
        }
        let fault = FAULTS[rng.random_range(0..FAULTS.len())];
        // Only results can be gone, and only polls are allowed to take long.
        let possible = match fault {
            Fault::Gone => poll,
            Fault::Silent => poll && attempt == 0,
            _ => true,
        };
        possible.then_some(fault)
    }
}

fn canned(status: &str, body: &str) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\n");
    format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn reset(client: TcpStream) -> io::Result<()> {
    client.set_zero_linger()
}
