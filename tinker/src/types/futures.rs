//! Handles of pending results, and the forms in which results are polled.

use super::literal::{nullable, tag};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Response to every long-running request: the result is fetched with `POST retrieve_future`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FutureHandle {
    /// Name of the result; always a string.
    pub request_id: String,
    /// Model that the request addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    /// For samples: one name per sample, which newer SDKs insist on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_sequence_ids: Option<Vec<String>>,
}

/// Request body of `POST retrieve_future`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RetrieveFutureRequest {
    /// Name of the result, [`FutureHandle::request_id`].
    pub request_id: String,
    /// Whether [`FutureAnswer::Metadata`] may come instead of a large result.
    #[serde(default, deserialize_with = "nullable")]
    pub allow_metadata_only: bool,
}

/// Request body of `POST cancel_future`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CancelFutureRequest {
    /// Name of the result that is no longer needed.
    pub request_id: String,
}

/// Why a result is not ready yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueState {
    /// The request is being executed.
    #[default]
    Active,
    /// The server has no free capacity.
    PausedCapacity,
    /// The caller exceeds its rate limit.
    PausedRateLimit,
    /// A state that this crate does not know.
    #[serde(other)]
    Unknown,
}

/// Response to a poll whose result is not ready. Sent with status 408, or with 200.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TryAgain {
    /// Value of `type`, which marks this response.
    #[serde(rename = "type", default)]
    pub tag: tag::TryAgain,
    /// Name of the result, [`FutureHandle::request_id`].
    #[serde(default, deserialize_with = "nullable")]
    pub request_id: String,
    /// Why the result is not ready.
    #[serde(default, deserialize_with = "nullable")]
    pub queue_state: QueueState,
    /// Explanation of the queue state, for messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_state_reason: Option<String>,
}

/// Whose fault a failed request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureCategory {
    /// The caller sent a bad request.
    User,
    /// The server failed to execute the request.
    Server,
    /// The cause is unknown or was not sent.
    #[default]
    #[serde(other)]
    Unknown,
}

/// A request that was executed and failed. Sent with status 200; the key `error` marks it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestFailed {
    /// Error message of the server.
    pub error: String,
    /// Whose fault it is.
    #[serde(default, deserialize_with = "nullable")]
    pub category: FailureCategory,
}

/// Response to a poll whose result is ready, but too large to be sent unasked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompleteMetadata {
    /// Value of `status`, which marks this response.
    pub status: CompleteStatus,
    /// Name of the result, if the server sends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Size of the result in bytes.
    #[serde(default, deserialize_with = "nullable")]
    pub response_payload_size: u64,
}

/// The literal of [`CompleteMetadata`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompleteStatus {
    /// The result is ready to be fetched.
    CompleteMetadata,
}

/// Meaning of a JSON response to a poll.
#[derive(Clone, Debug, PartialEq)]
pub enum FutureAnswer {
    /// The result is not ready yet.
    Pending(TryAgain),
    /// The result is ready, but large.
    Metadata(CompleteMetadata),
    /// The request was executed and failed.
    Failed(RequestFailed),
    /// The result itself, still as JSON.
    Done(Value),
}

impl FutureAnswer {
    /// Parses a response to a poll.
    ///
    /// # Errors
    /// The body is not JSON, or has a marker of one of the forms without its fields.
    pub fn parse(body: &[u8]) -> Result<Self, serde_json::Error> {
        let value: Value = serde_json::from_slice(body)?;
        if value.get("error").is_some_and(|error| !error.is_null()) {
            let error = match &value["error"] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let category = serde_json::from_value(value["category"].clone()).unwrap_or_default();
            return Ok(Self::Failed(RequestFailed { error, category }));
        }
        if value.get("type").and_then(Value::as_str) == Some("try_again") {
            return Ok(Self::Pending(serde_json::from_value(value)?));
        }
        if value.get("status").and_then(Value::as_str) == Some("complete_metadata") {
            return Ok(Self::Metadata(serde_json::from_value(value)?));
        }
        Ok(Self::Done(value))
    }
}
