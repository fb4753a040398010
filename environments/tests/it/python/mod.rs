//! Python environments in real processes, over a policy that a test scripts.

mod classic;
mod clients;
mod contract;
mod faults;
mod model_aware;
mod original;
mod packages;
mod slow;

use crate::support::{Bytes, renderer};
use async_trait::async_trait;
use minds_core::chat::Tokenizer as _;
use minds_core::datum::Datum;
use minds_core::environment::{
    AdapterLease, Environment as _, Oracle, RolloutSession, SelfDrivenEnvironment as _, SessionError,
    SessionRollout,
};
use minds_core::ids::{GroupId, RolloutId, Token};
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::reward::RewardError;
use minds_core::sampling::{Completion, SampleRequest, SampleResponse, SamplingParams, Stop, StopReason};
use minds_core::service::{
    BackendError, Export, ForwardOutput, OptimStep, Pending, SamplingBackend, TrainingBackend,
};
use minds_environments::EnvError;
use minds_environments::worker::{ModelProfile, PythonEnvironment, PythonOptions};
use serde_json::{Map, Value, json};
use std::future::ready;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

pub const MODEL: &str = "test/model";

pub fn package(name: &str) -> String {
    format!("{}/tests/packages/{name}.py", env!("CARGO_MANIFEST_DIR"))
}

pub fn profile() -> ModelProfile {
    let tokenizer = Bytes::chatml();
    let renderer = renderer("chatml", tokenizer.clone());
    let sampling = SamplingParams { stop: renderer.stop(), ..SamplingParams::plain(256) };
    ModelProfile { renderer, tokenizer, sampling, context: 4096, base_model: MODEL.into() }
}

pub fn options(name: &str, args: &Value) -> PythonOptions {
    let args: Map<String, Value> = args.as_object().unwrap().clone();
    PythonOptions::new(package(name), args, 7)
}

pub fn open(name: &str) -> PythonEnvironment {
    try_open(options(name, &json!({}))).unwrap()
}

pub fn try_open(options: PythonOptions) -> Result<PythonEnvironment, EnvError> {
    PythonEnvironment::open(options, profile())
}

type Script = Box<dyn Fn(&str, usize) -> Result<String, BackendError> + Send + Sync>;

/// A policy that answers the last message by a script; the number counts its answers. Every sampled token has the
/// logprob of minus its place in the answer, every scored one that of minus a hundredth of its value.
pub struct Scripted {
    script: Script,
    pub asked: Mutex<Vec<SampleRequest>>,
}

impl Scripted {
    pub fn new(script: impl Fn(&str, usize) -> String + Send + Sync + 'static) -> Arc<Self> {
        Self::failing(move |said, n| Ok(script(said, n)))
    }

    pub fn failing(
        script: impl Fn(&str, usize) -> Result<String, BackendError> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { script: Box::new(script), asked: Mutex::default() })
    }

    /// Prompts as text, control tokens spelled out.
    pub fn prompts(&self) -> Vec<String> {
        let tokenizer = Bytes::chatml();
        self.asked.lock().unwrap().iter().map(|request| tokenizer.spell(&request.prompt)).collect()
    }
}

#[async_trait]
impl SamplingBackend for Scripted {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        let tokenizer = Bytes::chatml();
        let number = {
            let mut asked = self.asked.lock().unwrap();
            asked.push(request.clone());
            asked.len() - 1
        };
        let text = tokenizer.spell(&request.prompt);
        let said = text.rsplit("<|im_start|>").nth(1).unwrap_or(&text);
        let said =
            said.split_once('\n').map_or(said, |(_, said)| said).trim_end().trim_end_matches("<|im_end|>");
        let answer = (self.script)(said, number)?;
        let mut tokens = tokenizer.encode(&answer);
        let stops = match &request.params.stop {
            Stop::Tokens(tokens) => tokens.clone(),
            _ => tokenizer.stop_tokens(),
        };
        let cut = tokens.len() >= request.params.max_tokens;
        tokens.truncate(request.params.max_tokens);
        if !cut {
            tokens.extend(stops.first());
        }
        let logprobs = (0..tokens.len()).map(|at| -(at as f32)).collect();
        let stop = if cut { StopReason::Length } else { StopReason::Stop };
        let sampled = Completion::new(tokens, logprobs, stop);
        Ok(SampleResponse {
            sequences: vec![sampled; request.num_samples],
            prompt_logprobs: None,
            topk_prompt_logprobs: None,
            target_prompt_logprobs: None,
            cached_prompt_tokens: 0,
        })
    }
}

#[async_trait]
impl Oracle for Scripted {
    async fn logprobs(&self, _: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, RewardError> {
        Ok(target.iter().map(|token| -(*token as f32) / 100.0).collect())
    }

    async fn next_tokens(&self, _: Arc<[Token]>, _: usize) -> Result<Arc<[(Token, f32)]>, RewardError> {
        Err(RewardError::Unsupported("the test asks for logprobs only".into()))
    }

    async fn lease_adapter(&self) -> Result<AdapterLease, RewardError> {
        Ok(AdapterLease { training: Arc::new(Halving::default()), guard: Box::new(()) })
    }
}

/// An adapter of which each step halves the logprobs that the policy has.
#[derive(Default)]
struct Halving {
    steps: AtomicI32,
}

impl TrainingBackend for Halving {
    fn forward(&self, data: Vec<Datum>, _: Loss) -> Pending<ForwardOutput> {
        let scale = -0.01 * 0.5_f32.powi(self.steps.load(Relaxed));
        let row = |datum: &Datum| datum.targets().iter().map(|token| *token as f32 * scale).collect();
        let logprobs = data.iter().map(row).collect();
        Box::pin(ready(Ok(ForwardOutput { logprobs, metrics: [].into() })))
    }

    fn forward_backward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        self.forward(data, loss)
    }

    fn optim_step(&self, _: AdamParams) -> Pending<OptimStep> {
        self.steps.fetch_add(1, Relaxed);
        Box::pin(ready(Ok(OptimStep::default())))
    }

    fn save_state(&self, _: &str) -> Pending<String> {
        Box::pin(ready(Err(BackendError::Unsupported("the test saves nothing".into()))))
    }

    fn load_state(&self, _: &str, _: bool) -> Pending<()> {
        Box::pin(ready(Err(BackendError::Unsupported("the test loads nothing".into()))))
    }

    fn export_sampler(&self, _: Option<&str>) -> Pending<Export> {
        Box::pin(ready(Err(BackendError::Unsupported("the test exports nothing".into()))))
    }
}

pub type Outcome = Result<SessionRollout, SessionError>;

pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Runs one rollout of an item per policy, all in one group.
pub async fn play_group(env: &PythonEnvironment, item: u64, policies: &[Arc<Scripted>]) -> Vec<Outcome> {
    play_seats(env, item, policies).await
}

/// The same with any kind of policy.
pub async fn play_seats<P: SamplingBackend + Oracle + 'static>(
    env: &PythonEnvironment,
    item: u64,
    policies: &[Arc<P>],
) -> Vec<Outcome> {
    let item = env.item(item);
    let (seats, outcomes): (Vec<_>, Vec<_>) = (0..)
        .zip(policies)
        .map(|(member, policy)| {
            let (left, outcome) = oneshot::channel();
            let rollout = RolloutId { group: GroupId(1), member };
            let exit = move |result| assert!(left.send(result).is_ok(), "the receiver is alive");
            (RolloutSession::new(rollout, policy.clone(), policy.clone(), exit), outcome)
        })
        .unzip();
    env.run_rollouts(&item, seats).await;
    futures::future::join_all(outcomes).await.into_iter().map(|outcome| outcome.unwrap()).collect()
}

/// Runs one rollout of an item.
pub fn play(env: &PythonEnvironment, item: u64, policy: &Arc<Scripted>) -> Outcome {
    block_on(play_group(env, item, std::slice::from_ref(policy))).remove(0)
}

/// Runs one rollout of an item per answer, all in one group.
pub fn answers(env: &PythonEnvironment, item: u64, all: &[&str]) -> Vec<Outcome> {
    let policies: Vec<_> = all
        .iter()
        .map(|answer| {
            let answer = (*answer).to_owned();
            Scripted::new(move |_, _| answer.clone())
        })
        .collect();
    block_on(play_group(env, item, &policies))
}

/// Asserts that the first reported conversation renders to the prompt that was sent.
pub fn opens_with_what_was_sent(performance: &SessionRollout) {
    let rendered = profile().renderer.prompt(&performance.opening).unwrap();
    assert_eq!(rendered, *performance.turns[0].prompt, "{:?}", performance.opening);
}

pub fn reward(outcome: &Outcome) -> f32 {
    outcome.as_ref().map(|performance| performance.score.reward.get()).unwrap_or_else(|e| panic!("{e}"))
}

pub fn cause(outcome: &Outcome) -> String {
    outcome.as_ref().expect_err("there is no reward").to_string()
}
