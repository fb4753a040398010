//! What one client does must not keep others from being served.

use crate::kit::{Served, backward, forward, loss, pass, run, step};
use minds_http::AccessToken;
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const HOUR: Duration = Duration::from_secs(3600);

/// A connection on which these bytes were sent.
async fn sent(server: &Served, bytes: &str) -> TcpStream {
    let address = server.url().strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes.as_bytes()).await.unwrap();
    stream
}

/// A pass that takes long enough for a few requests to arrive meanwhile.
fn long_pass(model: &str, number: i64) -> Value {
    let mut body = pass("forward_backward_input", model, Some(number), 1.0);
    let data = body["forward_backward_input"]["data"].as_array_mut().unwrap();
    let mut datum = data[0].clone();
    let tokens = |n: usize| (0..n).map(|i| i % 7 + 1).collect::<Vec<_>>();
    datum["model_input"]["chunks"][0]["tokens"] = json!(tokens(60));
    datum["loss_fn_inputs"]["target_tokens"]["data"] = json!(tokens(60));
    datum["loss_fn_inputs"]["weights"]["data"] = json!(vec![1.0; 60]);
    *data = vec![datum; 2000];
    body
}

#[test]
fn uploads_that_never_arrive_do_not_delay_other_requests() {
    run(async {
        let server = Served::start(None, |o| {
            (o.reading_bytes, o.body_timeout, o.body_pause) = (256 << 10, HOUR, HOUR);
        })
        .await;
        let head = "POST /api/v1/forward_backward HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                    content-length: 60000000\r\n\r\n{";
        let mut silent = Vec::new();
        for _ in 0..8 {
            silent.push(sent(&server, head).await);
        }
        let model = server.model().await;
        loss(&server.ask("forward_backward", &backward(&model, 1)).await);
        // A large one, too.
        let mut large = backward(&model, 2);
        large["padding"] = json!("x".repeat(1 << 20));
        loss(&server.ask("forward_backward", &large).await);
        drop(silent);
        server.stop().await;
    });
}

#[test]
fn a_stalled_body_is_dropped() {
    run(async {
        let server = Served::start(None, |o| o.body_pause = Duration::from_millis(20)).await;
        let head = "POST /api/v1/asample HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                    content-length: 10\r\n\r\n{";
        let mut answer = String::new();
        sent(&server, head).await.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("connection: close"), "{answer}");
        server.stop().await;
    });
}

#[test]
fn unfinished_heads_leave_their_places_to_others() {
    run(async {
        let server = Served::start(None, |o| {
            (o.max_connections, o.head_timeout) = (2, Duration::from_millis(20));
        })
        .await;
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(sent(&server, "POST /api/v1/asample HTTP/1.1\r\nhost: localhost\r\n").await);
        }
        assert_eq!(server.get("healthz").await, json!({"status": "ok"}));
        for mut stream in held {
            // Until the server has had enough of it.
            stream.read_to_end(&mut Vec::new()).await.ok();
        }
        server.stop().await;
    });
}

#[test]
fn what_is_remembered_about_a_session_or_a_checkpoint_is_a_remark() {
    run(async {
        let state = tempfile::tempdir().unwrap();
        let server = Served::start(Some(state.path()), |_| {}).await;
        let long = "x".repeat(70_000);
        for body in
            [json!({"user_metadata": {"k": long}}), json!({"display_name": long}), json!({"tags": [long]})]
        {
            let (status, answer) = server.try_post("create_session", &body).await;
            assert_eq!(status, 400, "{answer}");
            assert!(answer["detail"].as_str().unwrap().contains("65536"), "{answer}");
        }
        // Many small things become large when they are read, so their text is bounded before.
        let many = json!({"user_metadata": {"k": vec![json!({}); 400_000]}}).to_string();
        let bomb = zstd::encode_all(many.as_bytes(), 1).unwrap();
        let request =
            server.request(Method::POST, "create_session").header("content-type", "application/json");
        let (status, answer) = server.answer(request.header("content-encoding", "zstd").body(bomb)).await;
        assert_eq!(status, 413, "{answer}");
        let model = server.model().await;
        let save = json!({"model_id": model, "seq_id": 1, "path": "a", "user_metadata": {"k": long}});
        for (address, number) in [("save_weights", 1), ("save_weights_for_sampler", 2)] {
            let mut save = save.clone();
            save["seq_id"] = json!(number);
            let failed = server.ask(address, &save).await;
            assert!(failed["error"].as_str().unwrap().contains("65536"), "{failed}");
        }
        server.stop().await;
    });
}

#[test]
fn an_adapter_takes_its_room_as_long_as_it_is_worked_on() {
    run(async {
        let server = Served::start(None, |o| o.adapter_bytes = 400_000).await;
        let model = server.model().await;
        let session = model.split(':').next().unwrap();
        let busy = server.post("forward_backward", &long_pass(&model, 1)).await;
        let unloaded = server.post("unload_model", &json!({"model_id": model})).await;
        let next = |number: u64| json!({"session_id": session, "model_seq_id": number, "base_model": "tiny", "lora_config": {"rank": 4}});
        let (status, answer) = server.try_post("create_model", &next(1)).await;
        assert_eq!(status, 429, "clients come back: {answer}");
        loss(&server.result(&busy).await);
        assert_eq!(server.result(&unloaded).await["model_id"], json!(model));
        server.post_patiently("create_model", &next(2)).await;
        server.stop().await;
    });
}

#[test]
fn what_ends_up_in_a_finished_session_ends_with_it() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let model = server.model().await;
        let session = model.split(':').next().unwrap();
        server.post("forward_backward", &long_pass(&model, 1)).await;
        let export = json!({"model_id": model, "seq_id": 2, "sampling_session_seq_id": 0});
        let export = server.post("save_weights_for_sampler", &export).await;
        server.post(&format!("sessions/{session}/finish"), &json!({})).await;
        let failed = server.result(&export).await;
        assert!(failed["error"].as_str().unwrap().contains("no session"), "{failed}");
        let asked = server.request(Method::GET, &format!("samplers/{session}:sample:0"));
        assert_eq!(server.answer(asked).await.0, 404);
        server.stop().await;
    });
}

#[test]
fn a_sampler_number_identifies_one_sampler() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let model = server.model().await;
        let session = model.split(':').next().unwrap();
        let create = json!({"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"});
        let first = server.post("create_sampling_session", &create).await;
        assert_eq!(server.post("create_sampling_session", &create).await, first);
        let export = |number: i64, sampler: u64| json!({"model_id": model, "seq_id": number, "sampling_session_seq_id": sampler});
        let failed = server.ask("save_weights_for_sampler", &export(1, 0)).await;
        assert!(failed["error"].as_str().unwrap().contains("taken"), "{failed}");
        server.ask("save_weights_for_sampler", &export(2, 1)).await;
        let mut other = create.clone();
        other["sampling_session_seq_id"] = json!(1);
        let (status, answer) = server.try_post("create_sampling_session", &other).await;
        assert_eq!(status, 400, "{answer}");
        server.stop().await;
    });
}

#[test]
fn overwritten_weights_are_sampled_as_they_are_now() {
    run(async {
        let state = tempfile::tempdir().unwrap();
        let server = Served::start(Some(state.path()), |_| {}).await;
        let model = server.model().await;
        let session = model.split(':').next().unwrap();
        let save = |number: i64| json!({"model_id": model, "seq_id": number, "path": "a", "overwrite": true});
        let path = server.ask("save_weights", &save(1)).await["path"].clone();
        let sampler = json!({"session_id": session, "sampling_session_seq_id": 0, "model_path": path});
        let sampler = server.post("create_sampling_session", &sampler).await["sampling_session_id"].clone();
        let score = json!({"sampling_session_id": sampler, "prompt": {"chunks": [{"tokens": [3, 1, 4, 1, 5]}]},
            "sampling_params": {"max_tokens": 1}, "prompt_logprobs": true});
        let mut sums = Vec::new();
        for number in [2, 6] {
            let scores = server.ask("asample", &score).await["prompt_logprobs"].clone();
            sums.push(scores.as_array().unwrap()[1..].iter().map(|lp| lp.as_f64().unwrap()).sum::<f64>());
            // The pass scores the same tokens under the same weights.
            let loss = loss(&server.ask("forward_backward", &backward(&model, number)).await);
            assert!((sums[sums.len() - 1] + loss).abs() < 1e-4, "{scores} of a loss of {loss}");
            server.ask("optim_step", &step(&model, number + 1)).await;
            loss_falls(&server, &model, number + 2, loss).await;
            server.ask("save_weights", &save(number + 3)).await;
        }
        assert!(sums[1] > sums[0]);
        server.stop().await;
    });
}

async fn loss_falls(server: &Served, model: &str, number: i64, before: f64) {
    let after = loss(&server.ask("forward", &forward(model, number)).await);
    assert!(after < before, "{after} is not below {before}");
}

#[test]
fn a_result_is_bounded_before_it_is_made() {
    run(async {
        let server = Served::start(None, |o| o.sample_bytes = 10_000).await;
        let session = server.session().await;
        let create = json!({"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"});
        let sampler = server.post("create_sampling_session", &create).await["sampling_session_id"].clone();
        let ask = |samples: u64, tokens: u64, likely: u64| {
            json!({"sampling_session_id": sampler, "num_samples": samples,
            "prompt": {"chunks": [{"tokens": [1]}]}, "sampling_params": {"max_tokens": tokens}, "topk_sample_logprobs": likely})
        };
        for (samples, tokens, likely, status) in
            [(8, 8, 0, 200), (8, 8, 4, 200), (8, 8, 256, 400), (1024, 8, 0, 400)]
        {
            let (found, answer) = server.try_post("asample", &ask(samples, tokens, likely)).await;
            assert_eq!(found, status, "{samples} {tokens} {likely}: {answer}");
            let detail = answer["detail"].as_str().unwrap_or_default();
            assert_eq!(detail.contains("at most 10000"), status == 400, "{detail}");
        }
        server.stop().await;
    });
}

#[test]
fn a_refusal_that_did_not_read_the_body_closes_the_connection() {
    run(async {
        let server = Served::start(None, |o| o.api_key = AccessToken::new("tml-right")).await;
        for (address, key, form, status, closes) in [
            ("asample", "wrong", "application/json", 401, true),
            ("nowhere", "tml-right", "application/json", 404, true),
            ("asample", "tml-right", "text/plain", 415, true),
            ("sessions/%ff/finish", "tml-right", "application/json", 400, true),
            ("asample", "tml-right", "application/json", 422, false),
        ] {
            let request = server.request(Method::POST, address).header("x-api-key", key);
            let answer = request.header("content-type", form).body("[]").send().await.unwrap();
            assert_eq!(answer.status().as_u16(), status, "{address}");
            let close = answer.headers().get("connection").is_some_and(|value| value == "close");
            assert_eq!(close, closes, "{address} {status}");
            let answer: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
            assert!(answer["detail"].is_string(), "{answer}");
        }
        server.stop().await;
    });
}
