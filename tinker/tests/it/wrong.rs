//! Answers that are wrong: too large, unreadable, impossible, or announced for ever.

use crate::kit::server::{Kind, Scripted, Server};
use crate::kit::{MODEL, datum, limits, options};
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::sampling::{SampleRequest, SamplingParams};
use minds_core::service::BackendError;
use minds_tinker::client::{Client, ClientError, ClientOptions, Secret, TrainingClient};
use minds_tinker::types::{ClientConfig, JSON, LoraConfig, PROTOBUF};
use minds_tinker::{RemoteOptions, RemoteService};
use serde_json::json;
use std::sync::Arc;

const KEY: &str = "tml-open-sesame";

async fn trained(change: impl FnOnce(&mut ClientOptions)) -> (Arc<Server>, Client, TrainingClient) {
    let server = Server::start(Kind { early_polls: 0, ..Kind::default() }).await;
    let mut options = options(&server.url);
    change(&mut options);
    let client = Client::connect(&options).await.unwrap();
    let training = client.create_training(MODEL, LoraConfig::default(), limits()).await.unwrap();
    (server, client, training)
}

fn result(kind: &str, body: Vec<u8>) -> Scripted {
    let headers = vec![("content-type", kind.to_owned())];
    Scripted { path: "retrieve_future", status: 200, headers, body }
}

fn script(server: &Server, times: usize, kind: &str, body: &[u8]) {
    let mut script = server.script.lock().unwrap();
    script.extend((0..times).map(|_| result(kind, body.to_vec())));
}

fn request() -> SampleRequest {
    SampleRequest::new(Arc::new([1, 2, 3]), 1, SamplingParams { seed: Some(1), ..SamplingParams::plain(2) })
}

/// A pass that may have been trained must not be called refused: the caller would train on with its gradients inside.
#[tokio::test]
async fn a_pass_with_an_unreadable_result_is_retried_and_then_in_doubt() {
    let short = json!({"loss_fn_output_type": "ArrayRecord", "metrics": {},
        "loss_fn_outputs": [{"logprobs": {"data": [-1.0], "dtype": "float32"}}]});
    let short = short.to_string().into_bytes();
    for (kind, body) in [(PROTOBUF, &b"\xff\xff\xff"[..]), (JSON, &short), (JSON, br#"{"metrics": "x"}"#)] {
        let (server, _client, training) = trained(|_| {}).await;
        script(&server, 2, kind, body);
        let pass = || training.forward_backward(vec![datum(&[1, 2, 3])], Loss::CrossEntropy);
        pass().await.unwrap();
        assert_eq!(server.asked("forward_backward"), 1, "it was asked for again, not sent again");
        script(&server, 50, kind, body);
        let error = pass().await.unwrap_err();
        assert!(matches!(&error, ClientError::InDoubt { .. }), "{error:?}");
        assert!(error.to_string().contains("may have been carried out"), "{error}");
        assert!(matches!(BackendError::from(error), BackendError::Lost(_)));
    }
}

#[tokio::test]
async fn a_step_whose_result_never_arrives_is_in_doubt_and_a_sample_is_not() {
    let (server, client, training) = trained(|o| {
        let short = std::time::Duration::from_millis(30);
        (o.timeouts.training, o.timeouts.outage) = (short, short);
    })
    .await;
    for _ in 0..1000 {
        server.script("retrieve_future", 503, "away");
    }
    let error = training.optim_step(AdamParams::default()).await.unwrap_err();
    assert!(matches!(&error, ClientError::InDoubt { .. }), "{error:?}");
    server.script.lock().unwrap().clear();
    let sampler = client.base_sampler(MODEL, limits()).await.unwrap();
    script(&server, 50, PROTOBUF, b"\xff\xff\xff");
    let error = sampler.sample(&request()).await.unwrap_err();
    assert!(BackendError::from(error).is_retryable());
}

#[tokio::test]
async fn an_answer_has_a_bound_also_unpacked() {
    let (server, client, training) = trained(|o| {
        (o.max_result_bytes, o.max_answer_bytes) = (2 << 20, 1 << 20);
    })
    .await;
    let bomb = zstd::encode_all(&vec![b' '; 8 << 20][..], 0).unwrap();
    assert!(bomb.len() < 10_000);
    let packed = |path| {
        let headers = vec![("content-encoding", "zstd".to_owned())];
        Scripted { path, status: 200, headers, body: bomb.clone() }
    };
    for _ in 0..8 {
        server.script.lock().unwrap().push_back(packed("get_server_capabilities"));
    }
    let error = client.capabilities().await.unwrap_err();
    assert!(error.to_string().contains("more than 1048576 bytes"), "{error}");
    for _ in 0..8 {
        server.script.lock().unwrap().push_back(packed("retrieve_future"));
    }
    let error = training.optim_step(AdamParams::default()).await.unwrap_err();
    assert!(error.to_string().contains("more than 2097152 bytes"), "{error}");
}

#[tokio::test]
async fn a_result_that_is_only_announced_times_out() {
    let (server, _client, training) = trained(|_| {}).await;
    script(&server, 1000, JSON, br#"{"status":"complete_metadata","response_payload_size":1}"#);
    let before = server.asked("retrieve_future");
    let error = training.forward_backward(vec![datum(&[1, 2, 3])], Loss::CrossEntropy).await.unwrap_err();
    assert!(error.to_string().contains("announced"), "{error}");
    assert_eq!(server.asked("retrieve_future") - before, 9, "one may come first, eight others make no sense");
}

#[tokio::test]
async fn an_unreadable_answer_is_named_with_its_beginning() {
    let server = Server::start(Kind::default()).await;
    for _ in 0..8 {
        server.script("create_session", 200, "<html><title>Please log in</title></html>");
    }
    let error = Client::connect(&options(&server.url)).await.map(|_| ()).unwrap_err();
    let expected = "the answer to a session is unreadable: status 200, \"<html><title>Please log in";
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[tokio::test]
async fn invalid_paths_are_not_recorded() {
    for path in [
        "",
        "/etc/passwd",
        "https://elsewhere/x",
        "tinker://a/weights/..",
        "tinker://a/weights/b?c",
        "tinker://a/b\nc",
    ] {
        let (server, _client, training) = trained(|_| {}).await;
        let saved = json!({"path": path}).to_string();
        script(&server, 1, JSON, saved.as_bytes());
        let error = training.save_state("a").await.unwrap_err();
        assert!(matches!(error, ClientError::Unreadable { .. }), "{path} {error:?}");
        script(&server, 1, JSON, saved.as_bytes());
        let error = training.sampler(Some("b")).await.map(|_| ()).unwrap_err();
        assert!(matches!(error, ClientError::Unreadable { .. }), "{path} {error:?}");
    }
}

#[tokio::test]
async fn unrequested_samples_are_a_named_server_error() {
    let (server, client, _training) = trained(|_| {}).await;
    let sampler = client.base_sampler(MODEL, limits()).await.unwrap();
    for (tokens, logprobs, word) in [
        (json!([1, 64]), json!([-1.0, -1.0]), "vocabulary of 64"),
        (json!([1, 2, 3]), json!([-1.0, -1.0, -1.0]), "3 tokens, 2 were"),
        (json!([1]), json!([0.5]), "logprob of 0.5"),
    ] {
        let sample =
            json!({"sequences": [{"stop_reason": "length", "tokens": tokens, "logprobs": logprobs}]});
        script(&server, 1, JSON, sample.to_string().as_bytes());
        let error = sampler.sample(&request()).await.unwrap_err().to_string();
        assert!(error.contains(word) && error.contains(&server.url), "{error}");
    }
    let rounded = json!({"sequences": [{"stop_reason": "length", "tokens": [1], "logprobs": [1e-6]}]});
    script(&server, 1, JSON, rounded.to_string().as_bytes());
    sampler.sample(&request()).await.unwrap();
}

/// Servers have no logprob for a token that was all but certain, and write `null` for it.
#[tokio::test]
async fn numbers_a_null_logprob_is_absent_and_fails_no_other_sample() {
    let (server, client, _training) = trained(|_| {}).await;
    let sampler = client.base_sampler(MODEL, limits()).await.unwrap();
    let sequence = |logprobs| json!({"stop_reason": "length", "tokens": [1, 2], "logprobs": logprobs});
    let sequences = [sequence(json!([-0.5, null])), sequence(json!([-0.5, -0.25]))];
    script(&server, 1, JSON, json!({ "sequences": sequences }).to_string().as_bytes());
    let response = sampler.sample(&SampleRequest { num_samples: 2, ..request() }).await.unwrap();
    let [first, second] = &response.sequences[..] else { panic!("{response:?}") };
    assert!(first.logprobs[0] == -0.5 && first.logprobs[1].is_nan(), "{first:?}");
    assert_eq!(second.logprobs, [-0.5, -0.25]);
}

/// A pass that has added its gradients is not a failure, whatever its logprobs: the caller must know that they
/// are there.
#[tokio::test]
async fn probabilities_above_1_are_the_servers_fault_by_name_unless_gradients_were_made_with_them() {
    let (server, _client, training) = trained(|_| {}).await;
    let result = |logprob: f32| {
        let wrong = json!({"loss_fn_output_type": "ArrayRecord", "metrics": {},
            "loss_fn_outputs": [{"logprobs": {"data": [-1.0, logprob], "dtype": "float32"}}]});
        script(&server, 1, JSON, wrong.to_string().as_bytes());
    };
    let data = || vec![datum(&[1, 2, 3])];
    result(0.5);
    let error = training.forward(data(), Loss::CrossEntropy).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreadable { .. }), "{error:?}");
    assert!(error.to_string().contains(&server.url), "{error}");
    // By as much as servers round, it is none.
    result(1e-3);
    assert_eq!(training.forward(data(), Loss::CrossEntropy).await.unwrap().logprobs, [[-1.0, 1e-3]]);
    result(0.5);
    let forward = training.forward_backward(data(), Loss::CrossEntropy).await.unwrap();
    assert_eq!(forward.logprobs, [[-1.0, 0.5]]);
    training.optim_step(AdamParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_key_that_is_quoted_where_something_else_belongs_is_in_no_error() {
    let (server, client, training) = trained(|o| o.api_key = Some(Secret::new(KEY))).await;
    let quoted = json!(KEY).to_string();
    let mut errors = Vec::new();
    for path in ["get_server_capabilities", "optim_step"] {
        for _ in 0..8 {
            server.script(path, 200, &quoted);
        }
    }
    errors.push(client.capabilities().await.unwrap_err());
    errors.push(training.optim_step(AdamParams::default()).await.unwrap_err());
    let training = client.create_training(MODEL, LoraConfig::default(), limits()).await.unwrap();
    script(&server, 8, JSON, json!({"metrics": KEY}).to_string().as_bytes());
    errors.push(training.optim_step(AdamParams::default()).await.unwrap_err());
    script(&server, 8, JSON, json!({"path": KEY}).to_string().as_bytes());
    errors.push(training.save_state("a").await.unwrap_err());
    for error in errors {
        let told = format!("{error} {error:?}");
        assert!(!told.contains(KEY) && told.contains("***"), "{told}");
    }
}

#[tokio::test]
async fn a_busy_key_exchange_is_retried() {
    for status in [408, 429, 503] {
        let config = ClientConfig { pjwt_auth_enabled: true, ..ClientConfig::default() };
        let server = Server::start(Kind { config: Some(config), ..Kind::default() }).await;
        server.script("auth/token", status, "busy");
        server.script("auth/token", 200, r#"{"jwt":"e30.eyJpYXQiOiAxMDAwLCAiZXhwIjogNDYwMH0.1"}"#);
        let with_key = ClientOptions { api_key: Some(Secret::new(KEY)), ..options(&server.url) };
        Client::connect(&with_key).await.unwrap();
        assert_eq!(server.asked("auth/token"), 2, "{status}");
    }
    let config = ClientConfig { pjwt_auth_enabled: true, ..ClientConfig::default() };
    let server = Server::start(Kind { config: Some(config), ..Kind::default() }).await;
    server.script("auth/token", 401, r#"{"detail":"who are you"}"#);
    let with_key = ClientOptions { api_key: Some(Secret::new(KEY)), ..options(&server.url) };
    let error = Client::connect(&with_key).await.map(|_| ()).unwrap_err();
    assert!(matches!(error, ClientError::Denied { status: 401, .. }), "{error:?}");
}

/// A model list without names does not restrict the base model.
#[tokio::test]
async fn a_model_must_be_in_the_servers_named_list_unless_any_model_is_set() {
    let connect = async |list: &str, any_model: bool| {
        let server = Server::start(Kind::default()).await;
        server.script("get_server_capabilities", 200, list);
        let model = RemoteOptions { base_model: MODEL.into(), any_model, ..RemoteOptions::default() };
        RemoteService::connect(&options(&server.url), model).await.map(|_| ())
    };
    let nameless = r#"{"supported_models": [{"max_context_length": 4096}, {}]}"#;
    assert_eq!(connect(nameless, false).await, Ok(()));
    let others = r#"{"supported_models": [{}, {"model_name": "another"}]}"#;
    let error = connect(others, false).await.unwrap_err().to_string();
    assert!(error.contains("serves another") && error.contains("tinker.any_model"), "{error}");
    assert_eq!(connect(others, true).await, Ok(()));
}
