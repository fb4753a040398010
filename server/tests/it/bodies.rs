//! Bodies: both forms, compressed, wrong in every way.

use crate::kit::{Served, backward, loss, pass, run};
use minds_core::datum::{Datum, LossInputs};
use minds_core::loss::Loss;
use minds_http::AccessToken;
use minds_tinker::convert::{forward_from_json, forward_from_proto, pass_to_proto};
use minds_tinker::types::proto;
use prost::Message as _;
use reqwest::Method;
use serde_json::{Value, json};

const PROTOBUF: &str = "application/x-protobuf";

/// Address, content type and encoding, body; status and a word of the answer.
type Case = (&'static str, &'static str, &'static str, Vec<u8>, u16, &'static str);

/// The datum of `kit::pass`.
fn datum() -> Datum {
    Datum::new(vec![3, 1, 4, 1], vec![1, 4, 1, 5], LossInputs::Weights(vec![1.0; 4])).unwrap()
}

#[test]
fn a_pass_is_the_same_in_both_forms_there_and_back() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let model = server.model().await;
        let json_promise = server.post("forward_backward", &backward(&model, 1)).await;
        let in_json = server.result(&json_promise).await;
        let body = pass_to_proto(model.clone(), 2, &[datum()], Loss::CrossEntropy, true).encode_to_vec();
        let compressed = zstd::encode_all(&body[..], 1).unwrap();
        let sent = server.request(Method::POST, "forward_backward").header("content-type", PROTOBUF);
        let (status, promise) = server.answer(sent.header("content-encoding", "zstd").body(compressed)).await;
        assert_eq!(status, 200, "{promise}");
        let ask = server.posting("retrieve_future", &json!({"request_id": promise["request_id"]}));
        let answer = ask.header("accept", PROTOBUF).send().await.unwrap();
        assert_eq!(answer.headers()["content-type"], PROTOBUF);
        let output = proto::ProtoForwardBackwardOutput::decode(answer.bytes().await.unwrap()).unwrap();
        let from_json = forward_from_json(&serde_json::from_value(in_json).unwrap()).unwrap();
        let from_proto = forward_from_proto(&output).unwrap();
        assert_eq!(from_proto.logprobs, from_json.logprobs);
        assert_eq!(from_proto.metrics, from_json.metrics);
        assert!(from_json.logprobs[0].iter().all(|lp| *lp < 0.0) && from_json.logprobs[0].len() == 4);
        // Failures and results without tensors are JSON in either form.
        let failed =
            server.post("forward_backward", &pass("forward_backward_input", &model, Some(3), f32::NAN)).await;
        let ask = server.posting("retrieve_future", &json!({"request_id": failed["request_id"]}));
        let answer = ask.header("accept", PROTOBUF).send().await.unwrap();
        assert_eq!(answer.headers()["content-type"], "application/json");
        server.stop().await;
    });
}

#[test]
fn invalid_requests_are_refused_with_a_bounded_reason() {
    run(async {
        let server = Served::start(None, |o| o.max_body_bytes = 100_000).await;
        let model = server.model().await;
        let session = model.split(':').next().unwrap().to_owned();
        let json_type = "application/json";
        let bomb = zstd::encode_all(&vec![0u8; 1 << 20][..], 1).unwrap();
        assert!(bomb.len() < 100_000);
        let sampler = json!({"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"});
        let sampler = server.post("create_sampling_session", &sampler).await["sampling_session_id"].clone();
        let sample = |change: Value| {
            let mut body = json!({"sampling_session_id": sampler, "prompt": {"chunks": [{"tokens": [1]}]}});
            body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            body.to_string().into_bytes()
        };
        let deep = "[".repeat(100_000).into_bytes();
        let cases: Vec<Case> = vec![
            ("optim_step", json_type, "", b"{".to_vec(), 422, "JSON"),
            ("optim_step", json_type, "", vec![], 422, "model_id"),
            ("optim_step", json_type, "", b"[]".to_vec(), 422, "JSON"),
            ("optim_step", json_type, "", b"\xff\xfe".to_vec(), 422, "JSON"),
            ("optim_step", json_type, "", deep.clone(), 422, "JSON"),
            ("optim_step", json_type, "", vec![b' '; 100_001], 413, "100000"),
            ("optim_step", "text/plain", "", b"{}".to_vec(), 415, "text/plain"),
            ("optim_step", PROTOBUF, "", vec![], 415, "application/json"),
            ("forward_backward", PROTOBUF, "", vec![0xff; 9], 400, "protobuf"),
            ("forward_backward", PROTOBUF, "", vec![], 404, "no model"),
            ("forward_backward", PROTOBUF, "zstd", vec![1, 2, 3], 400, "zstd"),
            ("forward_backward", PROTOBUF, "zstd", bomb, 413, "100000"),
            ("forward_backward", json_type, "gzip", vec![1], 415, "gzip"),
            ("optim_step", json_type, "", br#"{"model_id": "../../etc"}"#.to_vec(), 404, "no model"),
            ("retrieve_future", json_type, "", br#"{"request_id": "x"}"#.to_vec(), 404, "not a request"),
            ("retrieve_future", json_type, "", br#"{"request_id": 5}"#.to_vec(), 422, "JSON"),
            ("cancel_future", json_type, "", br#"{"request_id": "req"}"#.to_vec(), 404, "not a request"),
            ("get_info", json_type, "", br#"{"model_id": "a\nb"}"#.to_vec(), 404, "a?b"),
            (
                "weights_info",
                json_type,
                "",
                br#"{"tinker_path": "tinker://../weights/a"}"#.to_vec(),
                400,
                "path",
            ),
            ("asample", json_type, "", sample(json!({"num_samples": 0})), 400, "num_samples"),
            ("asample", json_type, "", sample(json!({"num_samples": 1_000_000_000})), 400, "at most"),
            ("asample", json_type, "", sample(json!({"num_samples": -1})), 400, "negative"),
            ("asample", json_type, "", sample(json!({"topk_prompt_logprobs": 100_000})), 400, "at most"),
            ("asample", json_type, "", sample(json!({"prompt": {"chunks": []}})), 400, "empty"),
            (
                "asample",
                json_type,
                "",
                sample(json!({"sampling_params": {"temperature": -1.0}})),
                400,
                "temperature",
            ),
            (
                "asample",
                json_type,
                "",
                sample(json!({"sampling_params": {"stop": [""]}})),
                400,
                "stop string",
            ),
            (
                "asample",
                json_type,
                "",
                sample(json!({"prompt_logprobs": true, "prompt_logprobs_last_n": 100_000})),
                400,
                "prompt_logprobs_last_n",
            ),
            ("asample", json_type, "", sample(json!({"prompt_alt_tokens_k": 1})), 400, "prompt_alt_tokens_k"),
            ("create_custom_loss", json_type, "", b"{}".to_vec(), 400, "forward_backward_custom"),
            ("asample", json_type, "", sample(json!({"sampling_session_id": "x"})), 404, "no sampler"),
            (
                "asample",
                json_type,
                "",
                sample(json!({"prompt": {"chunks": [{"type": "image", "data": "", "format": "png"}]}})),
                400,
                "text",
            ),
            ("nowhere", json_type, "", vec![], 404, "nothing"),
        ];
        for (address, form, encoding, body, status, word) in cases {
            let mut sent = server.request(Method::POST, address).header("content-type", form);
            if !encoding.is_empty() {
                sent = sent.header("content-encoding", encoding);
            }
            let what = format!(
                "{address} {form} {encoding} {:?}",
                String::from_utf8_lossy(&body[..body.len().min(80)])
            );
            let answer = sent.body(body).send().await.unwrap();
            assert_eq!(answer.status().as_u16(), status, "{what}");
            assert!(answer.headers().contains_key("content-length"), "{what}");
            let answer: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
            assert!(answer["detail"].as_str().unwrap().contains(word), "{what}: {answer}");
        }
        let (status, answer) = server.answer(server.request(Method::GET, "asample")).await;
        assert_eq!(status, 405, "{answer}");
        loss(&server.ask("forward_backward", &backward(&model, 1)).await);
        server.stop().await;
    });
}

#[test]
fn requests_without_the_key_are_refused_and_without_a_key_browser_pages_are() {
    run(async {
        let server = Served::start(None, |o| o.api_key = AccessToken::new("tml-right")).await;
        for (key, status) in [(None, 401), (Some("tml-wrong"), 401), (Some("tml-right"), 200)] {
            let mut sent = server.posting("create_session", &json!({}));
            if let Some(key) = key {
                sent = sent.header("x-api-key", key);
            }
            let (found, answer) = server.answer(sent).await;
            assert_eq!(found, status, "{key:?} {answer}");
            assert!(!answer.to_string().contains("right"), "{answer}");
        }
        assert_eq!(server.get("healthz").await, json!({"status": "ok"}));
        server.stop().await;
        let server = Served::start(None, |_| {}).await;
        let sent = server.posting("create_session", &json!({})).header("origin", "http://evil.example");
        assert_eq!(server.answer(sent).await.0, 403);
        // A name of another site that points here: its pages send it as their own, without an origin.
        for (host, status) in [("evil.example:8017", 421), ("localhost:8017", 200), ("[::1]", 200)] {
            let sent = server.posting("create_session", &json!({})).header("host", host);
            let (found, answer) = server.answer(sent).await;
            assert_eq!(found, status, "{host}: {answer}");
        }
        server.stop().await;
    });
}
