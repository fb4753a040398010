//! What every service must do, as checks over the traits.
//!
//! Each check makes what it needs through the service, so the checks can run in any order, and concurrently. A check
//! that fails panics with what it saw. They assume a service that keeps weights, returns prompt logprobs, offers in-flight samplers, and has
//! a vocabulary of at least 64 tokens. No runtime is needed: run them on the one that the backend wants.

use crate::datum::{Datum, LossInputs};
use crate::ids::{PolicyVersion, Token};
use crate::lora::LoraSpec;
use crate::loss::Loss;
use crate::optim::AdamParams;
use crate::sampling::{SampleRequest, SampleResponse, SamplingParams, Stop, StopReason};
use crate::service::{BackendError, ForwardOutput, SamplingBackend, Service, TrainingBackend};
use std::sync::Arc;

/// Largest accepted difference between logprobs of the same tokens, obtained in two ways.
const NEAR: f32 = 1e-4;

/// Runs every check, one after the other. `run` makes the names of saved weights unique.
pub async fn all(service: &dyn Service, run: &str) {
    samples_have_the_shape_that_was_asked_for(service).await;
    a_seed_repeats_a_sample(service).await;
    sampled_scored_and_trained_logprobs_agree(service).await;
    stops_end_a_sample_and_belong_to_it(service).await;
    requests_run_in_the_order_of_the_calls(service).await;
    gradients_add_up_until_the_step(service).await;
    a_dropped_answer_is_still_executed(service).await;
    an_export_does_not_follow_the_training(service).await;
    in_flight_samplers_follow_the_training(service).await;
    saved_weights_come_back(service, run).await;
    a_name_is_given_once(service, run).await;
    what_is_forgotten_is_gone(service, run).await;
    bad_requests_are_refused(service).await;
    a_refused_request_changes_nothing(service).await;
}

/// `num_samples` sequences, lengths that agree, extras only where asked for.
pub async fn samples_have_the_shape_that_was_asked_for(service: &dyn Service) {
    let sampler = base(service).await;
    let plain = sample(&*sampler, &request(3, 5, Some(1))).await;
    assert_eq!(plain.sequences.len(), 3);
    assert!(plain.prompt_logprobs.is_none() && plain.topk_prompt_logprobs.is_none());
    for sequence in &plain.sequences {
        assert_eq!((sequence.tokens.len(), sequence.logprobs.len()), (5, 5));
        assert_eq!((sequence.stop, &sequence.topk), (StopReason::Length, &None));
        assert!(sequence.logprobs.iter().all(|lp| lp.is_finite() && *lp <= 0.0));
    }
    let full = SampleRequest { prompt_logprobs: true, topk_sample_logprobs: 2, ..request(1, 3, Some(1)) };
    let full = sample(&*sampler, &full).await;
    let scores = full.prompt_logprobs.expect("prompt_logprobs was asked for");
    assert_eq!(scores.len(), prompt().len());
    assert!(scores[0].is_none() && scores[1..].iter().all(Option::is_some), "{scores:?}");
    let lists = full.sequences[0].topk.as_ref().expect("topk_sample_logprobs was asked for");
    assert_eq!(lists.len(), 3);
    assert!(lists.iter().all(|list| list.len() == 2 && list[0].1 >= list[1].1), "{lists:?}");
}

/// A seed gives the same samples again, other samples of the request and other seeds give others.
pub async fn a_seed_repeats_a_sample(service: &dyn Service) {
    let sampler = base(service).await;
    let tokens = |r: &SampleResponse| r.sequences.iter().map(|s| s.tokens.clone()).collect::<Vec<_>>();
    let first = tokens(&sample(&*sampler, &request(2, 16, Some(7))).await);
    assert_eq!(first, tokens(&sample(&*sampler, &request(2, 16, Some(7))).await));
    assert_ne!(first[0], first[1]);
    assert_ne!(first, tokens(&sample(&*sampler, &request(2, 16, Some(8))).await));
    let few = tokens(&sample(&*sampler, &request(1, 16, Some(7))).await);
    assert_eq!(few[0], first[0], "a sample depends on how many others there are");
}

/// The logprobs from sampling a text, from scoring it and from a forward pass over it are equal.
pub async fn sampled_scored_and_trained_logprobs_agree(service: &dyn Service) {
    let training = trained(service).await;
    let sampler = training.export_sampler(None).await.expect("an export").sampler;
    let response = sample(&*sampler, &request(1, 12, Some(3))).await;
    let sampled = &response.sequences[0];
    let all: Vec<Token> = prompt().iter().chain(&sampled.tokens).copied().collect();
    let scored = sampler.logprobs(all.clone().into()).await.expect("scores");
    let tail = sampler.logprobs_from(all.clone().into(), prompt().len()).await.expect("scores of the end");
    for (whole, tail) in scored.iter().zip(&tail).skip(prompt().len()) {
        let near = whole.zip(*tail).is_some_and(|(whole, tail)| (whole - tail).abs() <= NEAR);
        assert!(near, "scored {whole:?} in the whole text, {tail:?} at its end");
    }
    let scored: Vec<f32> = scored[prompt().len()..].iter().map(|lp| lp.expect("a score")).collect();
    let n = all.len() - 1;
    let inputs = LossInputs::Weights(vec![1.0; n]);
    let datum = Datum::new(all[..n].to_vec(), all[1..].to_vec(), inputs).expect("a datum");
    let forward = training.forward(vec![datum], Loss::CrossEntropy).await.expect("a forward pass");
    let trained = &forward.logprobs[0][prompt().len() - 1..];
    for ((a, b), c) in sampled.logprobs.iter().zip(&scored).zip(trained) {
        assert!((a - b).abs() <= NEAR && (a - c).abs() <= NEAR, "sampled {a}, scored {b}, forward {c}");
    }
}

/// The stop token is the last of the sample; an empty list of stops stops nothing.
pub async fn stops_end_a_sample_and_belong_to_it(service: &dyn Service) {
    let sampler = base(service).await;
    let free = sample(&*sampler, &request(1, 8, Some(5))).await.sequences.remove(0);
    let mut with_stop = request(1, 8, Some(5));
    with_stop.params.stop = Stop::Tokens(vec![free.tokens[3]]);
    let stopped = sample(&*sampler, &with_stop).await.sequences.remove(0);
    let end = free.tokens.iter().position(|t| *t == free.tokens[3]).expect("it is there") + 1;
    assert_eq!((stopped.stop, &stopped.tokens[..]), (StopReason::Stop, &free.tokens[..end]));
}

/// Requests queued back to back see each other's effect in the order of the calls, not of the awaits.
pub async fn requests_run_in_the_order_of_the_calls(service: &dyn Service) {
    let training = fresh(service).await;
    let before = training.forward(data(), Loss::CrossEntropy);
    let pass = training.forward_backward(data(), Loss::CrossEntropy);
    let step = training.optim_step(adam());
    let after = training.forward(data(), Loss::CrossEntropy);
    let after = loss(&after.await.expect("a forward pass"));
    let before = loss(&before.await.expect("a forward pass"));
    let pass = loss(&pass.await.expect("a pass"));
    step.await.expect("a step");
    assert!((before - pass).abs() < 1e-3, "nothing lies between {before} and {pass}");
    assert!(after < before, "a step along the gradient raised the loss from {before} to {after}");
}

/// Two passes before a step are one pass over both; the step clears.
pub async fn gradients_add_up_until_the_step(service: &dyn Service) {
    let apart = fresh(service).await;
    let together = fresh(service).await;
    let first = data();
    let second = vec![datum(&[9, 8, 7, 6])];
    apart.forward_backward(first.clone(), Loss::CrossEntropy).await.expect("a pass");
    apart.forward_backward(second.clone(), Loss::CrossEntropy).await.expect("a pass");
    let both = first.into_iter().chain(second).collect();
    together.forward_backward(both, Loss::CrossEntropy).await.expect("a pass");
    // A large eps makes the step proportional to the gradient.
    let params = AdamParams { eps: 1e3, learning_rate: 10.0, ..AdamParams::default() };
    for training in [&apart, &together] {
        training.optim_step(params).await.expect("a step");
    }
    let [a, b] = [loss_of(&*apart).await, loss_of(&*together).await];
    assert!((a - b).abs() < 1e-3, "apart {a}, together {b}");
    let still = AdamParams { beta1: 0.0, ..params };
    apart.optim_step(still).await.expect("a step");
    let c = loss_of(&*apart).await;
    assert!((a - c).abs() < 1e-3, "a step without gradients changed {a} to {c}");
}

/// A request is executed even if the caller drops its future.
pub async fn a_dropped_answer_is_still_executed(service: &dyn Service) {
    let training = fresh(service).await;
    let before = loss_of(&*training).await;
    drop(training.forward_backward(data(), Loss::CrossEntropy));
    drop(training.optim_step(adam()));
    let after = loss_of(&*training).await;
    assert!(after < before, "{after} is not below {before}");
}

/// A sampler keeps the weights of the moment of the call.
pub async fn an_export_does_not_follow_the_training(service: &dyn Service) {
    let training = fresh(service).await;
    let export = training.export_sampler(None);
    drop(training.forward_backward(data(), Loss::CrossEntropy));
    drop(training.optim_step(adam()));
    let later = training.export_sampler(None).await.expect("an export").sampler;
    let export = export.await.expect("an export");
    assert_eq!(export.path, None);
    let tokens: Arc<[Token]> = prompt();
    let start = base(service).await.logprobs(tokens.clone()).await.expect("scores");
    let early = export.sampler.logprobs(tokens.clone()).await.expect("scores");
    let late = later.logprobs(tokens).await.expect("scores");
    // A fresh adapter changes nothing, so the early export is the base model.
    assert!(distance(&start, &early) <= NEAR, "the export followed the training");
    assert!(distance(&start, &late) > NEAR, "the training changed nothing");
}

/// All in-flight samplers of an adapter have the weights that were published last.
pub async fn in_flight_samplers_follow_the_training(service: &dyn Service) {
    let training = fresh(service).await;
    let early = training.publish_in_flight(PolicyVersion(0)).await.expect("a publication");
    let before = early.logprobs(prompt()).await.expect("scores");
    drop(training.forward_backward(data(), Loss::CrossEntropy));
    drop(training.optim_step(adam()));
    let export = training.export_sampler(None);
    let late = training.publish_in_flight(PolicyVersion(1)).await.expect("a publication");
    let fixed = export.await.expect("an export").sampler.logprobs(prompt()).await.expect("scores");
    let early = early.logprobs(prompt()).await.expect("scores");
    let late = late.logprobs(prompt()).await.expect("scores");
    assert!(distance(&early, &late) <= NEAR, "the first sampler did not follow");
    assert!(distance(&late, &fixed) <= NEAR, "the published weights are not those of the adapter");
    assert!(distance(&before, &late) > NEAR, "the training changed nothing");
}

/// A checkpoint loaded with its optimizer resumes exactly like the original; saved sampler weights sample alike.
pub async fn saved_weights_come_back(service: &dyn Service, run: &str) {
    let original = trained(service).await;
    let path = original.save_state(&format!("{run}-state")).await.expect("a save");
    let copy = fresh(service).await;
    copy.load_state(&path, true).await.expect("a load");
    for step in 0..3 {
        let [a, b] = [loss_of(&*original).await, loss_of(&*copy).await];
        assert!((a - b).abs() < 1e-4 * a.abs().max(1.0), "step {step}: {a} went on as {b}");
        for training in [&original, &copy] {
            drop(training.forward_backward(data(), Loss::CrossEntropy));
            training.optim_step(adam()).await.expect("a step");
        }
    }
    let export = original.export_sampler(Some(&format!("{run}-sampler"))).await.expect("an export");
    let reopened = service.sampler_from(&export.path.expect("a path")).await.expect("a sampler");
    let [a, b] = [&export.sampler, &reopened].map(|s| s.logprobs(prompt()));
    assert!(distance(&a.await.expect("scores"), &b.await.expect("scores")) <= NEAR);
}

/// A second save under a name is refused and the first one stays; what was never saved is not found.
pub async fn a_name_is_given_once(service: &dyn Service, run: &str) {
    let training = fresh(service).await;
    let name = format!("{run}-once");
    training.save_state(&name).await.expect("a save");
    rejected("a taken name", training.save_state(&name).await);
    rejected("a name like a path", training.save_state("../up").await);
    rejected("an unknown path", training.load_state("tinker://unknown/weights/nothing", true).await);
    rejected("no path at all", training.load_state("nothing", true).await);
    rejected("an unknown path", service.sampler_from("tinker://unknown/sampler_weights/nothing").await);
}

/// Deleted weights cannot be loaded, and others still can. Services that cannot delete report it as unsupported.
pub async fn what_is_forgotten_is_gone(service: &dyn Service, run: &str) {
    let training = trained(service).await;
    let [kept, gone] = ["kept", "gone"].map(|name| training.save_state(&format!("{run}-{name}")));
    let kept = kept.await.expect("a save");
    let gone = gone.await.expect("a save");
    match service.delete(&gone).await {
        Err(BackendError::Unsupported(_)) => return,
        forgotten => forgotten.expect("a deletion"),
    }
    rejected("what was deleted", training.load_state(&gone, false).await);
    training.load_state(&kept, false).await.expect("a load");
}

/// What can never be served is refused as such, by samplers and by trainings.
pub async fn bad_requests_are_refused(service: &dyn Service) {
    let info = service.info();
    let sampler = base(service).await;
    let training = fresh(service).await;
    let outside = Token::try_from(info.vocab).expect("a vocabulary of 32 bits");
    let good = request(1, 1, None);
    for (what, bad) in [
        ("an empty prompt", SampleRequest { prompt: Arc::new([]), ..good.clone() }),
        ("an unknown token", SampleRequest { prompt: Arc::new([1, outside]), ..good.clone() }),
        ("a prompt without end", SampleRequest { prompt: vec![1; info.context + 1].into(), ..good.clone() }),
        ("no samples", request(0, 1, None)),
        ("no tokens", request(1, 0, None)),
    ] {
        rejected(what, sampler.sample(bad).await);
    }
    let loss = Loss::CrossEntropy;
    rejected("an unknown token", training.forward_backward(vec![datum(&[1, outside, 2])], loss).await);
    rejected("a datum without end", training.forward(vec![datum(&vec![1; info.context + 2])], loss).await);
    rejected("the tensors of another loss", training.forward(data(), Loss::ImportanceSampling).await);
    let rate = AdamParams { learning_rate: f64::NAN, ..AdamParams::default() };
    rejected("no learning rate", training.optim_step(rate).await);
    rejected("an impossible spec", service.create_training(LoraSpec::all_linear(0, 0)).await);
}

/// A refused pass adds no gradients and breaks nothing.
pub async fn a_refused_request_changes_nothing(service: &dyn Service) {
    let training = fresh(service).await;
    let before = loss_of(&*training).await;
    rejected("other tensors", training.forward_backward(data(), Loss::ImportanceSampling).await);
    training.optim_step(AdamParams { eps: 1.0, ..adam() }).await.expect("a step without gradients");
    let after = loss_of(&*training).await;
    assert!((before - after).abs() < 1e-3, "{before} became {after}");
}

fn prompt() -> Arc<[Token]> {
    Arc::new([3, 1, 4, 1, 5, 9, 2, 6])
}

fn request(num_samples: usize, max_tokens: usize, seed: Option<u64>) -> SampleRequest {
    let params = SamplingParams { seed, stop: Stop::Tokens(vec![]), ..SamplingParams::plain(max_tokens) };
    SampleRequest::new(prompt(), num_samples, params)
}

fn datum(tokens: &[Token]) -> Datum {
    let n = tokens.len() - 1;
    let inputs = LossInputs::Weights(vec![1.0; n]);
    Datum::new(tokens[..n].to_vec(), tokens[1..].to_vec(), inputs).expect("tensors of one length")
}

fn data() -> Vec<Datum> {
    vec![datum(&prompt()), datum(&[2, 7, 1, 8, 2, 8])]
}

fn adam() -> AdamParams {
    AdamParams { learning_rate: 1e-3, ..AdamParams::default() }
}

async fn base(service: &dyn Service) -> Arc<dyn SamplingBackend> {
    service.base_sampler().await.expect("a base sampler")
}

async fn fresh(service: &dyn Service) -> Arc<dyn TrainingBackend> {
    service.create_training(LoraSpec::all_linear(4, 1)).await.expect("an adapter")
}

async fn trained(service: &dyn Service) -> Arc<dyn TrainingBackend> {
    let training = fresh(service).await;
    drop(training.forward_backward(data(), Loss::CrossEntropy));
    training.optim_step(adam()).await.expect("a step");
    training
}

async fn sample(sampler: &dyn SamplingBackend, request: &SampleRequest) -> SampleResponse {
    sampler.sample(request.clone()).await.expect("a sample")
}

async fn loss_of(training: &dyn TrainingBackend) -> f64 {
    loss(&training.forward(data(), Loss::CrossEntropy).await.expect("a forward pass"))
}

fn loss(forward: &ForwardOutput) -> f64 {
    *forward.metrics.get("loss:sum").expect("every pass reports loss:sum")
}

fn distance(a: &[Option<f32>], b: &[Option<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a.unwrap_or(0.0) - b.unwrap_or(0.0)).abs()).fold(0.0, f32::max)
}

fn rejected<T>(what: &str, result: Result<T, BackendError>) {
    match result {
        Err(BackendError::Rejected(_)) => {}
        Err(other) => panic!("{what} must be rejected, it gave: {other}"),
        Ok(_) => panic!("{what} was accepted"),
    }
}
