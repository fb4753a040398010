//! Answers that are lost, and what is on the server all the same.

use crate::kit::server::{Kind, Server};
use crate::kit::{MODEL, datum, limits, options};
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::sampling::{SampleRequest, SamplingParams};
use minds_tinker::client::{Client, ClientError, ClientOptions, ClientTimeouts, TrainingClient};
use minds_tinker::types::LoraConfig;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// What SkyRL and others say of a future that they have forgotten, and of weights that they have.
const FORGOTTEN: &str = r#"{"detail":"Future not found"}"#;
const EXISTS: &str = r#"{"detail":"a checkpoint with this name already exists"}"#;

async fn trained() -> (Arc<Server>, Client, TrainingClient) {
    let server = Server::start(Kind { early_polls: 0, ..Kind::default() }).await;
    let client = Client::connect(&options(&server.url)).await.unwrap();
    let training = client.create_training(MODEL, LoraConfig::default(), limits()).await.unwrap();
    (server, client, training)
}

fn script(server: &Server, path: &'static str, answers: &[(u16, &str)]) {
    answers.iter().for_each(|(status, body)| server.script(path, *status, body));
}

/// The numbers under which requests came.
fn numbers(server: &Server, path: &str) -> Vec<Value> {
    let seen = server.seen.lock().unwrap();
    let bodies = seen.iter().filter(|seen| seen.path == path);
    bodies.map(|seen| serde_json::from_slice::<Value>(&seen.body).unwrap()["seq_id"].clone()).collect()
}

/// A request that changes the model breaks the order instead: later ones would run without it.
#[tokio::test]
async fn a_save_that_is_refused_for_load_leaves_its_number_to_the_next_request() {
    let server = Server::start(Kind { early_polls: 0, ..Kind::default() }).await;
    let near = options(&server.url);
    let timeouts = ClientTimeouts { outage: Duration::from_millis(30), ..near.timeouts };
    let client = Client::connect(&ClientOptions { timeouts, ..near }).await.unwrap();
    let training = client.create_training(MODEL, LoraConfig::default(), limits()).await.unwrap();
    script(&server, "save_weights_for_sampler", &[(503, "full"); 1000]);
    let error = training.sampler(None).await.map(|_| ()).unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { refused: true, .. }), "{error:?}");
    training.save_state("a").await.unwrap();
    assert_eq!(numbers(&server, "save_weights"), [1]);
}

#[tokio::test]
async fn a_sample_whose_future_is_not_found_is_resampled() {
    let (server, client, _training) = trained().await;
    let sampler = client.base_sampler(MODEL, limits()).await.unwrap();
    let params = SamplingParams { seed: Some(1), ..SamplingParams::plain(2) };
    let request = SampleRequest::new(Arc::new([1, 2, 3]), 1, params);
    for body in [FORGOTTEN, r#"{"detail":"Not Found"}"#, ""] {
        script(&server, "retrieve_future", &[(404, body); 3]);
        sampler.sample(&request).await.unwrap();
    }
    assert_eq!(numbers(&server, "asample"), [0, 1, 2, 3, 4, 5]);

    // One that was accepted without an answer, so that its repeat is a conflict.
    script(&server, "asample", &[(503, ""), (409, EXISTS), (409, EXISTS), (409, EXISTS)]);
    sampler.sample(&request).await.unwrap();
    assert_eq!(numbers(&server, "asample")[6..], [6, 6, 6, 6, 7]);
}

/// The server returns its existing result when the request is sent again under its number.
#[tokio::test]
async fn a_pass_whose_future_is_not_found_is_sent_again_under_its_number_and_run_once() {
    let (server, _client, training) = trained().await;
    let data = vec![datum(&[1, 2, 3])];
    // The first name is one that the server does not know.
    server.script("forward_backward", 200, r#"{"request_id":"forgotten"}"#);
    let pass = training.forward_backward(data.clone(), Loss::CrossEntropy).await.unwrap();
    let expected = crate::kit::model::Adapter::new().forward_backward(&data, Loss::CrossEntropy);
    assert_eq!(pass, expected);
    training.optim_step(AdamParams::default()).await.unwrap();
    assert_eq!(server.asked("forward_backward"), 2);
    let world = server.world.lock().unwrap();
    let made = world.executed.iter().filter(|key| key.starts_with(&format!("{}#", training.model_id())));
    assert_eq!(made.count(), 2, "a pass and a step: {:?}", world.executed);
}

/// What is on the server is found under its name: after a conflict, a refusal, or a result that was forgotten.
#[tokio::test]
async fn weights_that_were_saved_without_an_answer_are_found() {
    let refused = r#"{"error":"it already exists","category":"user"}"#;
    let (server, _client, training) = trained().await;
    let model = training.model_id().to_owned();
    let keep = |path: &str| {
        let mut world = server.world.lock().unwrap();
        let adapter = crate::kit::model::Adapter::new();
        world.saved.insert(path.into(), (adapter.weights.clone(), adapter.moments));
    };
    for (name, save, poll) in [
        ("a", &[(503, ""), (409, EXISTS), (409, EXISTS), (409, EXISTS)][..], &[][..]),
        ("b", &[(503, ""), (200, r#"{"request_id":"r"}"#)], &[(200, refused)]),
        ("c", &[(200, r#"{"request_id":"r"}"#); 2], &[(404, FORGOTTEN); 3]),
    ] {
        let path = format!("tinker://{model}/weights/{name}");
        keep(&path);
        script(&server, "save_weights", save);
        script(&server, "retrieve_future", poll);
        assert_eq!(training.save_state(name).await.as_ref(), Ok(&path), "{name}");

        let path = format!("tinker://{model}/sampler_weights/{name}");
        keep(&path);
        script(&server, "save_weights_for_sampler", save);
        script(&server, "retrieve_future", poll);
        let made = training.sampler(Some(name)).await.unwrap();
        assert_eq!(made.path.as_ref(), Some(&path));
        made.sampler.logprobs(Arc::new([1, 2])).await.unwrap();
    }
}

#[tokio::test]
async fn weights_that_are_not_there_are_in_doubt_and_a_name_that_is_taken_is_a_refusal() {
    let (server, _client, training) = trained().await;
    script(&server, "save_weights", &[(503, ""), (409, EXISTS), (409, EXISTS), (409, EXISTS)]);
    let error = training.save_state("a").await.unwrap_err();
    assert!(matches!(&error, ClientError::InDoubt { .. }), "{error:?}");
    let path = format!("tinker://{}/weights/b", training.model_id());
    server.world.lock().unwrap().saved.insert(path, {
        let adapter = crate::kit::model::Adapter::new();
        (adapter.weights.clone(), adapter.moments)
    });
    script(&server, "save_weights", &[(409, EXISTS); 3]);
    let error = training.save_state("b").await.unwrap_err();
    assert!(matches!(&error, ClientError::Rejected { .. }), "no answer was lost: {error:?}");
}

/// A step that may have been made ends the order; what was saved or not does not.
#[tokio::test]
async fn a_step_that_meets_a_conflict_after_a_lost_answer_is_in_doubt() {
    let (server, _client, training) = trained().await;
    script(&server, "optim_step", &[(503, ""), (409, EXISTS), (409, EXISTS), (409, EXISTS)]);
    let error = training.optim_step(AdamParams::default()).await.unwrap_err();
    assert!(matches!(&error, ClientError::InDoubt { .. }), "{error:?}");
    let next = training.forward_backward(vec![datum(&[1, 2, 3])], Loss::CrossEntropy).await.unwrap_err();
    assert!(matches!(&next, ClientError::Lost { .. }), "it would run without the step: {next:?}");
}

#[tokio::test]
async fn models_and_samplers_that_may_exist_are_created_again() {
    let (server, client, _training) = trained().await;
    script(&server, "create_model", &[(503, ""), (409, EXISTS), (409, EXISTS), (409, EXISTS)]);
    let training = client.create_training(MODEL, LoraConfig::default(), limits()).await.unwrap();
    assert!(training.model_id().ends_with(":train:2"), "{}", training.model_id());
    script(&server, "create_model", &[(200, r#"{"request_id":"forgotten"}"#); 2]);
    client.create_training(MODEL, LoraConfig::default(), limits()).await.unwrap();
    script(&server, "create_sampling_session", &[(503, ""), (409, EXISTS), (409, EXISTS), (409, EXISTS)]);
    client.base_sampler(MODEL, limits()).await.unwrap();
}

#[tokio::test]
async fn a_deletion_without_an_answer_counts_as_done_when_repeated() {
    let (server, client, training) = trained().await;
    let path = training.save_state("a").await.unwrap();
    server.world.lock().unwrap().saved.clear();
    server.script("checkpoints/weights/a", 503, "");
    client.delete_checkpoint(&path).await.unwrap();
    assert!(matches!(client.delete_checkpoint(&path).await, Err(ClientError::Rejected { .. })));

    script(&server, "unload_model", &[(503, ""), (404, r#"{"detail":"no such model"}"#)]);
    training.unload().await.unwrap();
}
