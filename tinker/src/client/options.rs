//! How a client connects, and its time limits.

use super::metrics::ClientMetrics;
use super::secret::Secret;
use std::num::NonZeroUsize;
use std::time::Duration;

/// Environment variable that SDKs read the API key from.
pub const API_KEY_ENV: &str = "TINKER_API_KEY";

/// Options of a client. The defaults are those of the official SDK where it has any.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Address of the server, with the path in front of `/api/v1`, if any.
    pub base_url: String,
    /// API key, if the server requires one.
    pub api_key: Option<Secret>,
    /// Shell command that prints the key, which runs where there is no key; with servers that want it, always.
    pub credential_command: Option<Secret>,
    /// Allows plain HTTP to other machines, which exposes the API key on the network.
    pub allow_insecure: bool,
    /// Tags to find the session by.
    pub tags: Vec<String>,
    /// Project that the session belongs to; without one, the server chooses.
    pub project_id: Option<String>,
    /// Maximum number of sample requests and logprob queries in flight, as far as the server allows as many; `None` for
    /// as many as it allows, which is 2,000 if it does not say.
    pub max_sample_requests: Option<NonZeroUsize>,
    /// Maximum size of the result of a pass or a sample, in bytes after decompression.
    pub max_result_bytes: usize,
    /// Maximum size of any other response, in bytes after decompression. Lists of checkpoints are the largest.
    pub max_answer_bytes: usize,
    /// Seed of the backoff jitter.
    pub seed: u64,
    /// Time limits of the client.
    pub timeouts: ClientTimeouts,
    /// Prometheus metrics of the client.
    pub metrics: ClientMetrics,
}

impl ClientOptions {
    /// A client of one server, with the SDK's time limits.
    #[must_use]
    pub fn new(base_url: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            api_key: None,
            credential_command: None,
            allow_insecure: false,
            tags: vec![],
            project_id: None,
            max_sample_requests: None,
            max_result_bytes: 1 << 30,
            max_answer_bytes: 16 << 20,
            seed: 0,
            timeouts: ClientTimeouts::default(),
            metrics: ClientMetrics::default(),
        }
    }
}

/// Time limits of the client. Every wait has one of these limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientTimeouts {
    /// Limit to open a connection.
    pub connect: Duration,
    /// Limit for the first response of a server, short so that a wrong address fails early. A server that refuses for
    /// load (status 429 or 503) has the limit of an outage.
    pub first_response: Duration,
    /// Limit for the response to one request.
    pub request: Duration,
    /// Limit for the response to one poll; longer than servers hold polls, which is 20 to 30 s.
    pub poll: Duration,
    /// Limit of an outage, in which the server does not respond or is overloaded: without a break, over all attempts,
    /// and counted once for all waiting requests.
    pub outage: Duration,
    /// Limit for the result of a training request, excluding outages.
    pub training: Duration,
    /// Limit for the result of a sample, excluding outages.
    pub sample: Duration,
    /// Interval between two heartbeats of the session.
    pub heartbeat: Duration,
    /// First pause after a failure; it doubles with each.
    pub backoff: Duration,
    /// Maximum pause after a failure.
    pub max_backoff: Duration,
    /// Minimum time between two polls of one result, for servers that respond at once without it.
    pub poll_interval: Duration,
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
        }
    }
}
