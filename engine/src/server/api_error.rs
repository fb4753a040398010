//! Answers that say no.
//!
//! Clients take a 400 without `Content-Length` for a fault of a proxy and try it again, so an error always has a body
//! of known length and is never compressed.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use minds_core::service::BackendError;
use minds_tinker::types::{ErrorBody, FailureCategory, JSON, RequestFailed};

/// A request that is not carried out, with its status and the reason.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    pub(super) detail: String,
    /// Whether the rest of the connection is lost with it: something of the request was not read.
    closes_connection: bool,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), closes_connection: false }
    }

    /// The same, given before the request was read to its end.
    pub(super) fn closing_connection(self) -> Self {
        Self { closes_connection: true, ..self }
    }

    /// The request is wrong and will stay so.
    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// What the request is about does not exist.
    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// There is no room at the moment; clients wait and come back.
    pub(super) fn too_many_requests(detail: impl Into<String>) -> Self {
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
        }
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
pub(super) fn request_failed(error: &BackendError) -> RequestFailed {
    let (error, category) = match error {
        BackendError::Rejected(text) | BackendError::Unsupported(text) => (text, FailureCategory::User),
        BackendError::Unavailable(text)
        | BackendError::TimedOut(text)
        | BackendError::Away(text)
        | BackendError::Lost(text) => (text, FailureCategory::Server),
    };
    RequestFailed { error: error.clone(), category }
}
