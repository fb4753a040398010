//! What Python environments cost beside the model: a call over the pipe or over HTTP, and how rollouts scale with the
//! processes. HTTP is measured with a Python that has the verifiers library: `MINDS_BENCH_PYTHON=path/to/python`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench prints, and ends at the first surprise"
)]

use async_trait::async_trait;
use minds_core::environment::{Environment as _, Oracle, RolloutSession, SelfDrivenEnvironment as _};
use minds_core::ids::{GroupId, RolloutId, Token};
use minds_core::reward::RewardError;
use minds_core::sampling::{Completion, SampleRequest, SampleResponse, SamplingParams, StopReason};
use minds_core::service::{BackendError, SamplingBackend};
use minds_environments::worker::{ModelProfile, PythonEnvironment, PythonOptions};
use minds_models::ByteTokenizer;
use serde_json::{Value, json};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Answers at once.
struct InstantSampler;

#[async_trait]
impl SamplingBackend for InstantSampler {
    async fn sample(&self, _: SampleRequest) -> Result<SampleResponse, BackendError> {
        let sampled = Completion::new(vec![111, 107], vec![-0.5; 2], StopReason::Stop);
        Ok(SampleResponse {
            sequences: vec![sampled],
            prompt_logprobs: None,
            topk_prompt_logprobs: None,
            target_prompt_logprobs: None,
            cached_prompt_tokens: 0,
        })
    }
}

#[async_trait]
impl Oracle for InstantSampler {
    async fn logprobs(&self, _: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, RewardError> {
        Ok(vec![-1.0; target.len()].into())
    }

    async fn next_tokens(&self, _: Arc<[Token]>, _: usize) -> Result<Arc<[(Token, f32)]>, RewardError> {
        Err(RewardError::Unsupported("next tokens".into()))
    }
}

fn open(package: &str, python: Option<PathBuf>, workers: usize, args: &Value) -> PythonEnvironment {
    let package = format!("{}/environments/tests/packages/{package}.py", env!("CARGO_MANIFEST_DIR"));
    let mut options = PythonOptions::new(package, args.as_object().unwrap().clone(), 1);
    options.workers = NonZeroUsize::new(workers);
    options.python = python;
    let tokenizer = Arc::new(ByteTokenizer);
    let renderer = minds_environments::render::renderer("role_colon", tokenizer.clone()).unwrap();
    let (sampling, base_model) = (SamplingParams::plain(8), "bench".into());
    PythonEnvironment::open(
        options,
        ModelProfile { renderer, tokenizer, sampling, context: 1 << 16, base_model },
    )
    .unwrap()
}

/// Plays one rollout; its reward.
async fn reward(env: &PythonEnvironment) -> f32 {
    let (left, outcome) = oneshot::channel();
    let policy = Arc::new(InstantSampler);
    let rollout = RolloutId { group: GroupId(0), member: 0 };
    let session = RolloutSession::new(rollout, policy.clone(), policy, |result| left.send(result).unwrap());
    env.run_rollouts(&env.item(0), vec![session]).await;
    outcome.await.unwrap().unwrap().score.reward.get()
}

/// Runs `groups` groups one after the other in each of `concurrency` tasks; returns the seconds taken.
async fn run_groups(env: &PythonEnvironment, concurrency: u64, groups: u64, members: u32) -> f64 {
    let begun = Instant::now();
    let playing = (0..concurrency).map(|task| async move {
        for group in 0..groups {
            let group = group * concurrency + task;
            let sessions = (0..members).map(|member| {
                let rollout = RolloutId { group: GroupId(group), member };
                let policy = Arc::new(InstantSampler);
                RolloutSession::new(rollout, policy.clone(), policy, |result| {
                    assert!(result.is_ok(), "{result:?}")
                })
            });
            env.run_rollouts(&env.item(group), sessions.collect()).await;
        }
    });
    futures::future::join_all(playing).await;
    begun.elapsed().as_secs_f64()
}

/// Rollouts per second of `workers` workers, each running 64 rollouts of 100 ms, in groups of `members`.
fn scaled(runtime: &Runtime, workers: u64, members: u32) -> f64 {
    let env = open("timed", None, workers as usize, &json!({"seconds": 0.1}));
    let (concurrency, groups) = (workers * 64 / u64::from(members), 20);
    runtime.block_on(run_groups(&env, concurrency, 1, members));
    let seconds = runtime.block_on(run_groups(&env, concurrency, groups, members));
    (concurrency * groups * u64::from(members)) as f64 / seconds
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for turns in [10, 200] {
        let long = open("timed", None, 1, &json!({"seconds": 0.0, "turns": turns}));
        runtime.block_on(run_groups(&long, 1, 1, 1));
        let seconds = runtime.block_on(run_groups(&long, 1, 2000 / turns, 1));
        println!("a turn of a conversation of {turns:3} over the pipe {:7.0} µs", seconds / 2000.0 * 1e6);
    }
    if let Some(python) = std::env::var_os("MINDS_BENCH_PYTHON") {
        let called = open("called", Some(python.into()), 1, &json!({}));
        runtime.block_on(reward(&called));
        let seconds = runtime.block_on(reward(&called));
        println!("a call over HTTP, Python's client included   {:7.0} µs", seconds * 1e6);
    }
    for (members, how) in [(8, "as they come"), (64, "all at once")] {
        let mut one = 0.0;
        for workers in [1, 2, 4, 8] {
            let rate = scaled(&runtime, workers, members);
            one = if workers == 1 { rate } else { one };
            println!(
                "{workers} workers x 64 rollouts of 100 ms, {how}   {rate:5.0} rollouts/s, {:.2} of the ideal, {:.2} of linear",
                rate / (640.0 * workers as f64),
                rate / (one * workers as f64)
            );
        }
    }
}
