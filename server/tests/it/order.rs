//! Requests of a model: each once, in the order of their numbers.

use crate::kit::{Served, backward, forward, loss, pass, run, step};
use serde_json::{Value, json};
use std::time::Duration;

#[test]
fn a_repeated_request_is_executed_once() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let (twice, once) = (server.model().await, server.model().await);
        let first = server.post("forward_backward", &backward(&twice, 1)).await;
        let again = server.post("forward_backward", &backward(&twice, 1)).await;
        assert_eq!(first["request_id"], again["request_id"]);
        server.post("forward_backward", &backward(&once, 1)).await;
        let mut norms = Vec::new();
        for model in [&twice, &once] {
            norms.push(server.ask("optim_step", &step(model, 2)).await["metrics"]["grad_norm"].clone());
        }
        assert_eq!(norms[0], norms[1], "gradients were added twice");
        let (status, other) = server.try_post("optim_step", &step(&twice, 1)).await;
        assert_eq!(status, 400, "a number stands for one request: {other}");
        // After it has run, too.
        let late = server.post("forward_backward", &backward(&twice, 1)).await;
        assert_eq!(first["request_id"], late["request_id"]);
        let session = twice.split(':').next().unwrap();
        assert_eq!(server.model_in(session, 0).await, twice, "a model's number stands for one model");
        server.stop().await;
    });
}

#[test]
fn requests_run_in_the_order_of_their_numbers_whatever_that_of_their_arrival() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let model = server.model().await;
        let after = server.post("forward", &forward(&model, 3)).await;
        let stepped = server.post("optim_step", &step(&model, 2)).await;
        let before = server.post("forward_backward", &backward(&model, 1)).await;
        let [before, after] = [loss(&server.result(&before).await), loss(&server.result(&after).await)];
        assert!(server.result(&stepped).await["metrics"]["grad_norm"].as_f64().unwrap() > 0.0);
        assert!(after < before, "{after} is not below {before}");
        server.stop().await;
    });
}

#[test]
fn a_request_waiting_for_a_missing_number_fails_and_the_model_continues() {
    run(async {
        let server = Served::start(None, |o| o.gap = Duration::from_millis(20)).await;
        let model = server.model().await;
        let failed = server.ask("optim_step", &step(&model, 2)).await;
        assert_eq!(failed["category"], "user");
        assert!(failed["error"].as_str().unwrap().contains("request 1 of"), "{failed}");
        loss(&server.ask("forward", &forward(&model, 3)).await);
        let late = server.ask("forward", &forward(&model, 1)).await;
        assert!(late["error"].as_str().unwrap().contains("too late"), "{late}");
        server.stop().await;
    });
}

#[test]
fn a_model_is_unloaded_after_earlier_requests_and_unloading_can_be_repeated() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let model = server.model().await;
        let unload = json!({"model_id": model});
        // Number 1 has not arrived when the model is to go.
        let second = server.post("forward", &forward(&model, 2)).await;
        let unloaded = server.post("unload_model", &unload).await;
        let again = server.post("unload_model", &unload).await;
        let behind = server.post("forward", &forward(&model, 3)).await;
        let first = server.post("forward", &forward(&model, 1)).await;
        for promise in [&first, &second] {
            loss(&server.result(promise).await);
        }
        for promise in [&unloaded, &again] {
            assert_eq!(server.result(promise).await["model_id"], json!(model));
        }
        let behind = server.result(&behind).await;
        assert!(behind["error"].as_str().unwrap().contains("unloaded"), "{behind}");
        // Its name is known as long as its session.
        assert_eq!(server.ask("unload_model", &unload).await["model_id"], json!(model));
        assert_eq!(server.try_post("forward", &forward(&model, 4)).await.0, 404);
        let session = model.split(':').next().unwrap();
        server.post(&format!("sessions/{session}/finish"), &json!({})).await;
        assert_eq!(server.try_post("unload_model", &unload).await.0, 404);
        assert_eq!(server.try_post("unload_model", &json!({"model_id": "sess-0:train:0"})).await.0, 404);
        server.stop().await;
    });
}

#[test]
fn a_request_without_a_number_runs_after_earlier_ones() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let model = server.model().await;
        // The step of number 2 waits for number 1, and the pass without a number for both.
        let stepped = server.post("optim_step", &step(&model, 2)).await;
        let after = server.post("forward", &pass("forward_input", &model, None, 1.0)).await;
        let before = server.post("forward_backward", &backward(&model, 1)).await;
        let [before, after] = [loss(&server.result(&before).await), loss(&server.result(&after).await)];
        server.result(&stepped).await;
        assert!(after < before, "{after} is not below {before}");
        server.stop().await;
    });
}

#[test]
fn a_learning_rate_that_is_null_is_refused_and_a_missing_one_is_the_default() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let (plain, told) = (server.model().await, server.model().await);
        let mut ends = Vec::new();
        for (model, adam) in [(&plain, json!({})), (&told, json!({"learning_rate": 1e-4}))] {
            server.post("forward_backward", &backward(model, 1)).await;
            for key in ["learning_rate", "beta1", "eps", "grad_clip_norm"] {
                let null = json!({"model_id": model, "adam_params": {key: null}});
                let (status, refused) = server.try_post("optim_step", &null).await;
                assert_eq!(status, 422, "{refused}");
                assert!(refused["detail"].as_str().unwrap().contains("NaN"), "{refused}");
            }
            let step = json!({"model_id": model, "seq_id": 2, "adam_params": adam});
            assert!(server.ask("optim_step", &step).await["metrics"]["grad_norm"].is_number());
            ends.push(loss(&server.ask("forward", &forward(model, 3)).await));
        }
        assert_eq!(ends[0], ends[1]);
        server.stop().await;
    });
}

#[test]
fn a_refused_request_uses_its_number_up() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let model = server.model().await;
        for (number, word, change) in [
            (1, "dro", json!({"loss_fn": "dro"})),
            (2, "no data", json!({"data": []})),
            (3, "no setting", json!({"loss_fn_config": {"beta": 1.0}})),
            (4, "advantages", json!({"loss_fn": "ppo"})),
        ] {
            let mut body = backward(&model, number);
            body["forward_backward_input"]
                .as_object_mut()
                .unwrap()
                .extend(change.as_object().unwrap().clone());
            if word == "advantages" {
                let inputs = &mut body["forward_backward_input"]["data"][0]["loss_fn_inputs"];
                inputs["logprobs"] = inputs["weights"].take();
                inputs.as_object_mut().unwrap().remove("weights");
            }
            let failed = server.ask("forward_backward", &body).await;
            assert_eq!(failed["category"], "user", "{failed}");
            assert!(failed["error"].as_str().unwrap().contains(word), "{failed}");
        }
        let bad_step = json!({"model_id": model, "seq_id": 5, "adam_params": {"learning_rate": -1.0}});
        assert_eq!(server.try_post("optim_step", &bad_step).await.0, 400);
        loss(&server.ask("forward", &forward(&model, 6)).await);
        server.stop().await;
    });
}

#[test]
fn a_step_setting_out_of_range_is_refused_by_name() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let model = server.model().await;
        server.post("forward_backward", &backward(&model, 1)).await;
        let settings = [
            ("learning_rate", -1e-9),
            ("beta1", 1.0),
            ("beta2", -0.1),
            ("eps", -1e-12),
            ("weight_decay", -0.1),
            ("grad_clip_norm", -1.0),
        ];
        for (number, (key, value)) in (2..).zip(settings) {
            let step = json!({"model_id": model, "seq_id": number, "adam_params": {key: value}});
            // A repeated request gets the same refusal.
            for _ in 0..2 {
                let (status, refused) = server.try_post("optim_step", &step).await;
                let detail = refused["detail"].as_str().unwrap();
                assert!(status == 400 && detail.contains(&format!("{key} is ")), "{status}: {refused}");
            }
        }
        let edge =
            json!({"learning_rate": 0.0, "beta1": 0.0, "beta2": 0.0, "eps": 0.0, "grad_clip_norm": 0.0});
        let step = json!({"model_id": model, "seq_id": 8, "adam_params": edge});
        assert!(server.ask("optim_step", &step).await["metrics"]["grad_norm"].is_number());
        server.stop().await;
    });
}

#[test]
fn number_0_is_a_number_like_any_other() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let model = server.model().await;
        // The step of number 2 waits for number 1, and nothing waits for number 0.
        let stepped = server.post("optim_step", &step(&model, 2)).await;
        let first = server.post("forward_backward", &backward(&model, 0)).await;
        let again = server.post("forward_backward", &backward(&model, 0)).await;
        assert_eq!(first["request_id"], again["request_id"], "it is executed once");
        let (status, other) = server.try_post("optim_step", &step(&model, 0)).await;
        assert_eq!(status, 400, "a number stands for one request: {other}");
        let before = loss(&server.result(&first).await);
        let second = loss(&server.ask("forward", &forward(&model, 1)).await);
        server.result(&stepped).await;
        assert_eq!(before, second);
        server.stop().await;
    });
}

#[test]
fn a_request_that_cannot_be_read_uses_its_number_up_too() {
    run(async {
        // A request that waits for a missing number would wait for an hour.
        let server = Served::start(None, |o| o.gap = Duration::from_secs(3600)).await;
        let model = server.model().await;
        for (number, address) in
            (1..).zip(["forward_backward", "forward", "optim_step", "save_weights", "load_weights"])
        {
            let body = json!({"model_id": model, "seq_id": number, "forward_backward_input": 1,
                "forward_input": 1, "adam_params": 1, "path": 1});
            let (status, refused) = server.try_post(address, &body).await;
            assert_eq!(status, 422, "{address}: {refused}");
        }
        loss(&server.ask("forward", &forward(&model, 6)).await);
        server.stop().await;
    });
}

#[test]
fn numbers_that_overflow_in_one_model_leave_the_others_alone() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let (bad, good, alone) = (server.model().await, server.model().await, server.model().await);
        let mut overflow = pass("forward_backward_input", &bad, None, 1.0);
        let input = &mut overflow["forward_backward_input"];
        input["loss_fn"] = json!("importance_sampling");
        let inputs = input["data"][0]["loss_fn_inputs"].as_object_mut().unwrap();
        inputs.insert("advantages".into(), inputs["weights"].clone());
        let mut logprobs = inputs.remove("weights").unwrap();
        logprobs["data"] = json!(vec![-1e4; 4]);
        inputs.insert("logprobs".into(), logprobs);
        let mut losses: Vec<Vec<f64>> = Vec::new();
        for (model, beside) in [(&good, true), (&alone, false)] {
            let mut of_model = Vec::new();
            for number in 0..3 {
                if beside {
                    let failed = server.ask("forward_backward", &overflow).await;
                    assert!(failed["error"].as_str().unwrap().contains("not finite"), "{failed}");
                }
                of_model.push(loss(&server.ask("forward_backward", &backward(model, 2 * number + 1)).await));
                server.ask("optim_step", &step(model, 2 * number + 2)).await;
            }
            losses.push(of_model);
        }
        assert_eq!(losses[0], losses[1]);
        assert!(losses[0][2] < losses[0][0]);
        let own = server.ask("forward", &pass("forward_input", &bad, None, 1.0)).await;
        assert_eq!(loss(&own), losses[0][0], "the refused passes left their own model as it was");
        server.stop().await;
    });
}

#[test]
fn a_step_that_overflows_is_refused_and_the_next_one_is_made() {
    run(async {
        let server = Served::start(None, |_| {}).await;
        let (hit, spared) = (server.model().await, server.model().await);
        server.post("forward_backward", &pass("forward_backward_input", &hit, Some(1), 1e30)).await;
        let refused = server.ask("optim_step", &step(&hit, 2)).await;
        assert_eq!(refused["category"], "user", "{refused}");
        assert!(refused["error"].as_str().unwrap().contains("not finite"), "{refused}");
        let mut ends = Vec::new();
        for (model, first) in [(&hit, 3), (&spared, 1)] {
            server.post("forward_backward", &backward(model, first)).await;
            let stepped = server.ask("optim_step", &step(model, first + 1)).await;
            let after = loss(&server.ask("forward", &forward(model, first + 2)).await);
            ends.push((stepped["metrics"]["grad_norm"].clone(), after));
        }
        assert_eq!(ends[0], ends[1], "the refused step left something behind");
        server.stop().await;
    });
}

#[test]
fn saves_and_loads_have_their_turn_too() {
    run(async {
        let state = tempfile::tempdir().unwrap();
        let server = Served::start(Some(state.path()), |_| {}).await;
        let model = server.model().await;
        let save = |number: i64, overwrite: bool| json!({"model_id": model, "seq_id": number, "path": "a", "overwrite": overwrite});
        let first = server.post("save_weights", &save(1, false)).await;
        server.post("forward_backward", &backward(&model, 2)).await;
        server.post("optim_step", &step(&model, 3)).await;
        let taken = server.ask("save_weights", &save(4, false)).await;
        assert!(taken["error"].as_str().unwrap().contains("taken"), "{taken}");
        let path = server.result(&first).await["path"].clone();
        assert_eq!(path, json!(format!("tinker://{model}/weights/a")));
        let load =
            |number: i64| json!({"model_id": model, "seq_id": number, "path": path, "optimizer": true});
        let stepped = loss(&server.ask("forward", &forward(&model, 5)).await);
        server.ask("load_weights", &load(6)).await;
        let loaded = loss(&server.ask("forward", &forward(&model, 7)).await);
        assert!(stepped < loaded, "the save came before the step");
        server.ask("forward_backward", &backward(&model, 8)).await;
        server.ask("optim_step", &step(&model, 9)).await;
        let kept: Value = server.ask("save_weights", &save(10, true)).await;
        assert_eq!(kept["path"], path);
        server.ask("load_weights", &load(11)).await;
        assert_eq!(loss(&server.ask("forward", &forward(&model, 12)).await), stepped);
        server.stop().await;
    });
}
