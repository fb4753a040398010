//! Start-up, sessions and capabilities of a server.

use super::literal::{nullable, tag};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `POST client/config` and `POST client/dynamic_config`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientConfigRequest {
    /// Version of the requesting SDK.
    pub sdk_version: String,
}

/// Settings of clients that a server controls. Every field has a default, so `{}` is a complete response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientConfig {
    /// Whether the key is to be exchanged for a token first.
    pub pjwt_auth_enabled: bool,
    /// Source of the key that is exchanged: `api_key`, or `credential_cmd` for the output of a command only.
    pub credential_default_source: String,
    /// Whether bodies of passes are to be compressed with zstd.
    pub proto_compress_fwdbwd: bool,
    /// Whether chunks of one pass may be sent at once.
    pub parallel_fwdbwd_chunks: bool,
    /// Maximum number of data per request.
    pub fwdbwd_max_chunk_len: usize,
    /// Maximum estimated bytes per request.
    pub fwdbwd_max_chunk_bytes_count: usize,
    /// Longest pause for billing, in seconds.
    pub billing_exception_max_pause_duration_sec: f64,
    /// Maximum number of samples in flight per sampler.
    pub sample_max_concurrent_requests: usize,
    /// Whether finished samples are announced by `retrieve_futures`.
    pub sample_use_retrieve_futures: bool,
    /// Whether losses can be uploaded.
    pub custom_loss_server_side: bool,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            pjwt_auth_enabled: false,
            credential_default_source: "api_key".into(),
            proto_compress_fwdbwd: false,
            parallel_fwdbwd_chunks: true,
            fwdbwd_max_chunk_len: 1024,
            fwdbwd_max_chunk_bytes_count: 5_000_000,
            billing_exception_max_pause_duration_sec: 3600.0,
            sample_max_concurrent_requests: 2000,
            sample_use_retrieve_futures: false,
            custom_loss_server_side: false,
        }
    }
}

/// Response to `POST client/dynamic_config`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DynamicConfig {
    /// Seconds until the client requests it again.
    pub refresh_interval_sec: f64,
    /// Whether the server accepts the cancellation of samples.
    pub sample_cancel_enabled: bool,
    /// Maximum number of cancellations per request.
    pub sample_cancel_max_batch_size: usize,
}

impl Default for DynamicConfig {
    fn default() -> Self {
        Self { refresh_interval_sec: 300.0, sample_cancel_enabled: false, sample_cancel_max_batch_size: 64 }
    }
}

/// Response to `POST auth/token`. It has no `Debug`: the token is a secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct AuthTokenResponse {
    /// Token that replaces the API key.
    pub jwt: String,
}

/// Request body of `POST create_session`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CreateSessionRequest {
    /// Tags to find the session by.
    #[serde(default, deserialize_with = "nullable")]
    pub tags: Vec<String>,
    /// Arbitrary metadata of the caller.
    #[serde(default, deserialize_with = "nullable")]
    pub user_metadata: Map<String, Value>,
    /// Version of the requesting SDK.
    #[serde(default, deserialize_with = "nullable")]
    pub sdk_version: String,
    /// Project that the session belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Human-readable name of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Value of `type`, which marks this request.
    #[serde(rename = "type", default)]
    pub tag: tag::CreateSession,
}

/// Response to `POST create_session`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CreateSessionResponse {
    /// Value of `type`, which marks this response.
    #[serde(rename = "type", default)]
    pub tag: tag::CreateSession,
    /// Name of the session.
    pub session_id: String,
    /// Message to log as information.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info_message: Option<String>,
    /// Message to log as a warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning_message: Option<String>,
    /// Message to log as an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
}

/// Request body of `POST session_heartbeat`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeartbeatRequest {
    /// Session that is still in use.
    pub session_id: String,
    /// Value of `type`, which marks this request.
    #[serde(rename = "type", default)]
    pub tag: tag::SessionHeartbeat,
}

/// Response to `POST session_heartbeat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeartbeatResponse {
    /// Value of `type`, which marks this response.
    #[serde(rename = "type", default)]
    pub tag: tag::SessionHeartbeat,
}

/// Request body of `POST sessions/{id}/finish`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FinishSessionRequest {
    /// How the session ended.
    pub reason: FinishReason,
    /// Details of the end; written even when there are none.
    #[serde(default)]
    pub detail: Option<String>,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FinishReason {
    /// The session ended as planned.
    Success,
    /// The session ended with an error.
    Errored,
    /// A signal ended the session.
    Interrupted,
}

/// Response to `POST telemetry`, whose body is not read. Old SDKs hold back every error until they receive exactly this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum TelemetryResponse {
    /// The server accepted the events.
    #[default]
    Accepted,
}

/// Response to `GET get_server_capabilities`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerCapabilities {
    /// Models that the server offers; may be empty.
    pub supported_models: Vec<SupportedModel>,
}

/// One model of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SupportedModel {
    /// Name of the model in requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// Maximum sequence length in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_context_length: Option<usize>,
    /// Whether adapters can be trained on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trainable: Option<bool>,
    /// Whether it can be sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampleable: Option<bool>,
    /// Tokens in the vocabulary: an extension of this crate that other clients ignore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab_size: Option<usize>,
}

/// Response to `GET healthz`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Health {
    /// The server is up.
    #[default]
    Ok,
}

/// Body of an error response, as FastAPI writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// Error message: a text, or a list of findings.
    pub detail: Value,
}

impl ErrorBody {
    /// An error body with a text.
    #[must_use]
    pub fn new(detail: impl Into<String>) -> Self {
        Self { detail: Value::String(detail.into()) }
    }
}
