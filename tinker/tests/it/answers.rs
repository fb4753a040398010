//! What each kind of answer makes of a request.

use crate::kit::server::{Kind, Server};
use crate::kit::{MODEL, datum, limits, options};
use minds_core::datum::{Datum, LossInputs};
use minds_core::ids::Token;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::sampling::{SampleRequest, SamplingParams, TargetTokens};
use minds_core::service::BackendError;
use minds_tinker::client::{
    Client, ClientError, ClientOptions, ClientTimeouts, SamplingClient, TrainingClient, WireFormat,
};
use minds_tinker::types::{ClientConfig, FinishReason, LoraConfig};
use std::sync::Arc;
use std::time::Duration;

async fn start(kind: Kind) -> (Arc<Server>, Client) {
    let server = Server::start(kind).await;
    let client = Client::connect(&options(&server.url)).await.unwrap();
    (server, client)
}

async fn trained(kind: Kind) -> (Arc<Server>, Client, TrainingClient) {
    let (server, client) = start(kind).await;
    let training = client.create_training(MODEL, LoraConfig::default(), limits()).await.unwrap();
    (server, client, training)
}

async fn sampling() -> (Arc<Server>, SamplingClient) {
    let (server, client) = start(Kind::default()).await;
    let sampler = client.base_sampler(MODEL, limits()).await.unwrap();
    (server, sampler)
}

fn request() -> SampleRequest {
    SampleRequest::new(Arc::new([1, 2, 3]), 1, SamplingParams { seed: Some(1), ..SamplingParams::plain(2) })
}

/// The kind of error after a scripted answer, and the number of requests to the address.
async fn check(status: u16, body: &str, times: usize) -> (Result<(), ClientError>, usize) {
    let (server, _client, training) = trained(Kind::default()).await;
    for _ in 0..times {
        server.script("optim_step", status, body);
    }
    let result = training.optim_step(AdamParams::default()).await.map(|_| ());
    (result, server.asked("optim_step"))
}

#[tokio::test]
async fn an_error_of_the_caller_is_never_retried() {
    for status in [400, 413, 418, 422] {
        let (result, asked) = check(status, r#"{"detail":"no such thing"}"#, 9).await;
        let Err(ClientError::Rejected { detail, .. }) = result else { panic!("{result:?}") };
        assert!(detail.starts_with("no such thing") && detail.contains(&status.to_string()), "{detail}");
        assert_eq!(asked, 1);
    }
    for status in [401, 402, 403] {
        let (result, asked) = check(status, r#"{"detail":"not you"}"#, 9).await;
        assert!(matches!(result, Err(ClientError::Denied { status: s, .. }) if s == status), "{result:?}");
        assert_eq!(asked, 1);
    }
}

#[tokio::test]
async fn an_error_of_the_server_is_retried_until_it_ends() {
    for status in [408, 425, 429, 500, 502, 503, 504] {
        let (result, asked) = check(status, "busy", 3).await;
        assert_eq!((result, asked), (Ok(()), 4), "{status}");
    }
    // A proxy's refusal has no words; a conflict may be one with our own lost request.
    assert_eq!(check(400, "", 2).await, (Ok(()), 3));
    assert_eq!(check(409, r#"{"detail":"reused"}"#, 2).await, (Ok(()), 3));
    assert_eq!(check(200, "<html>", 2).await, (Ok(()), 3));
}

#[tokio::test]
async fn a_conflict_that_stays_is_an_error_of_the_caller() {
    let (result, asked) = check(409, r#"{"detail":"the name is taken"}"#, 9).await;
    assert!(matches!(result, Err(ClientError::Rejected { .. })), "{result:?}");
    assert_eq!(asked, 3);
}

#[tokio::test]
async fn an_unsupported_request_is_reported_as_such() {
    let (result, asked) = check(501, r#"{"detail":"not implemented"}"#, 9).await;
    assert!(matches!(result, Err(ClientError::Unsupported { .. })), "{result:?}");
    assert_eq!(asked, 1);
    let (result, _) = check(404, r#"{"detail":"Not Found"}"#, 9).await;
    assert!(matches!(result, Err(ClientError::Unsupported { .. })), "{result:?}");
}

#[tokio::test]
async fn a_missing_model_is_lost_and_so_are_the_requests_queued_behind() {
    let (server, _client, training) = trained(Kind::default()).await;
    server.script("forward_backward", 404, r#"{"detail":"no such model"}"#);
    let pass = training.forward_backward(vec![datum(&[1, 2, 3])], Loss::CrossEntropy);
    let step = training.optim_step(AdamParams::default());
    assert!(matches!(pass.await, Err(ClientError::Lost { .. })));
    let error = step.await.unwrap_err();
    assert!(error.to_string().contains("no such model"), "{error}");
    assert!(matches!(BackendError::from(error), BackendError::Lost(_)));
    assert_eq!(server.asked("optim_step"), 0, "a step ran without its gradients");
}

/// Every wait ends, and says what it waited for.
#[tokio::test]
async fn an_unreachable_server_fails_by_name() {
    let server = Server::start(Kind::default()).await;
    let near = options(&server.url);
    let timeouts = ClientTimeouts { outage: Duration::from_millis(30), ..near.timeouts };
    let client = Client::connect(&ClientOptions { timeouts, ..near }).await.unwrap();
    let training = client.create_training(MODEL, LoraConfig::default(), limits()).await.unwrap();
    for _ in 0..1000 {
        server.script("optim_step", 503, "away");
    }
    let error = training.optim_step(AdamParams::default()).await.unwrap_err();
    let ClientError::InDoubt { what, detail } = &error else { panic!("{error:?}") };
    assert_eq!(what, "optim_step");
    assert!(detail.contains("has not answered") && detail.ends_with("away (status 503)"), "{detail}");
    // It is unknown whether it was executed, so nothing may follow it.
    assert!(matches!(training.save_state("x").await, Err(ClientError::Lost { .. })));
}

/// A refusal for load that lasts is an outage: it has one limit, however many requests meet it.
#[tokio::test]
async fn a_server_that_refuses_for_load_is_waited_for_once_and_not_by_each_request() {
    let server = Server::start(Kind::default()).await;
    let near = options(&server.url);
    let timeouts = ClientTimeouts { outage: Duration::from_millis(30), ..near.timeouts };
    let client = Client::connect(&ClientOptions { timeouts, ..near }).await.unwrap();
    let sampler = client.base_sampler(MODEL, limits()).await.unwrap();
    for _ in 0..1000 {
        server.script("asample", 429, "full");
    }
    let error = sampler.logprobs([1, 2, 3].into()).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
    let asked = server.asked("asample");
    let error = sampler.logprobs([1, 2, 3].into()).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { attempts: 1, .. }), "{error:?}");
    assert_eq!(server.asked("asample"), asked + 1);
}

#[tokio::test]
async fn a_server_that_was_never_there_is_noticed_early() {
    let near = options("http://127.0.0.1:1");
    let timeouts = ClientTimeouts { first_response: Duration::from_millis(30), ..near.timeouts };
    let error = Client::connect(&ClientOptions { timeouts, ..near }).await.map(|_| ()).unwrap_err();
    assert!(matches!(&error, ClientError::Unreachable { why, .. } if why.contains("refused")), "{error:?}");
}

/// Only a wrong address has the short limit of the first response: a server that refuses for load is there.
#[tokio::test]
async fn a_server_that_refuses_for_load_at_the_start_is_waited_for_as_in_any_outage() {
    for status in [429, 503] {
        let server = Server::start(Kind::default()).await;
        for _ in 0..8 {
            server.script("client/config", status, "full");
        }
        let near = options(&server.url);
        let timeouts = ClientTimeouts { first_response: Duration::from_micros(1), ..near.timeouts };
        let connected = Client::connect(&ClientOptions { timeouts, ..near }).await;
        assert!(connected.is_ok(), "{status}: {:?}", connected.map(|_| ()).unwrap_err());
    }
}

#[tokio::test]
async fn a_result_that_never_arrives_times_out() {
    let server = Server::start(Kind { early_polls: u32::MAX, ..Kind::default() }).await;
    let near = options(&server.url);
    let timeouts = ClientTimeouts { sample: Duration::from_millis(30), ..near.timeouts };
    let client = Client::connect(&ClientOptions { timeouts, ..near }).await.unwrap();
    let sampler = client.base_sampler(MODEL, limits()).await.unwrap();
    let error = sampler.sample(&request()).await.unwrap_err();
    assert!(matches!(&error, ClientError::TimedOut { what, .. } if what == "sample"), "{error:?}");
}

#[tokio::test]
async fn failures_of_an_executed_request_name_the_side_at_fault() {
    let check = async |body: &str| {
        let (server, sampler) = sampling().await;
        server.script("retrieve_future", 200, body);
        let error = BackendError::from(sampler.sample(&request()).await.unwrap_err());
        assert_eq!(server.asked("retrieve_future"), 1);
        error
    };
    let user = check(r#"{"error":"too long","category":"user"}"#).await;
    assert!(matches!(&user, BackendError::Rejected(text) if text.contains("too long")), "{user}");
    assert!(check(r#"{"error":"out of memory","category":"server"}"#).await.is_retryable());
    assert!(check(r#"{"error":"?"}"#).await.is_retryable());
}

/// SkyRL 0.3.0 answers a pass that it cannot read with 500, and then resets the connection under the next request.
#[tokio::test]
async fn a_server_that_fails_on_one_wire_is_queried_on_the_other() {
    for protobuf in [false, true] {
        let config = (!protobuf).then(ClientConfig::default);
        let (server, client, training) =
            trained(Kind { protobuf, config, falls: true, ..Kind::default() }).await;
        let wrong = if protobuf { WireFormat::Json } else { WireFormat::Protobuf };
        assert_eq!(client.wire(), wrong, "it is the guess");
        training.forward_backward(vec![datum(&[1, 2, 3])], Loss::CrossEntropy).await.unwrap();
        assert_ne!(client.wire(), wrong);
        assert_eq!(server.asked("forward_backward"), 3, "the wrong one, the right one cut, the right one");
    }
}

/// SkyRL reports failures as a refusal of the poll.
#[tokio::test]
async fn a_poll_that_is_refused_four_times_is_a_failed_request() {
    let (server, sampler) = sampling().await;
    for _ in 0..9 {
        server.script("retrieve_future", 400, r#"{"detail":"max_tokens must be set"}"#);
    }
    let error = sampler.sample(&request()).await.unwrap_err();
    assert!(
        matches!(&error, ClientError::Rejected { detail, .. } if detail.contains("max_tokens")),
        "{error:?}"
    );
    assert_eq!(server.asked("retrieve_future"), 4);
}

/// A sample whose result is lost is resampled under another number; a training request is not.
#[tokio::test]
async fn a_forgotten_sample_is_resampled() {
    let (server, sampler) = sampling().await;
    for _ in 0..3 {
        server.script("retrieve_future", 410, r#"{"detail":"gone"}"#);
    }
    sampler.sample(&request()).await.unwrap();
    let numbers: Vec<serde_json::Value> = {
        let seen = server.seen.lock().unwrap();
        let samples = seen.iter().filter(|seen| seen.path == "asample");
        samples
            .map(|s| serde_json::from_slice::<serde_json::Value>(&s.body).unwrap()["seq_id"].clone())
            .collect()
    };
    assert_eq!(numbers, [0, 1]);

    let (server, _client, training) = trained(Kind::default()).await;
    for _ in 0..3 {
        server.script("retrieve_future", 410, r#"{"detail":"gone"}"#);
    }
    let error = training.optim_step(AdamParams::default()).await.unwrap_err();
    assert!(matches!(&error, ClientError::InDoubt { .. }), "{error:?}");
    assert!(matches!(BackendError::from(error), BackendError::Lost(_)));
    assert_eq!(server.asked("optim_step"), 2, "it is sent once more, under its own number");
    let world = server.world.lock().unwrap();
    let steps = world.executed.iter().filter(|key| key.starts_with(training.model_id())).count();
    assert_eq!(steps, 2, "the model was made, and the step was made once: {:?}", world.executed);
}

#[tokio::test]
async fn a_session_that_the_server_ends_is_lost() {
    let server = Server::start(Kind::default()).await;
    server.script("session_heartbeat", 410, r#"{"detail":"expired"}"#);
    let near = options(&server.url);
    let timeouts = ClientTimeouts { heartbeat: Duration::from_millis(1), ..near.timeouts };
    let client = Client::connect(&ClientOptions { timeouts, ..near }).await.unwrap();
    // The heartbeat comes when it comes; from then on nothing is sent.
    while client.capabilities().await.is_ok() {}
    let error = client.capabilities().await.unwrap_err();
    assert!(matches!(error, ClientError::Lost { .. }), "{error:?}");
}

#[tokio::test]
async fn a_dropped_sample_is_cancelled_where_the_server_wants_it() {
    let server = Server::start(Kind { early_polls: u32::MAX, cancels: true, ..Kind::default() }).await;
    let client = Client::connect(&options(&server.url)).await.unwrap();
    let sampler = client.base_sampler(MODEL, limits()).await.unwrap();
    {
        let request = request();
        let sample = std::pin::pin!(sampler.sample(&request));
        let polled = async {
            while server.asked("retrieve_future") == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            _ = sample => panic!("it has no result"),
            () = polled => {}
        }
    }
    while server.asked("cancel_future") == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.world.lock().unwrap().cancelled.len(), 1);
}

#[tokio::test]
async fn saved_weights_are_listed_kept_and_deleted() {
    let (server, client, training) = trained(Kind::default()).await;
    let path = training.save_state("a").await.unwrap();
    let kept = training.sampler(Some("b")).await.unwrap().path.unwrap();
    let listed = client.checkpoints(None).await.unwrap();
    assert_eq!(listed.iter().map(|c| c.tinker_path.as_str()).collect::<Vec<_>>(), [&kept, &path]);
    assert_eq!(client.checkpoints(Some(training.model_id())).await.unwrap().len(), 2);
    client.delete_checkpoint(&path).await.unwrap();
    assert_eq!(client.checkpoints(None).await.unwrap().len(), 1);
    assert!(matches!(client.delete_checkpoint(&path).await, Err(ClientError::Rejected { .. })));
    assert_eq!(training.info().await.unwrap().model_data.model_name.as_deref(), Some(MODEL));
    let id = training.model_id().to_owned();
    training.unload().await.unwrap();
    assert!(!server.world.lock().unwrap().models.contains_key(&id));
    client.finish(FinishReason::Success).await.unwrap();
    assert_eq!(server.asked("sessions/s1/finish"), 1);
}

#[tokio::test]
async fn models_are_released_one_by_one_if_a_session_cannot_be_ended() {
    let (server, client, training) = trained(Kind::default()).await;
    let other = client.create_training(MODEL, LoraConfig::default(), limits()).await.unwrap();
    server.script("/finish", 404, r#"{"detail":"Not Found"}"#);
    // One of them is already gone, which must not keep the other.
    server.script("unload_model", 404, r#"{"detail":"no such model"}"#);
    client.finish(FinishReason::Success).await.unwrap();
    assert_eq!(server.asked("unload_model"), 2);
    let world = server.world.lock().unwrap();
    let left = [&training, &other].map(|model| world.models.contains_key(model.model_id()));
    assert_eq!(left, [true, false]);
}

/// SkyRL 0.3.0 and 0.4.0 introduce themselves like this.
#[tokio::test]
async fn a_server_that_draws_from_the_weights_in_training_is_recognised() {
    let check = async |status: u16, body: &str| {
        let server = Server::start(Kind::default()).await;
        server.script("/", status, body);
        let client = Client::connect(&options(&server.url)).await.unwrap();
        let keeps = client.keeps_samplers().await;
        assert_eq!(server.seen.lock().unwrap().last().unwrap().path, "/");
        keeps
    };
    assert!(!check(200, r#"{"name":"Tinker API Mock","version":"0.0.1","endpoints":{}}"#).await);
    assert!(check(200, r#"{"name":"another"}"#).await);
    assert!(check(404, r#"{"name":"Tinker API Mock"}"#).await);
    assert!(check(200, "<html>").await);
}

/// On both ways to do it: one request, or a new model that is then loaded into.
#[tokio::test]
async fn an_adapter_resumes_from_a_saved_state() {
    for kind in [Kind::default(), Kind { protobuf: false, config: None, ..Kind::default() }] {
        let (server, client, training) = trained(kind).await;
        let data = vec![datum(&[5, 4, 3, 2])];
        drop(training.forward_backward(data.clone(), Loss::CrossEntropy));
        drop(training.optim_step(AdamParams { learning_rate: 0.1, ..AdamParams::default() }));
        let path = training.save_state("a").await.unwrap();
        let copy = client.create_training_from(&path, true, limits()).await.unwrap();
        let [a, b] = [&training, &copy].map(|t| t.forward(data.clone(), Loss::CrossEntropy));
        assert_eq!(a.await.unwrap(), b.await.unwrap());
        let world = server.world.lock().unwrap();
        let [a, b] = [&training, &copy].map(|t| &world.models[t.model_id()].adapter);
        assert_eq!(a.moments, b.moments);
    }
}

#[tokio::test]
async fn logprobs_of_chosen_tokens_arrive_row_by_row() {
    let (_server, sampler) = sampling().await;
    let tokens: Arc<[Token]> = Arc::new([1, 2, 3]);
    let targets = |k| {
        let targets = TargetTokens { tokens: Arc::new([Some(2), Some(9), Some(3), None]), k };
        SampleRequest { target_prompt_logprobs: Some(targets), ..SampleRequest::score(tokens.clone()) }
    };
    let chosen = sampler.sample(&targets(2)).await.unwrap().target_prompt_logprobs.unwrap();
    let scores = sampler.logprobs(tokens.clone()).await.unwrap();
    // The first of each row is the prompt's own next token.
    assert_eq!([Some(chosen.logprobs[0]), Some(chosen.logprobs[2])], [scores[1], scores[2]]);
    assert!(chosen.logprobs[1] < 0.0 && chosen.logprobs[3] == 0.0);
    assert!(matches!(sampler.sample(&targets(3)).await, Err(ClientError::Rejected { .. })));
}

#[tokio::test]
async fn recorded_samples_have_the_names_that_the_server_promised() {
    let record = SampleRequest { num_samples: 2, record_stability_info: true, ..request() };
    let (server, sampler) = sampling().await;
    let samples = sampler.sample(&record).await.unwrap().sequences;
    let names: Vec<String> =
        samples.iter().map(|sample| sample.sequence_id.as_deref().unwrap().to_owned()).collect();
    assert!(names[0].ends_with("/0") && names[1].ends_with("/1") && names[0] != names[1], "{names:?}");
    let plain = sampler.sample(&request()).await.unwrap();
    assert_eq!(plain.sequences[0].sequence_id, None, "nothing was recorded");
    let sent: Vec<bool> = server
        .seen
        .lock()
        .unwrap()
        .iter()
        .filter(|seen| seen.path == "asample")
        .map(|seen| {
            let body: serde_json::Value = serde_json::from_slice(&seen.body).unwrap();
            body["record_stability_info"].as_bool().unwrap()
        })
        .collect();
    assert_eq!(sent, [true, false]);

    let (_server, client) = start(Kind { names_samples: false, ..Kind::default() }).await;
    let sampler = client.base_sampler(MODEL, limits()).await.unwrap();
    let error = sampler.sample(&record).await.unwrap_err().to_string();
    assert!(error.contains("it named 0 of 2 recorded samples"), "{error}");
    sampler.sample(&request()).await.unwrap();
}

#[tokio::test]
async fn stable_reinforce_without_provenance_is_not_sent() {
    let (server, _client, training) = trained(Kind::default()).await;
    let inputs = LossInputs::Policy { logprobs: vec![-1.0], advantages: vec![1.0] };
    let datum = Datum::new(vec![1], vec![2], inputs).unwrap();
    let before = server.seen.lock().unwrap().len();
    let loss = Loss::StableReinforce { kl_coeff: None };
    let error = training.forward_backward(vec![datum], loss).await.unwrap_err().to_string();
    assert!(error.contains("datum 0") && error.contains("record_stability_info"), "{error}");
    assert_eq!(server.seen.lock().unwrap().len(), before);
}

#[tokio::test]
async fn what_servers_mishandle_is_not_sent() {
    let (server, client, training) = trained(Kind::default()).await;
    let sampler = client.base_sampler(MODEL, limits()).await.unwrap();
    let before = server.seen.lock().unwrap().len();
    let rejected =
        |result: Result<(), ClientError>| assert!(matches!(result, Err(ClientError::Rejected { .. })));
    rejected(training.forward_backward(vec![], Loss::CrossEntropy).await.map(drop));
    rejected(training.forward(vec![datum(&[1, 64])], Loss::CrossEntropy).await.map(drop));
    rejected(training.forward(vec![datum(&[1, 2])], Loss::ImportanceSampling).await.map(drop));
    rejected(training.forward(vec![datum(&[1; 200])], Loss::CrossEntropy).await.map(drop));
    rejected(training.optim_step(AdamParams { eps: f64::NAN, ..AdamParams::default() }).await.map(drop));
    for name in ["", "..", "a/b", "a b"] {
        rejected(training.save_state(name).await.map(drop));
    }
    rejected(sampler.sample(&SampleRequest { num_samples: 0, ..request() }).await.map(drop));
    rejected(sampler.sample(&SampleRequest { prompt: Arc::new([99]), ..request() }).await.map(drop));
    assert_eq!(server.seen.lock().unwrap().len(), before);
}
