//! Results of requests, encoded in the format that the client accepts.

use crate::api_error::request_failed;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use minds_core::sampling::SampleResponse;
use minds_core::service::{BackendError, ForwardOutput};
use minds_tinker::convert;
use minds_tinker::types::{JSON, PROTOBUF, RequestFailed};
use prost::Message;
use serde::Serialize;

/// Result or failure of a request.
#[derive(Debug, PartialEq)]
pub(crate) enum RequestOutcome {
    /// A result that has only a JSON format.
    Json(Bytes),
    /// Losses and logprobs of a pass.
    Pass(ForwardOutput),
    /// Completions of a sample request, with their logprobs.
    Sample(SampleResponse),
    /// The reason why the request failed.
    Failed(RequestFailed),
}

/// Encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFormat {
    Json,
    Protobuf,
}

impl RequestOutcome {
    /// A result with only a JSON format.
    pub(crate) fn json(result: &impl Serialize) -> Self {
        match serde_json::to_vec(result) {
            Ok(body) => Self::Json(body.into()),
            Err(error) => Self::failed(&BackendError::Lost(format!("the result cannot be written: {error}"))),
        }
    }

    pub(crate) fn failed(error: &BackendError) -> Self {
        Self::Failed(request_failed(error))
    }

    /// Approximate memory that it takes, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let numbers = match self {
            Self::Json(body) => body.len() / 4,
            Self::Pass(forward) => forward.logprobs.iter().map(|lps| lps.len() + 6).sum(),
            Self::Sample(response) => {
                let topk = |lists: usize, k: usize| lists * (2 * k + 6);
                let prompt = response.prompt_logprobs.as_ref().map_or(0, |lps| 2 * lps.len())
                    + response.topk_prompt_logprobs.as_ref().map_or(0, |lists| {
                        topk(lists.len(), lists.iter().flatten().map(Vec::len).max().unwrap_or(0))
                    });
                let targets =
                    response.target_prompt_logprobs.as_ref().map_or(0, |targets| targets.logprobs.len());
                let samples = response.sequences.iter().map(|s| {
                    let lists = s.topk.as_deref().unwrap_or_default();
                    2 * s.tokens.len() + 24 + topk(lists.len(), lists.first().map_or(0, Vec::len))
                });
                prompt + targets + samples.sum::<usize>()
            }
            Self::Failed(failed) => failed.error.len() / 4,
        };
        256 + 4 * numbers
    }

    /// HTTP response to a poll. Failures and small results are JSON in either format.
    pub(crate) fn answer(&self, format: BodyFormat) -> Response {
        match (self, format) {
            (Self::Json(body), _) => body_of(JSON, body.clone()),
            (Self::Failed(failed), _) => json(failed),
            (Self::Pass(forward), BodyFormat::Protobuf) => protobuf(&convert::forward_to_proto(forward)),
            (Self::Pass(forward), BodyFormat::Json) => json(&convert::forward_to_json(forward)),
            (Self::Sample(response), BodyFormat::Protobuf) => {
                protobuf(&convert::sample_response_to_proto(response))
            }
            (Self::Sample(response), BodyFormat::Json) => json(&convert::sample_response_to_json(response)),
        }
    }
}

/// A JSON response with status 200.
pub(crate) fn json(answer: &impl Serialize) -> Response {
    match serde_json::to_vec(answer) {
        Ok(body) => body_of(JSON, body.into()),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn protobuf(message: &impl Message) -> Response {
    body_of(PROTOBUF, message.encode_to_vec().into())
}

fn body_of(format: &'static str, body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static(format))], body).into_response()
}
