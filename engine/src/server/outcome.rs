//! Results, written in the form that their reader asks for.

use super::refusal::failure;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use minds_core::backend::{BackendError, Forward};
use minds_core::sampling::SampleResponse;
use minds_tinker::convert;
use minds_tinker::types::{JSON, PROTOBUF, RequestFailed};
use prost::Message;
use serde::Serialize;

/// What came of a request.
#[derive(Debug, PartialEq)]
pub(super) enum Outcome {
    /// A result that has only a JSON form.
    Json(Bytes),
    /// Losses and log-probs of a pass.
    Pass(Forward),
    /// Samples.
    Sample(SampleResponse),
    /// It failed.
    Failed(RequestFailed),
}

/// The form of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    Protobuf,
}

impl Outcome {
    /// A result with only a JSON form.
    pub(super) fn json(result: &impl Serialize) -> Self {
        match serde_json::to_vec(result) {
            Ok(body) => Self::Json(body.into()),
            Err(error) => Self::failed(&BackendError::Lost(format!("the result cannot be written: {error}"))),
        }
    }

    pub(super) fn failed(error: &BackendError) -> Self {
        Self::Failed(failure(error))
    }

    /// About how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let numbers = match self {
            Self::Json(body) => body.len() / 4,
            Self::Pass(forward) => forward.logprobs.iter().map(|lps| lps.len() + 6).sum(),
            Self::Sample(response) => {
                let topk = |lists: usize, k: usize| lists * (2 * k + 6);
                let prompt = response.prompt_logprobs.as_ref().map_or(0, |lps| 2 * lps.len())
                    + response.topk_prompt_logprobs.as_ref().map_or(0, |lists| {
                        topk(lists.len(), lists.iter().flatten().map(Vec::len).max().unwrap_or(0))
                    });
                let samples = response.sequences.iter().map(|s| {
                    let lists = s.topk.as_deref().unwrap_or_default();
                    2 * s.tokens.len() + 24 + topk(lists.len(), lists.first().map_or(0, Vec::len))
                });
                prompt + samples.sum::<usize>()
            }
            Self::Failed(failed) => failed.error.len() / 4,
        };
        256 + 4 * numbers
    }

    /// The answer to a poll. Failures and small results are JSON in either form.
    pub(super) fn answer(&self, form: Form) -> Response {
        match (self, form) {
            (Self::Json(body), _) => body_of(JSON, body.clone()),
            (Self::Failed(failed), _) => json(failed),
            (Self::Pass(forward), Form::Protobuf) => protobuf(&convert::forward_to_proto(forward)),
            (Self::Pass(forward), Form::Json) => json(&convert::forward_to_json(forward)),
            (Self::Sample(response), Form::Protobuf) => {
                protobuf(&convert::sample_response_to_proto(response))
            }
            (Self::Sample(response), Form::Json) => json(&convert::sample_response_to_json(response)),
        }
    }
}

/// An answer in JSON.
pub(super) fn json(answer: &impl Serialize) -> Response {
    match serde_json::to_vec(answer) {
        Ok(body) => body_of(JSON, body.into()),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn protobuf(message: &impl Message) -> Response {
    body_of(PROTOBUF, message.encode_to_vec().into())
}

fn body_of(form: &'static str, body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static(form))], body).into_response()
}
