//! Start-up, sessions and what a server says about itself.

use super::literal::{nullable, tag};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `POST client/config` and `POST client/dynamic_config`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientConfigRequest {
    /// Version of the SDK that asks.
    pub sdk_version: String,
}

/// What a server may change about its clients. Everything has a default, so `{}` is a whole answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientConfig {
    /// Whether the key is to be exchanged for a token first.
    pub pjwt_auth_enabled: bool,
    /// Whether bodies of passes are to be compressed with zstd.
    pub proto_compress_fwdbwd: bool,
    /// Whether chunks of one pass may be sent at once.
    pub parallel_fwdbwd_chunks: bool,
    /// Most data per request.
    pub fwdbwd_max_chunk_len: usize,
    /// Most estimated bytes per request.
    pub fwdbwd_max_chunk_bytes_count: usize,
    /// Longest pause for billing, in seconds.
    pub billing_exception_max_pause_duration_sec: f64,
    /// Most samples in flight per sampler.
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

/// Answer to `POST client/dynamic_config`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DynamicConfig {
    /// Seconds until it is asked again.
    pub refresh_interval_sec: f64,
    /// Whether samples that nobody waits for may be cancelled.
    pub sample_cancel_enabled: bool,
    /// Most of them per request.
    pub sample_cancel_max_batch_size: usize,
}

impl Default for DynamicConfig {
    fn default() -> Self {
        Self { refresh_interval_sec: 300.0, sample_cancel_enabled: false, sample_cancel_max_batch_size: 64 }
    }
}

/// Answer to `POST auth/token`. It has no `Debug`: the token is a secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct AuthToken {
    /// What takes the key's place.
    pub jwt: String,
}

/// `POST create_session`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CreateSessionRequest {
    /// Words to find it by.
    #[serde(default, deserialize_with = "nullable")]
    pub tags: Vec<String>,
    /// Anything.
    #[serde(default, deserialize_with = "nullable")]
    pub user_metadata: Map<String, Value>,
    /// Version of the SDK that asks.
    #[serde(default, deserialize_with = "nullable")]
    pub sdk_version: String,
    /// Whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Which request this is.
    #[serde(rename = "type", default)]
    pub tag: tag::CreateSession,
}

/// Answer to `POST create_session`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CreateSessionResponse {
    /// Which answer this is.
    #[serde(rename = "type", default)]
    pub tag: tag::CreateSession,
    /// Name of the session.
    pub session_id: String,
    /// To be logged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub info_message: Option<String>,
    /// To be logged as a warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning_message: Option<String>,
    /// To be logged as an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
}

/// `POST session_heartbeat`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeartbeatRequest {
    /// Session that is still in use.
    pub session_id: String,
    /// Which request this is.
    #[serde(rename = "type", default)]
    pub tag: tag::SessionHeartbeat,
}

/// Answer to `POST session_heartbeat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeartbeatResponse {
    /// Which answer this is.
    #[serde(rename = "type", default)]
    pub tag: tag::SessionHeartbeat,
}

/// `POST sessions/{id}/finish`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FinishSessionRequest {
    /// How it ended.
    pub reason: FinishReason,
    /// More about it; written even when there is none.
    #[serde(default)]
    pub detail: Option<String>,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FinishReason {
    /// As planned.
    Success,
    /// With a fault.
    Errored,
    /// By a signal.
    Interrupted,
}

/// `POST telemetry`. The events may hold anything, keys included: they must not be logged.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TelemetryRequest {
    /// What happened.
    pub events: Vec<Value>,
    /// Operating system.
    pub platform: String,
    /// Version of the SDK that reports.
    pub sdk_version: String,
    /// Session it belongs to.
    pub session_id: Option<String>,
}

/// Answer to `POST telemetry`. Old SDKs hold back every error until they get exactly this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum TelemetryResponse {
    /// Taken.
    #[default]
    Accepted,
}

/// Answer to `GET get_server_capabilities`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerCapabilities {
    /// What it serves; may be empty.
    pub supported_models: Vec<SupportedModel>,
}

/// One model of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SupportedModel {
    /// Name to ask for it by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// Longest sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_context_length: Option<usize>,
    /// Whether adapters can be trained on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trainable: Option<bool>,
    /// Whether it can be sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampleable: Option<bool>,
    /// Tokens in its vocabulary: an addition of ours that other clients pass over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab_size: Option<usize>,
}

/// Answer to `GET healthz`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Health {
    /// It is there.
    #[default]
    Ok,
}

/// Body of a refusal, as FastAPI writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What is wrong: a text, or a list of findings.
    pub detail: Value,
}

impl ErrorBody {
    /// A refusal in words.
    #[must_use]
    pub fn new(detail: impl Into<String>) -> Self {
        Self { detail: Value::String(detail.into()) }
    }
}
