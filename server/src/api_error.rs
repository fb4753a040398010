//! Error responses.
//!
//! Clients retry a 400 without `Content-Length`, which they attribute to a proxy, so an error always has a body of
//! known length and is never compressed.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use minds_core::service::{BackendError, DenialReason};
use minds_tinker::types::{ErrorBody, FailureCategory, JSON, RequestFailed};

/// Why a request is refused: HTTP status and reason.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) detail: String,
    /// Whether the connection must close because a part of the request was not read.
    closes_connection: bool,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), closes_connection: false }
    }

    /// The same error, sent before the whole request was read.
    pub(crate) fn closing_connection(self) -> Self {
        Self { closes_connection: true, ..self }
    }

    /// The request is invalid; a retry does not help.
    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// The object that the request names does not exist.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// A limit is reached at the moment; clients wait and retry.
    pub(crate) fn too_many_requests(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, detail)
    }
}

impl From<BackendError> for ApiError {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Rejected(detail) | BackendError::Unsupported(detail) => Self::bad_request(detail),
            BackendError::Unavailable(detail)
            | BackendError::TimedOut(detail)
            | BackendError::Away(detail)
            | BackendError::Lost(detail) => Self::new(StatusCode::SERVICE_UNAVAILABLE, detail),
            BackendError::Denied { reason, detail } => Self::new(denied_status(reason), detail),
        }
    }
}

/// Status by which clients learn what the account behind this server lacks.
fn denied_status(reason: DenialReason) -> StatusCode {
    match reason {
        DenialReason::Key | DenialReason::NoKey => StatusCode::UNAUTHORIZED,
        DenialReason::Credit => StatusCode::PAYMENT_REQUIRED,
        DenialReason::Permission => StatusCode::FORBIDDEN,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&ErrorBody::new(self.detail)).unwrap_or_default();
        let headers = [(header::CONTENT_TYPE, HeaderValue::from_static(JSON))];
        let mut response = (self.status, headers, body).into_response();
        if self.closes_connection {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// How a failed request is reported through its future.
pub(crate) fn request_failed(error: &BackendError) -> RequestFailed {
    let (error, category) = match error {
        BackendError::Rejected(text)
        | BackendError::Unsupported(text)
        | BackendError::Denied { detail: text, .. } => (text, FailureCategory::User),
        BackendError::Unavailable(text)
        | BackendError::TimedOut(text)
        | BackendError::Away(text)
        | BackendError::Lost(text) => (text, FailureCategory::Server),
    };
    RequestFailed { error: error.clone(), category }
}
