//! What a rollout asks, and what can come of it. The answers are given by its [`Desk`](super::desk::Desk).

use super::message::{Draw, Said};
use minds_core::backend::{BackendError, SamplingBackend};
use minds_core::chat::Message;
use minds_core::environment::Borrowed;
use minds_core::ids::Token;
use minds_core::reward::Missing;
use minds_core::sampling::{Sampled, SamplingError};
use serde_json::Value;
use std::sync::Arc;
use thiserror::Error;
use tokio::sync::oneshot;

/// A question that is not answered, by what the asker can do about it.
#[derive(Clone, Debug, Error, PartialEq)]
pub(super) enum Refusal {
    /// The words are those by which programs of the field recognise this case.
    #[error(
        "This model's maximum context length is {context} tokens. However, your messages resulted in {tokens} tokens."
    )]
    TooLong { context: usize, tokens: usize },
    #[error("{0}")]
    Bad(String),
    #[error("{0}")]
    Failed(String),
}

impl From<SamplingError> for Refusal {
    fn from(error: SamplingError) -> Self {
        Self::Bad(error.to_string())
    }
}

impl From<BackendError> for Refusal {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Rejected(_) | BackendError::Unsupported(_) => Self::Bad(error.to_string()),
            BackendError::Unavailable(_)
            | BackendError::TimedOut(_)
            | BackendError::Away(_)
            | BackendError::Lost(_) => Self::Failed(error.to_string()),
        }
    }
}

impl From<Missing> for Refusal {
    fn from(missing: Missing) -> Self {
        if missing.is_retryable() || missing.is_unanswered() {
            Self::Failed(missing.to_string())
        } else {
            Self::Bad(missing.to_string())
        }
    }
}

/// A request for the policy's next answer.
#[derive(Debug)]
pub(super) enum Question {
    /// To a conversation.
    Chat { messages: Vec<Said>, tools: Vec<Value>, draw: Draw },
    /// To a text.
    Text { text: String, draw: Draw },
    /// To tokens.
    Tokens { tokens: Vec<Token>, draw: Draw },
}

/// Who waits for an answer.
pub(super) enum Asker {
    /// User code, by its call.
    Wire(u64),
    /// A program that speaks HTTP.
    Http(oneshot::Sender<Result<Value, Refusal>>),
}

/// A question with its result.
pub(super) struct Answered {
    pub asker: Asker,
    pub result: Result<Found, Refusal>,
}

/// What came out of a question.
pub(super) enum Found {
    /// An answer of the policy.
    Turn { conversation: Vec<Message>, prompt: Vec<Token>, answer: Sampled, has_tools: bool },
    /// A borrowed adapter.
    Adapter(Borrowed),
    /// Weights made from one.
    Weights(Arc<dyn SamplingBackend>),
    /// Anything else.
    Value(Value),
}
