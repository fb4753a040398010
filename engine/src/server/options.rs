//! Limits of the server. Every queue, table and wait has one.

use super::api_key::ApiKey;
use std::time::{Duration, SystemTime};

/// Settings of the server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Key that every request must carry; `None` lets everybody in.
    pub api_key: Option<ApiKey>,
    /// Most connections, if the process may have so many descriptors; others wait until one is free.
    pub max_connections: usize,
    /// Longest that a connection may be open without a request.
    pub head_timeout: Duration,
    /// Most bytes of a body, before and after decompression.
    pub max_body_bytes: usize,
    /// The same for requests that carry no data.
    pub small_body_bytes: usize,
    /// Most bytes of all large bodies being read at one time; who sends more waits.
    pub reading_bytes: usize,
    /// Longest that a body may take to arrive.
    pub body_timeout: Duration,
    /// Longest that nothing of a body may arrive.
    pub body_pause: Duration,
    /// Most bytes, as JSON, of what a client wants to be remembered about a session or a checkpoint.
    pub metadata_bytes: usize,
    /// Longest that a poll is held before it is told to come again. Clients give up after 45 s.
    pub poll: Duration,
    /// Longest that requests wait for one that was numbered before them and has not arrived.
    pub gap: Duration,
    /// Most requests that are promised and not finished; more are asked to come back.
    pub max_pending: usize,
    /// Most bytes of bodies of promised requests.
    pub pending_bytes: usize,
    /// The same two of one session, so that others find room.
    pub max_pending_of_session: usize,
    /// See [`Self::max_pending_of_session`].
    pub pending_bytes_of_session: usize,
    /// How long a result stays after it was fetched, because the answer may have been lost.
    pub keep_fetched: Duration,
    /// How long a result stays that nobody has fetched.
    pub keep_unfetched: Duration,
    /// Most bytes of results; the oldest go first.
    pub result_bytes: usize,
    /// Most sessions.
    pub max_sessions: usize,
    /// How long a session lives without a sign of life. Clients send one every 10 s.
    pub session_idle: Duration,
    /// Most bytes of adapters in training: weights, gradients and moments.
    pub adapter_bytes: usize,
    /// Most bytes of sampler weights; the least recently used go first, and come back from disk if they were named.
    pub sampler_bytes: usize,
    /// Most samplers.
    pub max_samplers: usize,
    /// Most samples of one request.
    pub max_samples: usize,
    /// Most bytes that the result of one sample request may come to.
    pub sample_bytes: usize,
    /// Longest that open answers may take after the order to stop.
    pub drain: Duration,
    /// The wall clock, for the times in lists and for the expiry of checkpoints.
    pub wall_clock: fn() -> SystemTime,
}

impl ServerOptions {
    /// The defaults, without a key.
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
            // Clients try again for five minutes.
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
            max_samples: 1024,
            sample_bytes: 256 << 20,
            drain: Duration::from_secs(3),
            wall_clock,
        }
    }
}
