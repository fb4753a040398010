//! How long things live: checkpoints, sessions, open polls.

use crate::kit::{Served, backward, forward, loss, run, step};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;

#[test]
fn a_restarted_server_serves_its_checkpoints() {
    run(async {
        let state = tempfile::tempdir().unwrap();
        let server = Served::start(Some(state.path()), |_| {}).await;
        let model = server.model().await;
        server.post("forward_backward", &backward(&model, 1)).await;
        server.post("optim_step", &step(&model, 2)).await;
        let save = json!({"model_id": model, "seq_id": 3, "path": "a", "user_metadata": {"k": 1}});
        let path = server.ask("save_weights", &save).await["path"].clone();
        let export = json!({"model_id": model, "seq_id": 4, "path": "s", "ttl_seconds": 3600});
        let weights = server.ask("save_weights_for_sampler", &export).await["path"].clone();
        let mut losses = Vec::new();
        for number in [5, 7] {
            losses.push(loss(&server.ask("forward_backward", &backward(&model, number)).await));
            server.ask("optim_step", &step(&model, number + 1)).await;
        }
        server.stop().await;

        let server = Served::start(Some(state.path()), |_| {}).await;
        let (status, answer) = server.try_post("optim_step", &step(&model, 9)).await;
        assert_eq!(status, 404, "{answer}");
        let info = server.post("weights_info", &json!({"tinker_path": path})).await;
        assert_eq!((&info["base_model"], &info["lora_rank"]), (&json!("tiny"), &json!(4)));
        assert_eq!((&info["train_attn"], &info["train_mlp"]), (&json!(true), &json!(true)));

        let session = server.session().await;
        let load = json!({"session_id": session, "model_seq_id": 0, "path": path, "optimizer": true});
        let next = server.ask("load_weights", &load).await["model_id"].as_str().unwrap().to_owned();
        assert_eq!(next, format!("{session}:train:0"));
        let mut again = Vec::new();
        for number in [1, 3] {
            again.push(loss(&server.ask("forward_backward", &backward(&next, number)).await));
            server.ask("optim_step", &step(&next, number + 1)).await;
        }
        assert_eq!(again, losses, "moments came back too");
        let sampler = json!({"session_id": session, "sampling_session_seq_id": 0, "model_path": weights});
        let sampler = server.post("create_sampling_session", &sampler).await["sampling_session_id"].clone();
        let score = json!({"sampling_session_id": sampler, "prompt": {"chunks": [{"tokens": [3, 1, 4, 1, 5]}]},
            "sampling_params": {"max_tokens": 1}, "prompt_logprobs": true});
        let scores = server.ask("asample", &score).await["prompt_logprobs"].clone();
        let sum: f64 = scores.as_array().unwrap()[1..].iter().map(|lp| lp.as_f64().unwrap()).sum();
        assert!((sum + losses[0]).abs() < 1e-4, "{scores} of a loss of {}", losses[0]);

        let run = format!("training_runs/{model}");
        let listed = server.get(&format!("{run}/checkpoints")).await;
        let mut paths: Vec<&Value> =
            listed["checkpoints"].as_array().unwrap().iter().map(|c| &c["tinker_path"]).collect();
        paths.sort_by_key(|path| path.to_string());
        assert_eq!(paths, [&weights, &path]);
        let described = server.get(&run).await;
        assert_eq!(described["last_checkpoint"]["user_metadata"], json!({"k": 1}));
        // The clock of these tests stands at 1970.
        assert_eq!(described["last_sampler_checkpoint"]["expires_at"], "1970-01-01T01:00:00Z");
        let ttl = format!("{run}/checkpoints/sampler_weights/s/ttl");
        for (seconds, expires) in [(json!(60), json!("1970-01-01T00:01:00Z")), (Value::Null, Value::Null)] {
            let body = json!({"ttl_seconds": seconds}).to_string();
            let sent =
                server.request(Method::PUT, &ttl).header("content-type", "application/json").body(body);
            assert_eq!(server.answer(sent).await.0, 204);
            assert_eq!(server.get(&run).await["last_sampler_checkpoint"]["expires_at"], expires);
        }
        assert_eq!(server.get("training_runs?limit=1").await["cursor"]["total_count"], 1);
        for (expected, page) in [(2, ""), (1, "?limit=1"), (1, "?offset=1"), (0, "?offset=9")] {
            let page = server.get(&format!("checkpoints{page}")).await;
            assert_eq!(page["checkpoints"].as_array().unwrap().len(), expected);
        }
        for (method, rest, status) in [
            (Method::DELETE, "weights/nothing", 404),
            (Method::DELETE, "weights/..%2F..", 400),
            (Method::POST, "weights/a/publish", 400),
            (Method::DELETE, "weights/a", 204),
            (Method::DELETE, "weights/a", 404),
        ] {
            let sent = server.request(method.clone(), &format!("{run}/checkpoints/{rest}"));
            assert_eq!(server.answer(sent).await.0, status, "{method} {rest}");
        }
        server.stop().await;
    });
}

#[test]
fn a_finished_session_takes_its_models_along_and_no_others() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let (model, other) = (server.model().await, server.model().await);
        let session = model.split(':').next().unwrap();
        let heartbeat = json!({"session_id": session});
        server.post("session_heartbeat", &heartbeat).await;
        let reason = json!({"reason": {"type": "success"}, "detail": null});
        for _ in 0..2 {
            server.post(&format!("sessions/{session}/finish"), &reason).await;
        }
        assert_eq!(server.try_post("session_heartbeat", &heartbeat).await.0, 410);
        assert_eq!(server.try_post("forward", &forward(&model, 1)).await.0, 404);
        loss(&server.ask("forward", &forward(&other, 1)).await);
        server.ask("unload_model", &json!({"model_id": other})).await;
        assert_eq!(server.try_post("get_info", &json!({"model_id": other})).await.0, 404);
        server.stop().await;
    });
}

#[test]
fn open_polls_end_when_the_server_stops() {
    run(async {
        let server = Served::start(None, |o| o.poll = Duration::from_secs(3600)).await;
        let model = server.model().await;
        // It waits for number 1.
        let promise = server.post("forward", &forward(&model, 2)).await;
        let ask = server.posting("retrieve_future", &json!({"request_id": promise["request_id"]}));
        let poll = tokio::spawn(ask.send());
        // A request behind the poll's makes sure that the poll is with the server, or finds it stopped.
        server.get("healthz").await;
        let done = server.order_stop();
        match poll.await.unwrap() {
            Ok(answer) => assert_eq!(answer.status().as_u16(), 408),
            Err(error) => assert!(error.is_connect() || error.is_request(), "{error}"),
        }
        done.await.unwrap().unwrap();
    });
}

#[test]
fn adapters_are_bounded_and_a_finished_session_makes_room() {
    run(async {
        // One adapter of rank 4 on the tiny model takes some 250 kB in training.
        let server = Served::start(None, |o| o.adapter_bytes = 400_000).await;
        let model = server.model().await;
        let session = server.session().await;
        let second = json!({"session_id": session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {"rank": 4}});
        let (status, answer) = server.try_post("create_model", &second).await;
        assert_eq!(status, 400, "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains("finish a session"), "{answer}");
        let first = model.split(':').next().unwrap();
        server.post(&format!("sessions/{first}/finish"), &json!({})).await;
        // The work on the model ends a moment later.
        let promise = server.post_patiently("create_model", &second).await;
        server.result(&promise).await;
        server.stop().await;
    });
}
