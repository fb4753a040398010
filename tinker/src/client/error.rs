//! Errors of the client, by what the caller can do about them.

use minds_core::service::{BackendError, DenialReason};
use std::time::Duration;
use thiserror::Error;

/// Why a request has no result.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ClientError {
    /// The options are wrong: change them.
    #[error("{0}")]
    Options(String),
    /// The API key is missing, wrong or lacks permission, or the account has no credit: a person must act.
    #[error("{what} was denied (status {status}): {detail}")]
    Denied {
        /// Operation that was requested, for messages.
        what: String,
        /// HTTP status of the response.
        status: u16,
        /// Error message of the server.
        detail: String,
    },
    /// The source of the API key gave none, so that the request was not sent: a person must act.
    #[error("{what} was not sent: {detail}")]
    NoKey {
        /// Operation that was requested, for messages.
        what: String,
        /// The source of the key, and what is wrong with it.
        detail: String,
    },
    /// The request is invalid: it was not sent, or the server rejected it. Never retried.
    #[error("{what}: {detail}")]
    Rejected {
        /// Operation that was requested, for messages.
        what: String,
        /// Explanation of what is invalid.
        detail: String,
    },
    /// The server does not support this operation.
    #[error("{what} is not offered: {detail}")]
    Unsupported {
        /// Operation that was requested, for messages.
        what: String,
        /// Error message of the server.
        detail: String,
    },
    /// The request was executed and failed on the server: another one may succeed.
    #[error("{what} failed on the server: {detail}")]
    Failed {
        /// Operation that was requested, for messages.
        what: String,
        /// Error message of the server.
        detail: String,
    },
    /// The server responds, but the response stays unreadable over all attempts.
    #[error("the answer to {what} is unreadable: {detail}")]
    Unreadable {
        /// Operation that was requested, for messages.
        what: String,
        /// Explanation of what is unreadable.
        detail: String,
    },
    /// It is unknown whether the request was executed, and a retry could execute it twice. If it changes the model:
    /// resume from the last checkpoint.
    #[error("{what} may have been carried out or not: {detail}")]
    InDoubt {
        /// Operation that was requested, for messages.
        what: String,
        /// Why the outcome is unknown.
        detail: String,
    },
    /// The server responds, but the result is not ready within its time limit.
    #[error("{what} had no result after {}s and {attempts} attempts; the last one: {why}", waited.as_secs())]
    TimedOut {
        /// Operation whose result was awaited.
        what: String,
        /// Time that the client waited.
        waited: Duration,
        /// Number of attempts that were made.
        attempts: u32,
        /// Error of the last attempt.
        why: String,
    },
    /// The server did not respond, or was overloaded, for the whole outage limit. All requests share that limit: a
    /// higher layer that retries would wait for it again.
    #[error(
        "{what}: the server has not answered for {}s (the limit), {attempts} attempts; the last one: {why}",
        waited.as_secs()
    )]
    Unreachable {
        /// Operation that was requested, for messages.
        what: String,
        /// Time since the server last responded.
        waited: Duration,
        /// Number of attempts that were made.
        attempts: u32,
        /// Error of the last attempt.
        why: String,
        /// Whether the server answered every attempt that it is too busy to take the request.
        refused: bool,
    },
    /// The session, the model or the order of its requests is lost: create a new one from the last checkpoint.
    #[error("{what} is lost: {detail}")]
    Lost {
        /// Name of the lost object, for messages.
        what: String,
        /// How the client detected the loss.
        detail: String,
    },
}

impl ClientError {
    /// What the account lacks, if the server denied the request or there is no key for it.
    #[must_use]
    pub fn denial(&self) -> Option<DenialReason> {
        match self {
            Self::Denied { status, .. } => Some(denial_reason(*status)),
            Self::NoKey { .. } => Some(DenialReason::NoKey),
            _ => None,
        }
    }

    pub(super) fn rejected(what: &str, detail: impl Into<String>) -> Self {
        Self::Rejected { what: what.into(), detail: detail.into() }
    }

    /// Whether it is unknown if the server has the request in the order of its model. Later requests could run without
    /// it, so they are not sent. One that does not change the model may be missing: then only its number matters.
    pub(super) fn breaks_order(&self, changes: bool) -> bool {
        match self {
            Self::Failed { .. } | Self::Unreadable { .. } | Self::TimedOut { .. } => true,
            Self::InDoubt { .. } | Self::Lost { .. } => changes,
            Self::Unreachable { refused, .. } => changes || !refused,
            Self::Options(_)
            | Self::Denied { .. }
            | Self::NoKey { .. }
            | Self::Rejected { .. }
            | Self::Unsupported { .. } => false,
        }
    }

    /// Whether the server has not taken the number of the request, which then belongs to the next one: a server that
    /// runs requests in the order of their numbers would wait for it.
    pub(super) fn leaves_number(&self) -> bool {
        matches!(self, Self::Denied { .. } | Self::NoKey { .. } | Self::Unreachable { refused: true, .. })
    }

    /// Converts the error of an accepted request that changes the model.
    pub(super) fn for_model_change(self, what: &str) -> Self {
        match self {
            Self::TimedOut { .. } | Self::Unreachable { .. } | Self::Unreadable { .. } => {
                Self::InDoubt { what: what.into(), detail: self.to_string() }
            }
            known => known,
        }
    }

    pub(super) fn lost(what: &str, detail: impl Into<String>) -> Self {
        Self::Lost { what: what.into(), detail: detail.into() }
    }
}

fn denial_reason(status: u16) -> DenialReason {
    match status {
        402 => DenialReason::Credit,
        403 => DenialReason::Permission,
        _ => DenialReason::Key,
    }
}

impl From<ClientError> for BackendError {
    fn from(error: ClientError) -> Self {
        let text = error.to_string();
        match error {
            ClientError::Options(_) | ClientError::Rejected { .. } => Self::Rejected(text),
            ClientError::Unsupported { .. } => Self::Unsupported(text),
            ClientError::Failed { .. } | ClientError::Unreadable { .. } => Self::Unavailable(text),
            ClientError::TimedOut { .. } => Self::TimedOut(text),
            ClientError::Unreachable { .. } => Self::Away(text),
            ClientError::NoKey { .. } => Self::Denied { reason: DenialReason::NoKey, detail: text },
            ClientError::Denied { status, .. } => {
                Self::Denied { reason: denial_reason(status), detail: text }
            }
            ClientError::Lost { .. } | ClientError::InDoubt { .. } => Self::Lost(text),
        }
    }
}
