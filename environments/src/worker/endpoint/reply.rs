//! Responses in the standard forms, whole or as a stream of events.
//!
//! Prompt ids, sampled ids and logprobs stand where client libraries look for them; they are for cross-checks
//! only: training uses the tokens that were recorded on this side.

use super::super::request::WorkerRequestError;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// A value as a response.
pub(super) fn json(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// An error in the form that client libraries read.
pub(super) fn error(status: StatusCode, message: &str) -> Response {
    let kind = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
    let error = json!({ "message": message, "type": kind, "param": null, "code": status.as_u16() });
    json(status, &json!({ "error": error }))
}

impl IntoResponse for WorkerRequestError {
    /// The message must be the first in the body: some releases look for it there.
    fn into_response(self) -> Response {
        let status = match self {
            Self::TooLong { .. } | Self::Invalid(_) | Self::Declined(_) => StatusCode::BAD_REQUEST,
            Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        error(status, &self.to_string())
    }
}

fn usage(answer: &Value) -> Value {
    let count = |key: &str| answer[key].as_array().map_or(0, Vec::len);
    let prompt = count("prompt_tokens");
    let completion = count("tokens");
    json!({ "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion })
}

/// Client libraries treat a completion without any text as an error, and a rollout that ends with an error teaches
/// nothing; a space is a completion that is scored like an empty one.
fn content(answer: &Value) -> Value {
    let has_calls = answer["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty());
    match answer["content"].as_str() {
        Some("") if has_calls => Value::Null,
        Some("") | None => json!(" "),
        Some(text) => json!(text),
    }
}

fn message(answer: &Value) -> Value {
    let mut message = json!({ "role": "assistant", "content": content(answer) });
    if answer["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty()) {
        message["tool_calls"] = answer["tool_calls"].clone();
    }
    message
}

/// One entry per sampled token.
fn logprobs(answer: &Value) -> Value {
    let tokens = answer["tokens"].as_array().into_iter().flatten();
    let logprobs = answer["logprobs"].as_array().into_iter().flatten();
    let entries: Vec<Value> = tokens
        .zip(logprobs)
        .map(|(token, logprob)| {
            json!({ "token": format!("token_id:{token}"), "logprob": logprob, "bytes": null, "top_logprobs": [] })
        })
        .collect();
    json!({ "content": entries, "refusal": null })
}

/// The whole response to a chat request.
pub(super) fn chat(model: &str, answer: &Value) -> Value {
    json!({
        "id": answer["id"],
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{
            "index": 0,
            "message": message(answer),
            "finish_reason": answer["finish"],
            "logprobs": logprobs(answer),
            "token_ids": answer["tokens"],
        }],
        "usage": usage(answer),
        "prompt_token_ids": answer["prompt_tokens"],
    })
}

/// The whole response to a text request.
pub(super) fn completion(model: &str, answer: &Value) -> Value {
    let names: Vec<String> =
        answer["tokens"].as_array().into_iter().flatten().map(|token| format!("token_id:{token}")).collect();
    json!({
        "id": answer["id"],
        "object": "text_completion",
        "created": 0,
        "model": model,
        "choices": [{
            "index": 0,
            "text": content(answer),
            "finish_reason": answer["finish"],
            "logprobs": { "tokens": names, "token_logprobs": answer["logprobs"], "top_logprobs": null, "text_offset": [] },
            "token_ids": answer["tokens"],
            "prompt_token_ids": answer["prompt_tokens"],
        }],
        "usage": usage(answer),
    })
}

/// The response as events: role, content, finish reason, and the usage if requested.
pub(super) fn stream(model: &str, answer: &Value, with_usage: bool) -> Response {
    let chunk = |choices: Value, usage: Value| {
        let mut chunk = json!({
            "id": answer["id"],
            "object": "chat.completion.chunk",
            "created": 0,
            "model": model,
            "choices": choices,
        });
        if with_usage {
            chunk["usage"] = usage;
        }
        format!("data: {chunk}\n\n")
    };
    let choice =
        |delta: Value, finish: &Value| json!([{ "index": 0, "delta": delta, "finish_reason": finish }]);
    let mut said = message(answer);
    if let Some(calls) = said.get_mut("tool_calls").and_then(Value::as_array_mut) {
        for (index, call) in calls.iter_mut().enumerate() {
            call["index"] = json!(index);
        }
    }
    let mut events = vec![
        chunk(choice(json!({ "role": "assistant", "content": "" }), &Value::Null), Value::Null),
        chunk(choice(said, &Value::Null), Value::Null),
        chunk(choice(json!({}), &answer["finish"]), Value::Null),
    ];
    if with_usage {
        events.push(chunk(json!([]), usage(answer)));
    }
    events.push("data: [DONE]\n\n".into());
    ([(header::CONTENT_TYPE, "text/event-stream")], events.concat()).into_response()
}
