//! Failures of the client, by what the caller can do.

use minds_core::service::BackendError;
use std::time::Duration;
use thiserror::Error;

/// Why there is no answer.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ClientError {
    /// The options are wrong: change them.
    #[error("{0}")]
    Options(String),
    /// The key is missing, wrong or not allowed to do this: get another.
    #[error("{what} was denied (status {status}): {detail}")]
    Denied {
        /// What was asked for.
        what: String,
        /// The answer's status.
        status: u16,
        /// What the server said.
        detail: String,
    },
    /// The request is wrong: it was not sent, or the server refused it. Never retried.
    #[error("{what}: {detail}")]
    Rejected {
        /// What was asked for.
        what: String,
        /// What is wrong.
        detail: String,
    },
    /// The server does not offer this: do without.
    #[error("{what} is not offered: {detail}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What the server said.
        detail: String,
    },
    /// The request was executed and failed on the server's side: another one may succeed.
    #[error("{what} failed on the server: {detail}")]
    Failed {
        /// What was asked for.
        what: String,
        /// What the server said.
        detail: String,
    },
    /// The server answers, and what it answers makes no sense, however often it is asked for.
    #[error("the answer to {what} is unreadable: {detail}")]
    Unreadable {
        /// What was asked for.
        what: String,
        /// What is wrong with it.
        detail: String,
    },
    /// There is no telling whether the request was carried out, and to ask for it once more could carry it out twice. If
    /// it changes the model: resume from the last saved state.
    #[error("{what} may have been carried out or not: {detail}")]
    InDoubt {
        /// What was asked for.
        what: String,
        /// Why nobody knows.
        detail: String,
    },
    /// The server answers, and the result is not there after the time that it may take.
    #[error("waited {}s for {what}, which did not come in {attempts} attempts; the last one: {why}", waited.as_secs())]
    TimedOut {
        /// What was waited for.
        what: String,
        /// How long.
        waited: Duration,
        /// How often it was asked for.
        attempts: u32,
        /// What happened last.
        why: String,
    },
    /// The server did not answer, or refused for load, for the longest that it is waited for. That limit is one for all
    /// requests: a higher layer that retries would wait for it again.
    #[error(
        "{what}: the server has not answered for {}s, as long as it is waited for, in {attempts} attempts; the last one: {why}",
        waited.as_secs()
    )]
    Unreachable {
        /// What was asked for.
        what: String,
        /// How long the server has not answered.
        waited: Duration,
        /// How often it was asked for.
        attempts: u32,
        /// What happened last.
        why: String,
    },
    /// The session, the model or the order of its requests is lost: make a new one from the last saved state.
    #[error("{what} is lost: {detail}")]
    Lost {
        /// What is gone.
        what: String,
        /// How that is known.
        detail: String,
    },
}

impl ClientError {
    pub(super) fn rejected(what: &str, detail: impl Into<String>) -> Self {
        Self::Rejected { what: what.into(), detail: detail.into() }
    }

    /// Whether the server may or may not have what the request wanted to put into the order of its model: what follows
    /// would run without it, so that nothing may follow.
    pub(super) fn breaks_order(&self) -> bool {
        match self {
            Self::Failed { .. }
            | Self::Unreadable { .. }
            | Self::InDoubt { .. }
            | Self::TimedOut { .. }
            | Self::Unreachable { .. }
            | Self::Lost { .. } => true,
            Self::Options(_) | Self::Denied { .. } | Self::Rejected { .. } | Self::Unsupported { .. } => {
                false
            }
        }
    }

    /// The same about a change of the model that the server had taken in.
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

impl From<ClientError> for BackendError {
    fn from(error: ClientError) -> Self {
        let text = error.to_string();
        match error {
            ClientError::Options(_) | ClientError::Rejected { .. } => Self::Rejected(text),
            ClientError::Unsupported { .. } => Self::Unsupported(text),
            ClientError::Failed { .. } | ClientError::Unreadable { .. } => Self::Unavailable(text),
            ClientError::TimedOut { .. } => Self::TimedOut(text),
            ClientError::Unreachable { .. } => Self::Away(text),
            ClientError::Denied { .. } | ClientError::Lost { .. } | ClientError::InDoubt { .. } => {
                Self::Lost(text)
            }
        }
    }
}
