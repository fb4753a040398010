//! How a client connects, and its time limits.

use super::metrics::ClientMetrics;
use super::secret::Secret;
use std::time::Duration;

/// The variable that SDKs read the key from.
pub const API_KEY_ENV: &str = "TINKER_API_KEY";

/// How a client connects. The defaults are those of the official SDK wherever it has one.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The server, with a path in front of `/api/v1` if it has one.
    pub base_url: String,
    /// The key, if the server wants one.
    pub api_key: Option<Secret>,
    /// Allows plain http to other machines than this one. The key is readable on the way.
    pub allow_insecure: bool,
    /// Words to find the session by.
    pub tags: Vec<String>,
    /// Most samples in flight; the server may allow fewer.
    pub max_samples_in_flight: usize,
    /// Most bytes of the result of a pass or a sample, unpacked.
    pub max_result_bytes: usize,
    /// Most bytes of any other answer, unpacked. A list of saved weights with their metadata is the largest.
    pub max_answer_bytes: usize,
    /// Seed of the jitter of back-off.
    pub seed: u64,
    /// How long things may take.
    pub timeouts: ClientTimeouts,
    /// What is counted.
    pub metrics: ClientMetrics,
}

impl ClientOptions {
    /// A client of one server, with the SDK's time limits.
    #[must_use]
    pub fn new(base_url: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            api_key: None,
            allow_insecure: false,
            tags: vec![],
            max_samples_in_flight: 512,
            max_result_bytes: 1 << 30,
            max_answer_bytes: 16 << 20,
            seed: 0,
            timeouts: ClientTimeouts::default(),
            metrics: ClientMetrics::default(),
        }
    }
}

/// How long things may take. Every wait of the client is one of these.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientTimeouts {
    /// To open a connection.
    pub connect: Duration,
    /// Until a server has answered for the first time: one that is not there should be noticed while someone watches.
    pub first_response: Duration,
    /// For the answer to one request.
    pub request: Duration,
    /// For the answer to one poll; longer than servers hold polls, which is 20 to 30 s.
    pub poll: Duration,
    /// For a server that does not answer, or refuses for load: on end, over all attempts, and counted once for all
    /// requests that wait for it.
    pub outage: Duration,
    /// Until the result of a training request is there, the time without a server not counted.
    pub training: Duration,
    /// Until a sample is there, the time without a server not counted.
    pub sample: Duration,
    /// Between two heartbeats.
    pub heartbeat: Duration,
    /// First pause after a failure; it doubles with each.
    pub backoff: Duration,
    /// Longest pause after a failure.
    pub max_backoff: Duration,
    /// Shortest time between two polls of one result, should the server answer at once that it is not there.
    pub poll_interval: Duration,
    /// Pause after "payment required".
    pub billing_pause: Duration,
}

impl Default for ClientTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            first_response: Duration::from_secs(30),
            request: Duration::from_secs(60),
            poll: Duration::from_secs(45),
            outage: Duration::from_secs(300),
            training: Duration::from_secs(3600),
            sample: Duration::from_secs(3600),
            heartbeat: Duration::from_secs(10),
            backoff: Duration::from_millis(500),
            max_backoff: Duration::from_secs(10),
            poll_interval: Duration::from_millis(50),
            billing_pause: Duration::from_secs(5),
        }
    }
}
