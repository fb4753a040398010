//! JSON bodies as the official SDKs 0.38.0, 0.16.1 and 0.6.3 send and read them.

use minds_core::sampling::Stop;
use minds_tinker::convert::{adam_from_wire, pass_from_json, sample_request_from_wire};
use minds_tinker::types::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads a body of the newest SDK and writes it again: nothing may be lost, added or renamed.
fn same<T: Serialize + DeserializeOwned>(body: &str) -> T {
    let read: T = serde_json::from_str(body).unwrap();
    let written = serde_json::to_value(&read).unwrap();
    let given: Value = serde_json::from_str(body).unwrap();
    assert_eq!(sorted(&written), sorted(&given));
    read
}

/// Whether a field comes before another means nothing.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut fields: Vec<_> = map.iter().map(|(k, v)| (k.clone(), sorted(v))).collect();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Object(fields.into_iter().collect())
        }
        Value::Array(values) => Value::Array(values.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

/// Reads what an old SDK sends.
fn old<T: DeserializeOwned>(body: &str) -> T {
    serde_json::from_str(body).unwrap()
}

#[test]
fn requests_of_0_38_are_written_as_the_sdk_writes_them() {
    same::<ClientConfigRequest>(r#"{"sdk_version": "0.38.0"}"#);
    same::<CreateSessionRequest>(
        r#"{"tags": [], "user_metadata": {}, "sdk_version": "0.38.0", "type": "create_session"}"#,
    );
    same::<CreateModelRequest>(
        r#"{"session_id": "s", "model_seq_id": 0, "base_model": "Qwen/Qwen3-8B",
            "lora_config": {"rank": 8, "seed": 3, "train_unembed": true, "train_mlp": true, "train_attn": true},
            "optimizer_config": {"type": "adamw"}, "type": "create_model"}"#,
    );
    same::<RetrieveFutureRequest>(r#"{"request_id": "req-1", "allow_metadata_only": true}"#);
    same::<GetInfoRequest>(r#"{"model_id": "s:train:0", "type": "get_info"}"#);
    same::<OptimStepRequest>(
        r#"{"model_id": "s:train:0", "seq_id": 2, "type": "optim_step", "adam_params": {"learning_rate": 0.0001,
            "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0, "grad_clip_norm": 0.0}}"#,
    );
    same::<SaveWeightsForSamplerRequest>(
        r#"{"model_id": "s:train:0", "path": "samp-1", "kind": "snapshot", "seq_id": 5, "ttl_seconds": 3600,
            "type": "save_weights_for_sampler"}"#,
    );
    same::<SaveWeightsForSamplerRequest>(
        r#"{"model_id": "s:train:0", "sampling_session_seq_id": 0, "kind": "snapshot", "seq_id": 6,
            "type": "save_weights_for_sampler"}"#,
    );
    same::<CreateSamplingSessionRequest>(
        r#"{"session_id": "s", "sampling_session_seq_id": 2, "base_model": "Qwen/Qwen3-8B",
            "type": "create_sampling_session"}"#,
    );
    same::<SaveWeightsRequest>(
        r#"{"model_id": "s:train:0", "path": "ck-1", "seq_id": 7, "overwrite": false, "type": "save_weights"}"#,
    );
    same::<LoadWeightsRequest>(
        r#"{"model_id": "s:train:0", "seq_id": 8, "path": "tinker://s:train:0/weights/ck-1", "optimizer": false,
            "type": "load_weights"}"#,
    );
    same::<LoadWeightsRequest>(
        r#"{"session_id": "s", "model_seq_id": 1, "path": "tinker://s:train:0/weights/ck-1", "optimizer": false,
            "type": "load_weights"}"#,
    );
    same::<FinishSessionRequest>(r#"{"reason": {"type": "success"}, "detail": null}"#);
}

#[test]
fn a_sample_of_0_38_is_written_as_the_sdk_writes_it() {
    let request = same::<WireSampleRequest>(
        r#"{"num_samples": 1, "prompt": {"chunks": [{"tokens": [10, 11, 12], "type": "encoded_text"}]},
            "sampling_params": {"max_tokens": 2, "stop": [151645], "temperature": 1.0, "top_k": -1, "top_p": 1.0},
            "sampling_session_id": "s:sample:1", "seq_id": 413948768000000000, "prompt_logprobs": true,
            "topk_prompt_logprobs": 2, "topk_sample_logprobs": 2, "prompt_alt_tokens_k": 0,
            "record_stability_info": false, "type": "sample"}"#,
    );
    let read = sample_request_from_wire(&request, 100).unwrap();
    assert_eq!((&read.prompt[..], &read.params.stop), (&[10, 11, 12][..], &Stop::Tokens(vec![151_645])));
    assert_eq!((read.params.top_k, read.topk_prompt_logprobs), (None, 2));
    let mut again = minds_tinker::convert::sample_request_to_wire(&read);
    again.sampling_session_id = request.sampling_session_id.clone();
    again.seq_id = request.seq_id;
    assert_eq!(again, request);
}

#[test]
fn answers_are_read_by_the_sdk_as_they_are_written() {
    same::<CreateSessionResponse>(r#"{"type": "create_session", "session_id": "sess-1"}"#);
    same::<FutureHandle>(r#"{"request_id": "req-8", "sample_sequence_ids": ["a/0/0", "a/0/1"]}"#);
    same::<GetInfoResponse>(
        r#"{"type": "get_info", "model_id": "m", "is_lora": true, "lora_rank": 32, "model_name": "Qwen/Qwen3-8B",
            "model_data": {"arch": "qwen3", "model_name": "Qwen/Qwen3-8B", "tokenizer_id": "Qwen/Qwen3-8B"}}"#,
    );
    same::<ServerCapabilities>(
        r#"{"supported_models": [{"model_name": "Qwen/Qwen3-8B", "max_context_length": 32768, "trainable": true,
            "sampleable": true}]}"#,
    );
    same::<TelemetryResponse>(r#"{"status": "accepted"}"#);
    same::<WireSampler>(r#"{"sampler_id": "x", "base_model": "Qwen/Qwen3-8B", "model_path": null}"#);
    same::<WireSampleResponse>(
        r#"{"type": "sample", "sequences": [{"stop_reason": "stop", "tokens": [100, 101], "logprobs": [-0.25, -0.25]}],
            "prompt_logprobs": [null, -0.125, -0.25], "topk_prompt_logprobs": [null, [[7, -1.0], [8, -2.0]], [[1, -3.5]]]}"#,
    );
    same::<WireForwardBackwardOutput>(
        r#"{"loss_fn_output_type": "ArrayRecord", "loss_fn_outputs": [{"logprobs": {"data": [-0.5, -0.5], "dtype":
            "float32", "shape": [2]}}], "metrics": {"loss:sum": 1.5, "tokens:sum": 3.0}}"#,
    );
    same::<CheckpointList>(
        r#"{"checkpoints": [{"checkpoint_id": "weights/a", "checkpoint_type": "training", "time":
            "2026-01-01T00:00:00Z", "tinker_path": "tinker://run/weights/a", "size_bytes": 1, "public": false}]}"#,
    );
}

#[test]
fn what_old_sdks_leave_out_has_its_default() {
    let step =
        old::<OptimStepRequest>(r#"{"adam_params": {"learning_rate": 0.001}, "model_id": "m", "seq_id": 2}"#);
    let adam = adam_from_wire(&step.adam_params.unwrap()).unwrap();
    let defaults = minds_core::optim::AdamParams::default();
    assert_eq!(adam, minds_core::optim::AdamParams { learning_rate: 0.001, ..defaults });

    let session = r#"{"tags": [], "user_metadata": null, "sdk_version": "0.16.1", "project_id": null}"#;
    assert_eq!(old::<CreateSessionRequest>(session).project_id, None);
    let model = r#"{"session_id": "s", "model_seq_id": 1, "base_model": "b", "user_metadata": null, "lora_config":
        {"rank": 32, "seed": null, "train_unembed": true, "train_mlp": null}}"#;
    let lora = old::<CreateModelRequest>(model).lora_config.unwrap();
    assert_eq!((lora.seed, lora.train_mlp, lora.train_attn), (None, true, true));
    let save = r#"{"model_id": "m", "sampling_session_seq_id": 0, "seq_id": 6, "ttl_seconds": null}"#;
    let save = old::<SaveWeightsForSamplerRequest>(save);
    assert_eq!((save.path, save.kind), (None, SaveKind::Snapshot));
    let sampler = r#"{"session_id": "s", "sampling_session_seq_id": 1, "base_model": null, "model_path": "tinker://x"}"#;
    assert_eq!(old::<CreateSamplingSessionRequest>(sampler).base_model, None);
    assert!(!old::<RetrieveFutureRequest>(r#"{"request_id": "req-fb-2"}"#).allow_metadata_only);
    assert_eq!(old::<ClientConfig>("{}"), ClientConfig::default());
}

#[test]
fn a_pass_of_old_sdks_is_read() {
    let request = old::<WireForwardBackwardRequest>(
        r#"{"forward_backward_input": {"data": [{"loss_fn_inputs": {"target_tokens": {"data": [2, 3, 4], "dtype":
            "int64", "shape": [3]}, "logprobs": {"data": [0, -1.0, -1.0], "dtype": "float32", "shape": [3]},
            "advantages": {"shape": null, "dtype": "float32", "data": [0, 1, 1]}}, "model_input": {"chunks":
            [{"tokens": [1, 2]}, {"tokens": [3]}]}}], "loss_fn": "ppo", "loss_fn_config": {"clip_low_threshold":
            0.9}}, "model_id": "m", "seq_id": 3}"#,
    );
    let pass = pass_from_json(&request.forward_backward_input).unwrap();
    assert_eq!(pass.loss, minds_core::loss::Loss::Ppo { low: 0.9, high: 1.2 });
    assert_eq!(pass.data[0].input(), [1, 2, 3]);
    assert_eq!(pass_from_json(&minds_tinker::convert::pass_to_json(&pass.data, pass.loss)).unwrap(), pass);
}

#[test]
fn no_stop_and_an_empty_stop_are_two_things() {
    let stop = |params: &str| {
        let body = format!(r#"{{"prompt": {{"chunks": [{{"tokens": [1]}}]}}, "sampling_params": {params}}}"#);
        let request = sample_request_from_wire(&old::<WireSampleRequest>(&body), 8).unwrap();
        (request.params.stop, request.params.max_tokens)
    };
    assert_eq!(stop("{}"), (Stop::ModelDefault, 7));
    assert_eq!(stop(r#"{"max_tokens": 5, "stop": null}"#), (Stop::ModelDefault, 5));
    assert_eq!(stop(r#"{"stop": []}"#).0, Stop::Tokens(vec![]));
    assert_eq!(stop(r#"{"stop": "\n"}"#).0, Stop::Strings(vec!["\n".into()]));
    assert_eq!(stop(r#"{"stop": ["a", "b"]}"#).0, Stop::Strings(vec!["a".into(), "b".into()]));
}

#[test]
fn the_answers_to_a_poll_are_distinguished() {
    let parse = |body: &str| FutureAnswer::parse(body.as_bytes()).unwrap();
    let pending = r#"{"type": "try_again", "request_id": "r", "queue_state": "paused_rate_limit", "queue_state_reason": null}"#;
    assert!(
        matches!(parse(pending), FutureAnswer::Pending(t) if t.queue_state == QueueState::PausedRateLimit)
    );
    let metadata = r#"{"status": "complete_metadata", "request_id": "r", "response_payload_size": 77}"#;
    assert!(matches!(parse(metadata), FutureAnswer::Metadata(m) if m.response_payload_size == 77));
    let failed = |body| match parse(body) {
        FutureAnswer::Failed(failed) => failed.category,
        other => panic!("{other:?}"),
    };
    assert_eq!(failed(r#"{"error": "no", "category": "user"}"#), FailureCategory::User);
    assert_eq!(failed(r#"{"error": "no", "category": "martian"}"#), FailureCategory::Unknown);
    assert_eq!(failed(r#"{"error": "no"}"#), FailureCategory::Unknown);
    assert!(matches!(parse(r#"{"metrics": {"grad_norm": 1.0}}"#), FutureAnswer::Done(_)));
    assert!(matches!(parse("{}"), FutureAnswer::Done(_)));
}

#[test]
fn a_wrong_type_is_refused() {
    let wrong = r#"{"model_id": "m", "type": "unload_model"}"#;
    assert!(serde_json::from_str::<GetInfoRequest>(wrong).is_err());
    assert!(serde_json::from_str::<GetInfoRequest>(r#"{"model_id": "m", "type": null}"#).is_ok());
    assert!(serde_json::from_str::<FutureHandle>(r#"{"request_id": 7}"#).is_err());
}

#[test]
fn addresses_of_weights_are_taken_apart() {
    let path: CheckpointPath = "tinker://s:train:0/sampler_weights/step-1".parse().unwrap();
    assert_eq!((path.run.as_str(), path.kind), ("s:train:0", Some(CheckpointKind::Sampler)));
    assert_eq!(path.checkpoint_id(), "sampler_weights/step-1");
    assert_eq!(path.to_string(), "tinker://s:train:0/sampler_weights/step-1");
    for wrong in
        ["nothing", "tinker://run", "tinker://run/weights/../up", "tinker://run//x", "tinker://a/b/c/d"]
    {
        assert!(wrong.parse::<CheckpointPath>().is_err(), "{wrong}");
    }
}
