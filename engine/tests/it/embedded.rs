//! The embedded service: the contract of all backends, and what it promises beyond.

use crate::service::{bits, engine, model, options, prompt, request, rollout, service, trained, wait};
use minds_core::datum::{Datum, LossInputs};
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::service::{BackendError, Service, TrainingBackend};
use minds_engine::embedded::EmbeddedService;
use minds_engine::runtime::{EngineOptions, SamplingWeights};
use minds_engine::train::LogprobRows;
use std::sync::{Arc, mpsc};

#[test]
fn it_keeps_the_contract() {
    let state = tempfile::tempdir().unwrap();
    let service = service(&EngineOptions { checkpoint_dir: Some(state.path().into()), ..options() });
    wait(minds_core::contract::all(&service, "contract"));
}

#[test]
fn the_engine_reports_its_capabilities() {
    let info = service(&options()).info();
    assert_eq!((info.name.as_str(), info.base_model.as_str()), ("embedded", "tiny"));
    assert_eq!((info.vocab, info.context, info.topk_prompt_logprobs), (259, 2048, true));
}

#[test]
fn sampling_beside_training_gives_the_same_bits() {
    let service = service(&options());
    let training = trained(&service, LogprobRows::All);
    let sampler = wait(training.export_sampler(None)).unwrap().sampler;
    let ask = || request(prompt(60, 1), 6, 60, 5);
    let quiet = bits(&wait(sampler.sample(ask())).unwrap());
    let data: Vec<_> = (0..8).map(|i| rollout(&prompt(100, i), &[1, 2, 3], &[-5.0; 3], 1.0)).collect();
    let mut queued = Vec::new();
    for _ in 0..6 {
        drop(training.forward_backward(data.clone(), Loss::ImportanceSampling));
        queued.push(training.optim_step(AdamParams::default()));
    }
    let noisy = bits(&wait(sampler.sample(ask())).unwrap());
    for step in queued {
        wait(step).unwrap();
    }
    assert_eq!(quiet, noisy);
    let stats = service.stats();
    assert_eq!((stats.optim_steps, stats.trained_tokens), (9, 6 * 8 * 102 + 3 * 23));
}

#[test]
fn positions_that_were_not_computed_are_not_numbers() {
    let service = service(&options());
    let (all, some) = (trained(&service, LogprobRows::All), trained(&service, LogprobRows::Trained));
    let data = || vec![rollout(&prompt(10, 1), &[1, 2, 3], &[-5.0; 3], 1.0)];
    let [full, part] =
        [&all, &some].map(|t| wait(t.forward_backward(data(), Loss::ImportanceSampling)).unwrap());
    assert_eq!(full.metrics, part.metrics);
    assert!(full.logprobs[0].iter().all(|lp| lp.is_finite() && *lp < 0.0));
    assert!(part.logprobs[0][..9].iter().all(|lp| lp.is_nan()));
    assert_eq!(full.logprobs[0][9..], part.logprobs[0][9..]);
    let forward = wait(some.forward(data(), Loss::ImportanceSampling)).unwrap();
    assert_eq!(forward.logprobs, full.logprobs, "a forward pass answers in full");
}

#[test]
fn numbers_that_overflow_are_refused_and_leave_everything_as_it_was() {
    let service = service(&options());
    let training = trained(&service, LogprobRows::All);
    let data = |q: f32| vec![rollout(&prompt(10, 1), &[1, 2, 3], &[q; 3], 1.0)];
    let loss = |t: &dyn TrainingBackend| {
        wait(t.forward(data(-5.0), Loss::ImportanceSampling)).unwrap().metrics["loss:sum"]
    };
    let before = loss(&training);
    let overflow = wait(training.forward_backward(data(-1e4), Loss::ImportanceSampling));
    assert!(matches!(overflow, Err(BackendError::Rejected(_))), "{overflow:?}");
    wait(training.forward_backward(data(-5.0), Loss::ImportanceSampling)).unwrap();
    let wrong = AdamParams { learning_rate: -1.0, ..AdamParams::default() };
    let step = wait(training.optim_step(wrong));
    assert!(matches!(step, Err(BackendError::Rejected(_))), "{step:?}");
    assert_eq!(loss(&training), before);
    let good = wait(training.optim_step(AdamParams::default())).unwrap();
    assert!(good.metrics["grad_norm"] > 0.0, "the gradients are still there: {good:?}");
    let stepped = loss(&training);
    assert_ne!(stepped, before);
    let refused = training.forward_backward(data(-1e4), Loss::ImportanceSampling);
    let behind = training.optim_step(AdamParams::default());
    assert!(wait(refused).is_err());
    wait(behind).unwrap();
    assert_eq!(loss(&training), stepped, "a step behind a refused pass moves nothing, momentum or not");
}

/// A datum of cross-entropy whose gradient is `weight` times that of the plain one.
fn weighted(weight: f32) -> Vec<Datum> {
    let inputs = LossInputs::Weights(vec![weight; 4]);
    vec![Datum::new(vec![3, 1, 4, 1], vec![1, 4, 1, 5], inputs).unwrap()]
}

#[test]
fn a_step_whose_squares_overflow_drops_its_gradients_and_the_next_one_is_made() {
    let service = service(&options());
    let (hit, spared) = (trained(&service, LogprobRows::All), trained(&service, LogprobRows::All));
    let pass = |t: &dyn TrainingBackend, weight| {
        wait(t.forward_backward(weighted(weight), Loss::CrossEntropy)).unwrap().metrics["loss:sum"]
    };
    // Finite in 32 bits, with squares that are not.
    for params in [AdamParams::default(), AdamParams { learning_rate: 1e300, ..AdamParams::default() }] {
        pass(&hit, if params.learning_rate < 1.0 { 1e30 } else { 1.0 });
        match wait(hit.optim_step(params)) {
            Err(BackendError::Rejected(why)) => {
                assert!(why.contains("not finite") && why.contains("dropped"), "{why}");
            }
            other => panic!("{other:?}"),
        }
    }
    for _ in 0..3 {
        assert_eq!(pass(&hit, 1.0), pass(&spared, 1.0), "weights or moments have moved");
        let [one, other] = [&hit, &spared].map(|t| wait(t.optim_step(AdamParams::default())).unwrap());
        assert_eq!(one, other, "something is left of the refused gradients");
    }
}

#[test]
fn clipping_rescues_a_gradient_whose_squares_overflow() {
    let service = service(&options());
    let (huge, plain) = (trained(&service, LogprobRows::All), trained(&service, LogprobRows::All));
    let clipped = AdamParams { grad_clip_norm: 1e-3, ..AdamParams::default() };
    let mut norms = Vec::new();
    // A power of two, so that the gradients are the same but for their exponents.
    for (training, weight) in [(&huge, 2f32.powi(100)), (&plain, 1.0)] {
        wait(training.forward_backward(weighted(weight), Loss::CrossEntropy)).unwrap();
        norms.push(wait(training.optim_step(clipped)).unwrap().metrics["grad_norm"]);
    }
    assert!((norms[0] / norms[1] / 2f64.powi(100) - 1.0).abs() < 1e-6, "{norms:?}");
    let [huge, plain] = [&huge, &plain]
        .map(|t| wait(t.forward(weighted(1.0), Loss::CrossEntropy)).unwrap().metrics["loss:sum"]);
    assert!((huge - plain).abs() < 1e-6 * plain.abs(), "{huge} for {plain}");
}

#[test]
fn without_a_state_folder_nothing_can_be_saved() {
    let service = service(&options());
    let training = trained(&service, LogprobRows::All);
    for result in [wait(training.save_state("a")).err(), wait(training.export_sampler(Some("a"))).err()] {
        assert!(matches!(result, Some(BackendError::Unsupported(_))), "{result:?}");
    }
}

#[test]
fn a_checkpoint_makes_a_new_adapter_of_the_same_form() {
    let state = tempfile::tempdir().unwrap();
    let options = EngineOptions { checkpoint_dir: Some(state.path().into()), ..options() };
    let first = service(&options);
    let training = trained(&first, LogprobRows::All);
    let path = wait(training.save_state("a")).unwrap();
    assert_eq!(path, format!("tinker://{}/weights/a", training.run()));
    drop(first);

    let second = service(&options);
    let next = wait(second.training_from(None, &path, true, LogprobRows::All)).unwrap();
    assert_eq!(next.spec(), training.spec());
    assert_ne!(next.run(), training.run(), "a run is never used twice");
    let data = || vec![rollout(&prompt(10, 1), &[1, 2, 3], &[-5.0; 3], 1.0)];
    for _ in 0..2 {
        let [a, b] =
            [&training, &next].map(|t| wait(t.forward_backward(data(), Loss::Cispo { low: 0.0, high: 4.0 })));
        assert_eq!(a.unwrap(), b.unwrap());
        for t in [&training, &next] {
            wait(t.optim_step(AdamParams::default())).unwrap();
        }
    }
    let other = wait(second.training(None, LoraSpec::all_linear(5, 0), LogprobRows::All)).unwrap();
    assert!(matches!(wait(other.load_state(&path, false)), Err(BackendError::Rejected(_))));
    let named =
        wait(second.training(Some("s:train:0"), LoraSpec::all_linear(4, 0), LogprobRows::All)).unwrap();
    assert_eq!(wait(named.save_state("x")).unwrap(), "tinker://s:train:0/weights/x");
    for bad in ["", "..", "a/b"] {
        assert!(
            wait(second.training(Some(bad), LoraSpec::all_linear(4, 0), LogprobRows::All)).is_err(),
            "{bad}"
        );
    }
}

#[test]
fn a_training_job_that_panics_answers_and_the_next_one_runs() {
    let engine = engine(&options());
    let broken = engine.train(|_| -> Result<(), BackendError> { panic!("a job with a bug") });
    let next = engine.train(|_| Ok(7));
    match wait(broken) {
        Err(BackendError::Unavailable(text)) => assert!(text.contains("a job with a bug"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(wait(next), Ok(7));
}

#[test]
fn the_engine_ends_after_the_operation_it_is_in() {
    let model = model();
    let service = EmbeddedService::start(model.clone(), None, &options()).unwrap();
    drop(service);
    let engine = minds_engine::runtime::Engine::start(model.clone(), None, &options()).unwrap();
    let (go, gate) = mpsc::channel::<()>();
    let (started, running) = mpsc::channel();
    let current = engine.train(move |_| {
        started.send(()).unwrap();
        gate.recv().unwrap();
        Ok(1)
    });
    let queued = engine.train(|_| Ok(2));
    running.recv().unwrap();
    drop(engine);
    go.send(()).unwrap();
    assert_eq!(wait(current), Ok(1));
    assert!(matches!(wait(queued), Err(BackendError::Lost(_))));

    // A model of its own: the threads of the engines before may hold theirs for a moment longer.
    let model = crate::service::model();
    let engine = minds_engine::runtime::Engine::start(model, None, &options()).unwrap();
    let mine = Arc::downgrade(engine.model());
    let endless = engine.sample(SamplingWeights::Base, request(prompt(5, 1), 4, 2000, 1)).unwrap();
    engine.stop();
    assert_eq!(mine.strong_count(), 0, "a thread still holds the model");
    // It may have ended just before.
    assert!(matches!(wait(endless), Err(BackendError::Lost(_)) | Ok(_)));
}

#[test]
fn a_full_queue_asks_the_caller_to_retry() {
    let engine = engine(&EngineOptions { max_waiting: 0, ..options() });
    let refused = engine.sample(SamplingWeights::Base, request(prompt(5, 1), 1, 1, 1)).err().unwrap();
    assert!(refused.is_retryable(), "{refused}");
}

#[test]
fn requests_without_a_seed_follow_the_engines() {
    let draw = |seed| {
        let service = service(&EngineOptions { seed, ..options() });
        let sampler = wait(service.base_sampler()).unwrap();
        let mut ask = request(prompt(5, 1), 1, 12, 0);
        ask.params.seed = None;
        [0, 1].map(|_| bits(&wait(sampler.sample(ask.clone())).unwrap()))
    };
    let (a, b, c) = (draw(1), draw(1), draw(2));
    assert_eq!(a, b);
    assert!(a[0] != a[1] && a[0] != c[0]);
}
