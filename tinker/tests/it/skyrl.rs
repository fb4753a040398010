//! The client against a third-party server: SkyRL, started by `just skyrl`.
//!
//! The variable `MINDS_SKYRL_URL` holds its address. The tests need a server, so they are ignored by default.
#![expect(clippy::print_stdout, reason = "the numbers are recorded in docs/skyrl.md")]

use minds_core::datum::{Datum, LossInputs};
use minds_core::ids::Token;
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::sampling::{SampleRequest, SamplingParams, Stop};
use minds_core::service::{BackendError, SamplingBackend, Service, TrainingBackend};
use minds_tinker::client::{ClientOptions, WireFormat};
use minds_tinker::types::FinishReason;
use minds_tinker::{RemoteOptions, RemoteService};
use std::sync::Arc;

/// Largest difference between what sampling and what training computes for the same token.
const AGREE: f32 = 1e-4;

const PROMPT: [Token; 6] = [20, 71, 40, 41, 42, 90];

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: `just skyrl` sets it"))
}

async fn connect() -> RemoteService {
    let url = variable("MINDS_SKYRL_URL");
    let model = RemoteOptions { base_model: variable("MINDS_SKYRL_MODEL"), ..RemoteOptions::default() };
    RemoteService::connect(&ClientOptions::new(url), model).await.unwrap()
}

async fn adapter(service: &RemoteService) -> Arc<dyn TrainingBackend> {
    service.create_training(LoraSpec::all_linear(8, 1)).await.unwrap()
}

async fn close(service: RemoteService) {
    service.client().clone().finish(FinishReason::Success).await.unwrap();
}

fn request(num_samples: usize, seed: u64) -> SampleRequest {
    // Without stops every sample has its full length.
    let params = SamplingParams { seed: Some(seed), stop: Stop::Tokens(vec![]), ..SamplingParams::plain(16) };
    SampleRequest::new(Arc::new(PROMPT), num_samples, params)
}

fn next_token(tokens: &[Token]) -> Datum {
    let n = tokens.len() - 1;
    Datum::new(tokens[..n].to_vec(), tokens[1..].to_vec(), LossInputs::Weights(vec![1.0; n])).unwrap()
}

fn largest_gap(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Draws with a sampler, and compares each logprob with what scoring and a training pass say about the same tokens.
async fn compare(training: &dyn TrainingBackend, sampler: &dyn SamplingBackend) -> Vec<Vec<Token>> {
    let drawn = sampler.sample(request(4, 7)).await.unwrap().sequences;
    let whole: Vec<Vec<Token>> = drawn.iter().map(|s| [&PROMPT[..], &s.tokens].concat()).collect();
    let data: Vec<Datum> = whole.iter().map(|tokens| next_token(tokens)).collect();
    let forward = training.forward(data, Loss::CrossEntropy).await.unwrap();
    let mut gaps = [0.0f32; 2];
    for ((sampled, tokens), trained) in drawn.iter().zip(&whole).zip(&forward.logprobs) {
        let scores = sampler.logprobs(tokens.clone().into()).await.unwrap();
        assert_eq!((scores.len(), scores[0]), (tokens.len(), None));
        let scores: Vec<f32> = scores.into_iter().flatten().collect();
        gaps[0] = gaps[0].max(largest_gap(&sampled.logprobs, &trained[PROMPT.len() - 1..]));
        gaps[1] = gaps[1].max(largest_gap(&scores, trained));
    }
    println!("largest gaps to the training pass: sampled {:e}, scored {:e}", gaps[0], gaps[1]);
    assert!(gaps.iter().all(|gap| *gap <= AGREE), "{gaps:?}");
    let sum: f64 = forward.logprobs.iter().flatten().map(|lp| -f64::from(*lp)).sum();
    assert!((forward.metrics["loss:sum"] - sum).abs() < 1e-6 * sum, "the server reports no loss of its own");
    whole
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a SkyRL server: `just skyrl`"]
async fn sampling_and_training_agree_before_and_after_steps_and_in_a_copy() {
    let service = connect().await;
    let training = adapter(&service).await;
    let sampler = training.export_sampler(None).await.unwrap().sampler;
    let before = compare(&*training, &*sampler).await;
    let data = || before.iter().map(|tokens| next_token(tokens)).collect::<Vec<_>>();
    let mut losses = Vec::new();
    for _ in 0..3 {
        let pass = training.forward_backward(data(), Loss::CrossEntropy);
        let step = training.optim_step(AdamParams { learning_rate: 1e-2, ..AdamParams::default() });
        losses.push(pass.await.unwrap().metrics["loss:sum"]);
        let metrics = step.await.unwrap().metrics;
        assert!(metrics.values().all(|value| value.is_finite()), "{metrics:?}");
    }
    println!("losses {losses:?}");
    assert!(losses.is_sorted_by(|a, b| a > b), "it learns by heart what it is shown");
    let export = training.export_sampler(Some("three")).await.unwrap();
    compare(&*training, &*export.sampler).await;
    let after = training.forward(data(), Loss::CrossEntropy).await.unwrap().metrics["loss:sum"];
    assert!(after < losses[2], "sampling has undone a step");

    let state = training.save_state("state").await.unwrap();
    let copy = service.client().create_training_from(&state, true, Default::default()).await.unwrap();
    let original = training.forward(data(), Loss::CrossEntropy).await.unwrap().logprobs;
    let copied = copy.forward(data(), Loss::CrossEntropy).await.unwrap().logprobs;
    let gaps = original.iter().zip(&copied).map(|(a, b)| largest_gap(a, b));
    assert!(gaps.fold(0.0, f32::max) <= 1e-6);
    let wire = match variable("MINDS_SKYRL_WIRE").as_str() {
        "json" => WireFormat::Json,
        "protobuf" => WireFormat::Protobuf,
        other => panic!("there is no wire `{other}`"),
    };
    assert_eq!(service.client().wire(), wire);
    close(service).await;
}

/// Why `keeps_samplers` is false and runs must be on policy. Should this fail with a newer version, they need not be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a SkyRL server: `just skyrl`"]
async fn sampling_from_older_weights_puts_them_back_into_training() {
    let service = connect().await;
    assert!(!service.keeps_samplers());
    let training = adapter(&service).await;
    let older = training.export_sampler(None).await.unwrap().sampler;
    let data = || vec![next_token(&PROMPT); 4];
    let loss = async || training.forward(data(), Loss::CrossEntropy).await.unwrap().metrics["loss:sum"];
    let start = loss().await;
    training.forward_backward(data(), Loss::CrossEntropy).await.unwrap();
    training.optim_step(AdamParams { learning_rate: 1e-2, ..AdamParams::default() }).await.unwrap();
    let trained = loss().await;
    older.sample(request(4, 1)).await.unwrap();
    let after = loss().await;
    println!(
        "loss {start:.4}, after a step {trained:.4}, after sampling from the weights before it {after:.4}"
    );
    assert!(trained < start - 0.1 && (after - start).abs() < 1e-3);
    close(service).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a SkyRL server: `just skyrl`"]
async fn policy_losses_are_computed_from_fresh_samples() {
    let service = connect().await;
    let training = adapter(&service).await;
    let sampler = training.export_sampler(None).await.unwrap().sampler;
    let drawn = sampler.sample(request(4, 3)).await.unwrap().sequences;
    let clip = (0.8, 1.2);
    let losses = [
        Loss::ImportanceSampling,
        Loss::Ppo { low: clip.0, high: clip.1 },
        Loss::Cispo { low: clip.0, high: clip.1 },
    ];
    for loss in losses {
        let data = drawn.iter().zip([1.0f32, -1.0, 0.5, -0.5]).map(|(sampled, advantage)| {
            let tokens = [&PROMPT[..], &sampled.tokens].concat();
            let (n, prompt) = (tokens.len() - 1, PROMPT.len() - 1);
            let logprobs = [&vec![0.0; prompt][..], &sampled.logprobs].concat();
            let advantages = [vec![0.0; prompt], vec![advantage; sampled.tokens.len()]].concat();
            let inputs = LossInputs::Policy { logprobs, advantages };
            Datum::new(tokens[..n].to_vec(), tokens[1..].to_vec(), inputs).unwrap()
        });
        let pass = training.forward_backward(data.collect(), loss).await.unwrap();
        for (row, sampled) in pass.logprobs.iter().zip(&drawn) {
            assert!(largest_gap(&row[PROMPT.len() - 1..], &sampled.logprobs) <= AGREE, "{}", loss.name());
        }
        assert!(pass.metrics["loss:sum"].is_finite());
    }
    close(service).await;
}

/// Seeds are 31 bits there, and sample `i` of a request takes `seed + i`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a SkyRL server: `just skyrl`"]
async fn any_seed_is_taken_and_draws_the_same_again() {
    let service = connect().await;
    let sampler = service.base_sampler().await.unwrap();
    let mut drawn = Vec::new();
    for seed in [0, (1 << 31) - 1, 1 << 31, u64::MAX, 0x9e37_79b9_7f4a_7c15] {
        let [once, again] = [sampler.sample(request(4, seed)).await, sampler.sample(request(4, seed)).await];
        let once = once.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(once.sequences, again.unwrap().sequences, "seed {seed}");
        drawn.push(once.sequences);
    }
    drawn.dedup();
    assert_eq!(drawn.len(), 5, "different seeds draw the same");
    close(service).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a SkyRL server: `just skyrl`"]
async fn unsupported_features_are_reported_errors() {
    let service = connect().await;
    let training = adapter(&service).await;
    let sampler = service.base_sampler().await.unwrap();
    let topk = SampleRequest { topk_prompt_logprobs: 3, prompt_logprobs: true, ..request(1, 1) };
    let errors = [
        ("a name", training.save_state("step.1").await.map(drop), "a-zA-Z0-9_-"),
        // 0.4.0 refuses it, 0.3.0 leaves it out.
        ("top-k", sampler.sample(topk).await.map(drop), "prompt"),
        ("a rank", service.create_training(LoraSpec::all_linear(64, 1)).await.map(drop), "rank"),
    ];
    for (what, result, word) in errors {
        let error = result.expect_err(what);
        println!("{what}: {error}");
        assert!(
            matches!(error, BackendError::Rejected(_) | BackendError::Unsupported(_)),
            "{what}: {error:?}"
        );
        assert!(error.to_string().contains(word), "{what}: {error}");
    }
    // A sampler over nothing is only noticed when it is used.
    let missing = service.sampler_from("tinker://unknown/sampler_weights/none").await.unwrap();
    let error = missing.logprobs(Arc::new(PROMPT)).await.unwrap_err();
    println!("a path: {error}");
    assert!(!error.is_retryable(), "{error:?}");
    // The model still works.
    training.optim_step(AdamParams::default()).await.unwrap();
    close(service).await;
}

/// More runs than the server has places, one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a SkyRL server: `just skyrl`"]
async fn a_finished_run_leaves_its_place_to_the_next() {
    for _ in 0..10 {
        let service = connect().await;
        drop(adapter(&service).await);
        close(service).await;
    }
}
