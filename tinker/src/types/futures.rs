//! Promises and how their results are fetched.

use super::literal::{nullable, tag};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The answer to everything that takes time: the result is fetched with `POST retrieve_future`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FutureHandle {
    /// Name of the result; always a string.
    pub request_id: String,
    /// Model it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    /// For samples: one name per sample, which newer SDKs insist on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_sequence_ids: Option<Vec<String>>,
}

/// `POST retrieve_future`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RetrieveFutureRequest {
    /// Which result.
    pub request_id: String,
    /// Whether [`FutureAnswer::Metadata`] may come instead of a large result.
    #[serde(default, deserialize_with = "nullable")]
    pub allow_metadata_only: bool,
}

/// `POST cancel_future`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CancelFutureRequest {
    /// Which result nobody waits for.
    pub request_id: String,
}

/// Why a result is not there yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueState {
    /// It is being worked on.
    #[default]
    Active,
    /// The server is full.
    PausedCapacity,
    /// The caller asks for too much.
    PausedRateLimit,
    /// A word that is not known here.
    #[serde(other)]
    Unknown,
}

/// Answer to a poll that came too early. Sent with status 408, or with 200.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TryAgain {
    /// Which answer this is.
    #[serde(rename = "type", default)]
    pub tag: tag::TryAgain,
    /// Which result.
    #[serde(default, deserialize_with = "nullable")]
    pub request_id: String,
    /// Why not yet.
    #[serde(default, deserialize_with = "nullable")]
    pub queue_state: QueueState,
    /// In words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_state_reason: Option<String>,
}

/// Whose fault a failed request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureCategory {
    /// The caller's.
    User,
    /// The server's.
    Server,
    /// Nobody knows.
    #[default]
    #[serde(other)]
    Unknown,
}

/// A request that was executed and failed. Sent with status 200; the key `error` marks it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestFailed {
    /// What is wrong.
    pub error: String,
    /// Whose fault it is.
    #[serde(default, deserialize_with = "nullable")]
    pub category: FailureCategory,
}

/// A result that is there and so large that it has to be asked for again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompleteMetadata {
    /// Which answer this is.
    pub status: CompleteStatus,
    /// Which result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Bytes to expect.
    #[serde(default, deserialize_with = "nullable")]
    pub response_payload_size: u64,
}

/// The literal of [`CompleteMetadata`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompleteStatus {
    /// The result is there.
    CompleteMetadata,
}

/// What a JSON answer to a poll means.
#[derive(Clone, Debug, PartialEq)]
pub enum FutureAnswer {
    /// Not yet.
    Pending(TryAgain),
    /// There, and large.
    Metadata(CompleteMetadata),
    /// Failed.
    Failed(RequestFailed),
    /// The result itself.
    Done(Value),
}

impl FutureAnswer {
    /// Tells the four apart.
    ///
    /// # Errors
    /// JSON that is none of them.
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
