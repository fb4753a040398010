//! What a rollout may request, and what it gets. Requests are answered by
//! [`RequestHandler`](super::request_handler::RequestHandler).

use super::message::{ChatMessage, SamplingOverrides};
use minds_core::chat::{Message, PromptError};
use minds_core::environment::AdapterLease;
use minds_core::ids::Token;
use minds_core::reward::RewardError;
use minds_core::sampling::{Completion, SamplingError};
use minds_core::service::{BackendError, SamplingBackend};
use serde_json::Value;
use std::sync::Arc;
use thiserror::Error;
use tokio::sync::oneshot;

/// A request that failed, by what the requester can do about it.
#[derive(Clone, Debug, Error, PartialEq)]
pub(super) enum WorkerRequestError {
    /// The message is the one by which client programs recognize this case.
    #[error(
        "This model's maximum context length is {context} tokens. However, your messages resulted in {tokens} tokens."
    )]
    TooLong { context: usize, tokens: usize },
    #[error("{0}")]
    Invalid(String),
    /// The service does not offer this, or refused it.
    #[error("{0}")]
    Declined(RewardError),
    #[error("{0}")]
    Failed(String),
}

impl From<PromptError> for WorkerRequestError {
    fn from(error: PromptError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<SamplingError> for WorkerRequestError {
    fn from(error: SamplingError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<BackendError> for WorkerRequestError {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Rejected(_) | BackendError::Unsupported(_) => Self::Declined(error.into()),
            BackendError::Unavailable(_)
            | BackendError::TimedOut(_)
            | BackendError::Away(_)
            | BackendError::Lost(_)
            | BackendError::Denied { .. } => Self::Failed(error.to_string()),
        }
    }
}

impl From<RewardError> for WorkerRequestError {
    fn from(error: RewardError) -> Self {
        match error {
            RewardError::Service(_) | RewardError::Away(_) => Self::Failed(error.to_string()),
            RewardError::Unsupported(_) | RewardError::Refused(_) => Self::Declined(error),
            _ => Self::Invalid(error.to_string()),
        }
    }
}

/// A request for the policy's next completion.
#[derive(Debug)]
pub(super) enum CompletionRequest {
    /// Prompt given as a conversation.
    Chat { messages: Vec<ChatMessage>, tools: Vec<Value>, draw: SamplingOverrides },
    /// Prompt given as plain text.
    Text { text: String, draw: SamplingOverrides },
    /// Prompt given as tokens.
    Tokens { tokens: Vec<Token>, draw: SamplingOverrides },
}

/// Where the response goes.
pub(super) enum Requester {
    /// User code, by its call id.
    Worker(u64),
    /// A program that speaks HTTP.
    Http(oneshot::Sender<Result<Value, WorkerRequestError>>),
}

/// A finished request with its result.
pub(super) struct CompletedRequest {
    pub requester: Requester,
    pub result: Result<RequestOutput, WorkerRequestError>,
}

/// Tools of a request for a completion.
#[derive(Debug)]
pub(super) enum OfferedTools {
    /// The request offers no tools.
    None,
    /// They are described in ordinary messages.
    InMessages,
    /// They have the form of the model's chat template.
    InTemplate(Vec<Value>),
}

/// Output of a successful request.
pub(super) enum RequestOutput {
    /// A completion of the policy.
    Turn { conversation: Vec<Message>, prompt: Vec<Token>, answer: Completion, tools: OfferedTools },
    /// A leased shadow adapter.
    Adapter(AdapterLease),
    /// Weights exported from a leased adapter.
    Weights(Arc<dyn SamplingBackend>),
    /// Any other output, as JSON.
    Value(Value),
}
