//! Requests for the policy's next completion, in the two standard forms.
//!
//! Unknown keys are accepted: programs send whatever their library knows.

use super::super::message::{ChatMessage, SamplingOverrides, StopOverride};
use super::super::request::{CompletionRequest, WorkerRequestError};
use super::super::{tool_conversation, tools};
use super::{EndpointCaller, ModelEndpoint, reply};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use minds_core::ids::Token;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CompletionBody {
    model: String,
    messages: Vec<ChatMessage>,
    prompt: Value,
    tools: Option<Vec<Value>>,
    tool_choice: Value,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    n: Option<u32>,
    stop: Value,
    stream: bool,
    stream_options: Value,
}

impl CompletionBody {
    fn draw(&self) -> Result<SamplingOverrides, WorkerRequestError> {
        if self.n.is_some_and(|n| n != 1) {
            return Err(WorkerRequestError::Invalid(
                "n must be 1: each completion needs its own request".into(),
            ));
        }
        let stop = match &self.stop {
            Value::Null => None,
            Value::String(text) => Some(StopOverride::Texts(vec![text.clone()])),
            list => serde_json::from_value::<Vec<String>>(list.clone())
                // In this form the empty list adds nothing to the model's own stop tokens.
                .map(|texts| (!texts.is_empty()).then_some(StopOverride::Texts(texts)))
                .map_err(|_| WorkerRequestError::Invalid("stop must be a text or a list of texts".into()))?,
        };
        Ok(SamplingOverrides {
            max_tokens: self.max_completion_tokens.or(self.max_tokens),
            temperature: self.temperature,
            top_p: self.top_p,
            // In these APIs, -1 or 0 means all tokens.
            top_k: self.top_k.and_then(|k| usize::try_from(k).ok()).filter(|k| *k > 0),
            stop,
            seed: None,
        })
    }
}

pub(super) async fn chat(caller: EndpointCaller, body: Bytes) -> Result<Response, WorkerRequestError> {
    let asked = parse(&body)?;
    if asked.messages.is_empty() {
        return Err(WorkerRequestError::Invalid("messages must not be empty".into()));
    }
    let draw = asked.draw()?;
    let usage = asked.stream_options["include_usage"] == true;
    let forbidden = asked.tool_choice == "none";
    let tools = asked.tools.filter(|_| !forbidden).unwrap_or_default();
    let answer = caller.ask(CompletionRequest::Chat { messages: asked.messages, tools, draw }).await?;
    Ok(if asked.stream {
        reply::stream(&asked.model, &answer, usage)
    } else {
        reply::json(StatusCode::OK, &reply::chat(&asked.model, &answer))
    })
}

pub(super) async fn completions(caller: EndpointCaller, body: Bytes) -> Result<Response, WorkerRequestError> {
    let asked = parse(&body)?;
    if asked.stream {
        return Err(WorkerRequestError::Invalid(
            "completions are not streamed here: use chat/completions".into(),
        ));
    }
    let draw = asked.draw()?;
    let request = match asked.prompt {
        Value::String(text) => CompletionRequest::Text { text, draw },
        tokens => {
            let wrong = |_| WorkerRequestError::Invalid("prompt must be a text or a list of tokens".into());
            CompletionRequest::Tokens {
                tokens: serde_json::from_value::<Vec<Token>>(tokens).map_err(wrong)?,
                draw,
            }
        }
    };
    let answer = caller.ask(request).await?;
    Ok(reply::json(StatusCode::OK, &reply::completion(&asked.model, &answer)))
}

/// The tokens of a conversation or a text.
pub(super) async fn tokenize(
    _: EndpointCaller,
    State(endpoint): State<Arc<ModelEndpoint>>,
    body: Bytes,
) -> Result<Response, WorkerRequestError> {
    let asked = parse(&body)?;
    let tokens = match &asked.prompt {
        Value::String(text) => endpoint.profile.tokenizer.encode(text),
        _ => {
            let tools = asked.tools.unwrap_or_default();
            let renderer = &endpoint.profile.renderer;
            match renderer.tools().filter(|_| tool_conversation::uses_tools(&asked.messages, &tools)) {
                Some(own) => {
                    own.prompt(&tool_conversation::template_messages(&asked.messages, |_| None), &tools)?
                }
                None => renderer.prompt(&tools::messages(&asked.messages, &tools, |_| None))?,
            }
        }
    };
    let found = json!({ "count": tokens.len(), "max_model_len": endpoint.profile.context, "tokens": tokens });
    Ok(reply::json(StatusCode::OK, &found))
}

fn parse(body: &[u8]) -> Result<CompletionBody, WorkerRequestError> {
    serde_json::from_slice(body)
        .map_err(|e| WorkerRequestError::Invalid(format!("the request cannot be read: {e}")))
}
