//! Samplers: what they answer, how often they work, what they keep.

use crate::kit::{Served, backward, engine_with, run, step};
use minds_engine::runtime::SwapKv;
use serde_json::{Value, json};
use std::sync::Arc;

/// A sampler over the base model.
async fn sampler(server: &Served) -> Value {
    let session = server.session().await;
    let body = json!({"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"});
    server.post("create_sampling_session", &body).await["sampling_session_id"].clone()
}

fn sample(sampler: &Value, number: i64) -> Value {
    json!({"sampling_session_id": sampler, "seq_id": number, "num_samples": 3,
        "prompt": {"chunks": [{"tokens": [3, 1]}, {"type": "encoded_text", "tokens": [4]}]},
        "sampling_params": {"max_tokens": 4, "stop": []}})
}

#[test]
fn a_repeated_sample_is_drawn_once() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let sampler = sampler(&server).await;
        let first = server.post("asample", &sample(&sampler, 413_948_768_000_000_000)).await;
        let again = server.post("asample", &sample(&sampler, 413_948_768_000_000_000)).await;
        assert_eq!(first, again);
        assert_eq!(first["sample_sequence_ids"].as_array().unwrap().len(), 3);
        let other = server.post("asample", &sample(&sampler, 0)).await;
        assert_ne!(first["request_id"], other["request_id"]);
        // Without a seed, another request draws other samples.
        assert_ne!(server.result(&first).await, server.result(&other).await);
        server.stop().await;
    });
}

#[test]
fn every_extra_is_present_exactly_when_requested() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let sampler = sampler(&server).await;
        let plain = server.ask("asample", &sample(&sampler, 0)).await;
        assert!(plain["prompt_logprobs"].is_null() && plain["topk_prompt_logprobs"].is_null());
        for sequence in plain["sequences"].as_array().unwrap() {
            assert_eq!(sequence["tokens"].as_array().unwrap().len(), 4);
            assert_eq!(sequence["logprobs"].as_array().unwrap().len(), 4);
            assert_eq!(sequence["stop_reason"], "length");
        }
        let mut full = sample(&sampler, 1);
        full["prompt_logprobs"] = json!(true);
        full["topk_prompt_logprobs"] = json!(2);
        let full = server.ask("asample", &full).await;
        let scores = full["prompt_logprobs"].as_array().unwrap();
        assert!(scores[0].is_null() && scores[1].is_f64() && scores[2].is_f64());
        assert_eq!(full["topk_prompt_logprobs"][1].as_array().unwrap().len(), 2);
        let mut last = sample(&sampler, 2);
        last["prompt_logprobs"] = json!(true);
        last["prompt_logprobs_last_n"] = json!(1);
        let last = server.ask("asample", &last).await;
        assert_eq!(last["prompt_logprobs"], json!([null, null, scores[2]]));
        server.stop().await;
    });
}

#[test]
fn a_sampler_keeps_the_weights_of_the_moment_of_the_save() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let model = server.model().await;
        let export = |number: i64, sampler: u64| json!({"model_id": model, "seq_id": number, "sampling_session_seq_id": sampler});
        let early = server.post("save_weights_for_sampler", &export(1, 0)).await;
        server.post("forward_backward", &backward(&model, 2)).await;
        server.post("optim_step", &step(&model, 3)).await;
        let late = server.post("save_weights_for_sampler", &export(4, 1)).await;
        let base = sampler(&server).await;
        let mut scores = Vec::new();
        for promise in [early, late] {
            let id = server.result(&promise).await["sampling_session_id"].clone();
            scores.push(score(&server, &id).await);
        }
        let base = score(&server, &base).await;
        assert_eq!(scores[0], base, "a fresh adapter changes nothing");
        assert_ne!(scores[1], base);
        server.stop().await;
    });
}

#[test]
fn samplers_in_flight_share_the_newest_weights_of_their_model() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let model = server.model().await;
        let save = |number: i64, sampler: u64| json!({"model_id": model, "seq_id": number, "sampling_session_seq_id": sampler, "kind": "inflight"});
        let early = server.ask("save_weights_for_sampler", &save(1, 0)).await["sampling_session_id"].clone();
        let before = score(&server, &early).await;
        server.post("forward_backward", &backward(&model, 2)).await;
        server.post("optim_step", &step(&model, 3)).await;
        let late = server.ask("save_weights_for_sampler", &save(4, 1)).await["sampling_session_id"].clone();
        let after = score(&server, &late).await;
        assert_ne!(before, after, "the step changed the weights");
        assert_eq!(score(&server, &early).await, after);
        let named = json!({"model_id": model, "seq_id": 5, "path": "x", "kind": "inflight"});
        let refused = server.ask("save_weights_for_sampler", &named).await;
        assert!(refused["error"].as_str().unwrap().contains("inflight"), "{refused}");
        server.stop().await;
    });
}

/// Every token's logprob is that of a fresh pass over its prefix under the weights before the publication or after it.
#[test]
fn a_sample_in_flight_takes_the_weights_that_are_published_meanwhile() {
    run(async {
        let engine = Arc::new(engine_with(None, SwapKv::Recompute));
        let server = Served::over(engine.clone(), |_| {}).await;
        let model = server.model().await;
        let save = |number: i64, sampler: u64, kind: &str| json!({"model_id": model, "seq_id": number, "sampling_session_seq_id": sampler, "kind": kind});
        let saved = async |number, sampler, kind| {
            server.ask("save_weights_for_sampler", &save(number, sampler, kind)).await["sampling_session_id"]
                .clone()
        };
        let flight = saved(1, 0, "inflight").await;
        let old = saved(2, 1, "snapshot").await;
        let prompt = [3, 1, 4];
        let ask = json!({"sampling_session_id": flight, "prompt": {"chunks": [{"tokens": prompt}]},
            "sampling_params": {"max_tokens": 1500, "seed": 7, "stop": []}});
        let promise = server.post("asample", &ask).await;
        while engine.stats().decoded_tokens == 0 {
            tokio::task::yield_now().await;
        }
        server.post("forward_backward", &backward(&model, 3)).await;
        server.post("optim_step", &step(&model, 4)).await;
        saved(5, 2, "inflight").await;
        let new = saved(6, 3, "snapshot").await;
        let sampled = server.result(&promise).await["sequences"][0].clone();
        let tokens: Vec<u64> = serde_json::from_value(sampled["tokens"].clone()).unwrap();
        let drawn: Vec<f32> = serde_json::from_value(sampled["logprobs"].clone()).unwrap();
        assert_eq!(tokens.len(), 1500);
        let all: Vec<u64> = prompt.into_iter().chain(tokens).collect();
        let fresh = async |sampler: &Value| -> Vec<f32> {
            let body = json!({"sampling_session_id": sampler, "prompt": {"chunks": [{"tokens": all}]},
                "sampling_params": {"max_tokens": 1}, "prompt_logprobs": true});
            let scores = server.ask("asample", &body).await["prompt_logprobs"].clone();
            let scores: Vec<Option<f32>> = serde_json::from_value(scores).unwrap();
            scores[prompt.len()..].iter().map(|score| score.unwrap()).collect()
        };
        let before = fresh(&old).await;
        let after = fresh(&new).await;
        let swapped = drawn.iter().zip(&before).take_while(|(drawn, before)| drawn == before).count();
        assert!((1..1500).contains(&swapped), "{swapped}");
        assert_eq!(drawn[swapped..], after[swapped..]);
        server.stop().await;
    });
}

async fn score(server: &Served, sampler: &Value) -> Value {
    let body = json!({"sampling_session_id": sampler, "prompt": {"chunks": [{"tokens": [3, 1, 4]}]},
        "sampling_params": {"max_tokens": 1}, "prompt_logprobs": true});
    let answer = server.ask("asample", &body).await;
    if answer["error"].is_null() { answer["prompt_logprobs"].clone() } else { answer["error"].clone() }
}

#[test]
fn evicted_weights_are_reloaded_from_disk_or_reported_lost() {
    run(async {
        let state = tempfile::tempdir().unwrap();
        let server = Served::start(Some(state.path()), |o| o.sampler_bytes = 1).await;
        let model = server.model().await;
        let session = model.split(':').next().unwrap();
        let export = json!({"model_id": model, "seq_id": 1, "sampling_session_seq_id": 0});
        let lost = server.ask("save_weights_for_sampler", &export).await["sampling_session_id"].clone();
        let before = score(&server, &lost).await;
        let named = json!({"model_id": model, "seq_id": 2, "path": "s"});
        let path = server.ask("save_weights_for_sampler", &named).await["path"].clone();
        assert!(score(&server, &lost).await.as_str().unwrap().contains("give way"));
        let export = json!({"model_id": model, "seq_id": 3, "sampling_session_seq_id": 1});
        server.ask("save_weights_for_sampler", &export).await;
        let named = json!({"session_id": session, "sampling_session_seq_id": 2, "model_path": path});
        let named = server.post("create_sampling_session", &named).await["sampling_session_id"].clone();
        assert_eq!(score(&server, &named).await, before);
        let info = server.get(&format!("samplers/{}", named.as_str().unwrap())).await;
        assert_eq!((&info["base_model"], &info["model_path"]), (&json!("tiny"), &path));
        server.stop().await;
    });
}

#[test]
fn a_cancelled_sample_is_dropped() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let sampler = sampler(&server).await;
        let mut endless = sample(&sampler, 0);
        endless["num_samples"] = json!(64);
        endless["sampling_params"]["max_tokens"] = json!(2000);
        let promise = server.post("asample", &endless).await;
        server.post("cancel_future", &json!({"request_id": promise["request_id"]})).await;
        let given_up = server.result(&promise).await;
        assert!(given_up["error"].as_str().unwrap().contains("dropped before"), "{given_up}");
        server.stop().await;
    });
}

#[test]
fn a_full_server_asks_the_client_to_retry() {
    run(async {
        let server = Served::start(None, |o| o.max_pending = 1).await;
        let sampler = sampler(&server).await;
        let mut long = sample(&sampler, 0);
        long["sampling_params"]["max_tokens"] = json!(2000);
        let promise = server.post("asample", &long).await;
        let (status, answer) = server.try_post("asample", &sample(&sampler, 1)).await;
        assert_eq!(status, 429, "{answer}");
        server.post("cancel_future", &json!({"request_id": promise["request_id"]})).await;
        server.result(&promise).await;
        server.ask("asample", &sample(&sampler, 1)).await;
        server.stop().await;
    });
}
