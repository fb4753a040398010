//! Limits of the server: every queue, table and wait is bounded.

use crate::fault::FaultInjector;
use minds_http::AccessToken;
use minds_tinker::types::ClientConfig;
use std::time::{Duration, SystemTime};

/// Limits, timeouts and API key of the server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// API key that every request must carry; `None` means that no key is required.
    pub api_key: Option<AccessToken>,
    /// Maximum number of connections; lower if the process may open fewer files. Others wait until one closes.
    pub max_connections: usize,
    /// Maximum time that a connection may be open without a request.
    pub head_timeout: Duration,
    /// Maximum size of a body in bytes, before and after decompression.
    pub max_body_bytes: usize,
    /// Maximum size in bytes of the body of a request that carries no data.
    pub small_body_bytes: usize,
    /// Maximum bytes of all large bodies that are being read at the same time; further ones wait.
    pub reading_bytes: usize,
    /// Maximum time until a whole body has arrived.
    pub body_timeout: Duration,
    /// Maximum time between two pieces of a body.
    pub body_pause: Duration,
    /// Maximum size, in bytes of JSON, of the user metadata of a session or a checkpoint.
    pub metadata_bytes: usize,
    /// Maximum time that a poll waits before its response is "try again". Clients time out after 45 s.
    pub poll: Duration,
    /// Maximum time that requests wait for an earlier-numbered one that has not arrived.
    pub gap: Duration,
    /// Maximum number of pending requests; further ones get status 429, and clients retry them.
    pub max_pending: usize,
    /// Maximum bytes of the bodies of all pending requests.
    pub pending_bytes: usize,
    /// Maximum number of pending requests of one session, so that it cannot block others.
    pub max_pending_of_session: usize,
    /// Maximum bytes of the bodies of the pending requests of one session.
    pub pending_bytes_of_session: usize,
    /// Retention time of a result after its first fetch, because the response may have been lost.
    pub keep_fetched: Duration,
    /// Retention time of a result that has not been fetched.
    pub keep_unfetched: Duration,
    /// Maximum bytes of all results; the oldest are dropped first.
    pub result_bytes: usize,
    /// Maximum number of open sessions; a further one is refused with status 429.
    pub max_sessions: usize,
    /// Idle time after which a session ends. Clients send a heartbeat every 10 s.
    pub session_idle: Duration,
    /// Maximum bytes of all adapters in training: weights, gradients and optimizer moments.
    pub adapter_bytes: usize,
    /// Maximum bytes of sampler weights in memory; the least recently used are evicted; saved ones can be reloaded.
    pub sampler_bytes: usize,
    /// Maximum number of samplers of all sessions; a further one is refused.
    pub max_samplers: usize,
    /// Maximum number of sample requests in flight that the server asks of a client.
    pub max_sample_requests: usize,
    /// Maximum number of completions of one sample request.
    pub max_samples: usize,
    /// Maximum bytes that the result of one sample request could take in memory.
    pub sample_bytes: usize,
    /// Grace period at shutdown for open requests.
    pub drain: Duration,
    /// Faults that requests meet on purpose; none for a server that is in use.
    pub faults: Option<FaultInjector>,
    /// Wall clock, for the timestamps in lists and for the expiry of checkpoints.
    pub wall_clock: fn() -> SystemTime,
}

impl ServerOptions {
    /// Default limits, without an API key.
    #[must_use]
    pub fn new(wall_clock: fn() -> SystemTime) -> Self {
        Self {
            api_key: None,
            max_connections: 4096,
            head_timeout: Duration::from_secs(60),
            max_body_bytes: 64 << 20,
            small_body_bytes: 1 << 20,
            reading_bytes: 512 << 20,
            body_timeout: Duration::from_secs(120),
            body_pause: Duration::from_secs(15),
            metadata_bytes: 64 << 10,
            poll: Duration::from_secs(25),
            // Clients retry for five minutes.
            gap: Duration::from_secs(330),
            max_pending: 16_384,
            pending_bytes: 1 << 30,
            max_pending_of_session: 4096,
            pending_bytes_of_session: 256 << 20,
            keep_fetched: Duration::from_secs(300),
            keep_unfetched: Duration::from_secs(3600),
            result_bytes: 1 << 30,
            max_sessions: 1024,
            session_idle: Duration::from_secs(1800),
            adapter_bytes: 4 << 30,
            sampler_bytes: 2 << 30,
            max_samplers: 65_536,
            max_sample_requests: ClientConfig::default().sample_max_concurrent_requests,
            max_samples: 1024,
            sample_bytes: 256 << 20,
            drain: Duration::from_secs(3),
            faults: None,
            wall_clock,
        }
    }
}
