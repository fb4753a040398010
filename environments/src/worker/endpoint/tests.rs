//! The endpoint as a program sees it: bytes over a connection.

use super::*;
use crate::render;
use crate::worker::message::{SamplingOverrides, StopOverride};
use minds_core::chat::Tokenizer;
use minds_core::ids::Token;
use minds_core::sampling::SamplingParams;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// One token per byte.
struct Bytes;

impl Tokenizer for Bytes {
    fn encode(&self, text: &str) -> Vec<Token> {
        text.bytes().map(Token::from).collect()
    }
    fn control(&self, _: &str) -> Option<Token> {
        None
    }
    fn decode(&self, tokens: &[Token]) -> String {
        tokens.iter().map(|token| char::from(*token as u8)).collect()
    }
    fn vocab(&self) -> usize {
        256
    }
    fn stop_tokens(&self) -> Vec<Token> {
        vec![0]
    }
    fn bos(&self) -> Option<Token> {
        None
    }
}

const TOKEN: &str = "shown by the process";

async fn open() -> Arc<ModelEndpoint> {
    let tokenizer = Arc::new(Bytes);
    let renderer = render::renderer("role_colon", tokenizer.clone()).unwrap();
    let sampling = SamplingParams::plain(8);
    let base_model = "test/model".into();
    ModelEndpoint::open(Arc::new(ModelProfile { renderer, tokenizer, sampling, context: 100, base_model }))
        .await
        .unwrap()
}

/// Status and body of one request.
async fn send(
    endpoint: &ModelEndpoint,
    token: &str,
    method: &str,
    path: &str,
    body: &Value,
) -> (u16, String) {
    send_with(endpoint, &format!("host: localhost\r\nauthorization: Bearer {token}"), method, path, body)
        .await
}

/// Status and body of one request with these headers.
async fn send_with(
    endpoint: &ModelEndpoint,
    headers: &str,
    method: &str,
    path: &str,
    body: &Value,
) -> (u16, String) {
    let mut stream = TcpStream::connect(endpoint.guard.bound()).await.unwrap();
    let body = body.to_string();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{headers}\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn answer() -> Value {
    json!({
        "id": "r-0", "prompt_tokens": [1, 2, 3], "tokens": [104, 105], "logprobs": [-0.5, -0.25],
        "content": "hi", "tool_calls": [], "finish": "stop", "text": "hi",
    })
}

/// Sends while the rollout `r` answers its one question.
async fn ask(
    path: &str,
    body: Value,
    result: Result<Value, WorkerRequestError>,
) -> (u16, String, CompletionRequest) {
    let endpoint = open().await;
    let mut calls = endpoint.register("r", TOKEN);
    let serving = async {
        let (request, answer) = calls.recv().await.unwrap();
        answer.send(result).unwrap();
        request
    };
    let path = format!("/r/r{path}");
    let sending = send(&endpoint, TOKEN, "POST", &path, &body);
    let ((status, body), request) = tokio::join!(sending, serving);
    (status, body, request)
}

#[tokio::test]
async fn a_conversation_is_answered_with_its_tokens_and_logprobs() {
    let body = json!({
        "model": "m", "messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 5, "max_tokens": 9,
        "temperature": 0.5, "top_k": -1, "stop": "x", "n": 1, "logprobs": true, "return_token_ids": true, "user": "who",
    });
    let (status, body, request) = ask("/v1/chat/completions", body, Ok(answer())).await;
    let CompletionRequest::Chat { messages, tools, draw } = request else { panic!("{request:?}") };
    assert_eq!((messages[0].content.as_str(), tools.len()), (Some("hello"), 0));
    let expected = SamplingOverrides {
        max_tokens: Some(5),
        temperature: Some(0.5),
        stop: Some(StopOverride::Texts(vec!["x".into()])),
        ..SamplingOverrides::default()
    };
    assert_eq!(draw, expected);
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 200);
    assert_eq!(
        (&body["id"], &body["model"], &body["prompt_token_ids"]),
        (&json!("r-0"), &json!("m"), &json!([1, 2, 3]))
    );
    let choice = &body["choices"][0];
    assert_eq!(
        (&choice["message"], &choice["finish_reason"]),
        (&json!({"role": "assistant", "content": "hi"}), &json!("stop"))
    );
    assert_eq!(choice["token_ids"], json!([104, 105]));
    assert_eq!(choice["logprobs"]["content"][1]["logprob"], -0.25);
    assert_eq!(body["usage"], json!({"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}));
}

#[tokio::test]
async fn an_empty_completion_is_a_space_and_tool_calls_have_no_text() {
    let messages = json!({"messages": [{"role": "user", "content": "hello"}]});
    let mut silent = answer();
    silent["content"] = json!("");
    let (_, body, _) = ask("/v1/chat/completions", messages.clone(), Ok(silent.clone())).await;
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["choices"][0]["message"]["content"], " ");
    silent["tool_calls"] =
        json!([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]);
    let (_, body, _) = ask("/v1/chat/completions", messages, Ok(silent)).await;
    let message = &serde_json::from_str::<Value>(&body).unwrap()["choices"][0]["message"];
    assert_eq!((&message["content"], &message["tool_calls"][0]["id"]), (&Value::Null, &json!("c")));
}

#[tokio::test]
async fn a_stream_is_whole_events_with_its_usage_and_its_end() {
    let body = json!({"messages": [{"role": "user", "content": "x"}], "stream": true, "stream_options": {"include_usage": true}});
    let (status, body, _) = ask("/v1/chat/completions", body, Ok(answer())).await;
    assert_eq!(status, 200);
    let events: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    let (end, chunks) = events.split_last().unwrap();
    assert_eq!(*end, "[DONE]");
    let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    let text: String = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, "hi");
    assert!(chunks.iter().all(|c| c["id"] == "r-0" && c["object"] == "chat.completion.chunk"));
    assert_eq!(chunks[2]["choices"][0]["finish_reason"], "stop");
    assert_eq!((&chunks[3]["choices"], &chunks[3]["usage"]["total_tokens"]), (&json!([]), &json!(5)));
}

#[tokio::test]
async fn texts_and_tokens_are_completed() {
    let (_, body, request) = ask("/v1/completions", json!({"prompt": "2+2="}), Ok(answer())).await;
    assert!(matches!(request, CompletionRequest::Text { text, .. } if text == "2+2="));
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&body["choices"][0]["text"], &body["choices"][0]["logprobs"]["token_logprobs"]),
        (&json!("hi"), &json!([-0.5, -0.25]))
    );
    let (_, _, request) = ask("/v1/completions", json!({"prompt": [1, 2]}), Ok(answer())).await;
    assert!(matches!(request, CompletionRequest::Tokens { tokens, .. } if tokens == [1, 2]));
}

#[tokio::test]
async fn refusals_have_the_status_and_text_that_clients_expect() {
    let body = || json!({"messages": [{"role": "user", "content": "x"}]});
    let too_long = WorkerRequestError::TooLong { context: 100, tokens: 120 };
    let (status, text, _) = ask("/v1/chat/completions", body(), Err(too_long)).await;
    assert_eq!(status, 400);
    assert!(
        text.starts_with("{\"error\":{\"message\":\"This model's maximum context length is 100 tokens."),
        "{text}"
    );
    let (status, text, _) =
        ask("/v1/chat/completions", body(), Err(WorkerRequestError::Failed("away".into()))).await;
    assert_eq!((status, text.contains("\"server_error\"")), (500, true));
}

#[tokio::test]
async fn requests_need_the_token_of_a_rollout_in_progress() {
    let endpoint = open().await;
    let body = json!({"messages": [{"role": "user", "content": "x"}]});
    let path = "/r/r/v1/chat/completions";
    let (status, text) = send(&endpoint, TOKEN, "POST", path, &body).await;
    assert_eq!((status, text.contains("the rollout r is over")), (400, true));
    let calls = endpoint.register("r", TOKEN);
    let other = endpoint.register("other", "another process");
    for wrong in ["", "x", &TOKEN[1..], "another process"] {
        for (method, path) in [("POST", path), ("GET", "/r/r/v1/models"), ("POST", "/r/r/tokenize")] {
            assert_eq!(send(&endpoint, wrong, method, path, &body).await.0, 401, "{wrong} {path}");
        }
    }
    assert_eq!(send(&endpoint, TOKEN, "GET", "/r/other/v1/models", &body).await.0, 401);
    endpoint.unregister("other");
    drop(other);
    let (status, text) = send(&endpoint, TOKEN, "POST", "/r/r/v1/embeddings", &body).await;
    assert_eq!((status, text.contains("\"error\"")), (404, true), "{text}");
    for (wrong, words) in [
        (json!({"messages": []}), "must not be empty"),
        (json!({"messages": [{"role": "user"}], "n": 2}), "n must be 1"),
        (json!({"messages": 3}), "cannot be read"),
        (json!({"messages": [{"role": "user"}], "stop": 3}), "stop must be"),
    ] {
        let (status, text) = send(&endpoint, TOKEN, "POST", path, &wrong).await;
        assert_eq!((status, text.contains(words)), (400, true), "{text}");
    }
    endpoint.unregister("r");
    drop(calls);
    assert_eq!(send(&endpoint, TOKEN, "POST", path, &body).await.0, 400);
}

#[tokio::test]
async fn a_page_of_a_browser_is_refused_even_with_the_token() {
    let endpoint = open().await;
    let _calls = endpoint.register("r", TOKEN);
    for (headers, status) in [
        ("host: 127.0.0.1", 200),
        ("host: evil.example", 421),
        ("host: 127.0.0.1\r\norigin: http://evil.example", 403),
    ] {
        let headers = format!("{headers}\r\nauthorization: Bearer {TOKEN}");
        let (found, text) = send_with(&endpoint, &headers, "GET", "/r/r/v1/models", &json!({})).await;
        assert_eq!(found, status, "{headers}: {text}");
    }
}

#[tokio::test]
async fn models_and_token_counts_are_reported() {
    let endpoint = open().await;
    let _calls = endpoint.register("r", TOKEN);
    let (_, text) = send(&endpoint, TOKEN, "GET", "/r/r/v1/models", &json!({})).await;
    let card = &serde_json::from_str::<Value>(&text).unwrap()["data"][0];
    assert_eq!((&card["id"], &card["max_model_len"]), (&json!("test/model"), &json!(100)));
    let (_, text) = send(&endpoint, TOKEN, "POST", "/r/r/tokenize", &json!({"prompt": "ab"})).await;
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["tokens"], json!([97, 98]));
    let body = json!({"messages": [{"role": "user", "content": "ab"}]});
    let (_, text) = send(&endpoint, TOKEN, "POST", "/r/r/v1/tokenize", &body).await;
    // The prompt is `User: ab`, two line breaks and `Assistant:`.
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["count"], "User: ab\n\nAssistant:".len());
}
