//! A policy that replaces the model when a Python package is tried: no requests are sent, and nothing is learned.
//!
//! It gives one fixed completion, finite logprobs for every query, and an adapter whose steps do nothing. So an error
//! against it comes from the package's own code.

use async_trait::async_trait;
use minds_core::datum::Datum;
use minds_core::environment::{
    AdapterLease, Environment, FrozenWeights, LogprobDelta, Oracle, RolloutSession, SessionError,
    SessionRollout,
};
use minds_core::ids::{GroupId, RolloutId, Token};
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::reward::RewardError;
use minds_core::sampling::{Completion, SampleRequest, SampleResponse, Stop, StopReason, TopK};
use minds_core::service::{
    BackendError, Export, ForwardOutput, OptimStep, Pending, SamplingBackend, TrainingBackend,
};
use minds_environments::worker::ModelProfile;
use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Text of every completion.
pub const COMPLETION: &str = "A stand-in answer: 1";
/// The logprob of every token.
const LOGPROB: f32 = -1.0;

/// Runs a rollout of the first item of a self-driven environment, or a whole group where rewards compare its members.
///
/// # Errors
/// The reward error of the first member without a reward.
pub async fn run_rollouts(
    environment: &dyn Environment,
    group_size: u32,
    profile: ModelProfile,
) -> Result<Vec<SessionRollout>, SessionError> {
    let nobody = || RewardError::Environment("it does not play by itself".into());
    let self_driven = environment.self_driven().ok_or_else(nobody)?;
    let members = if self_driven.compares_rollouts() { group_size } else { 1 };
    let stub_model = StubModel { profile: Arc::new(profile) };
    let (sessions, results): (Vec<_>, Vec<_>) = (0..members)
        .map(|member| {
            let (left, result) = oneshot::channel();
            let rollout = RolloutId { group: GroupId(0), member };
            let exit = move |result| drop(left.send(result));
            (
                RolloutSession::new(
                    rollout,
                    Arc::new(stub_model.clone()),
                    Arc::new(stub_model.clone()),
                    exit,
                ),
                result,
            )
        })
        .unzip();
    self_driven.run_rollouts(&environment.item(0), sessions).await;
    let mut performances = Vec::new();
    for result in results {
        performances.push(result.await.unwrap_or_else(|_| Err(nobody().into()))?);
    }
    Ok(performances)
}

#[derive(Clone)]
struct StubModel {
    profile: Arc<ModelProfile>,
}

impl StubModel {
    fn complete(&self, request: &SampleRequest) -> Completion {
        let tokenizer = &self.profile.tokenizer;
        let mut tokens = tokenizer.encode(COMPLETION);
        match &request.params.stop {
            Stop::Tokens(stops) => tokens.extend(stops.first()),
            Stop::Strings(stops) => {
                tokens.extend(stops.first().map(|stop| tokenizer.encode(stop)).unwrap_or_default())
            }
            Stop::ModelDefault => tokens.extend(tokenizer.stop_tokens().first()),
        }
        let most = request.params.max_tokens;
        let stop = if tokens.len() > most { StopReason::Length } else { StopReason::Stop };
        tokens.truncate(most);
        let topk = (request.topk_sample_logprobs > 0)
            .then(|| tokens.iter().map(|_| likely(request.topk_sample_logprobs)).collect());
        Completion { logprobs: vec![LOGPROB; tokens.len()], tokens, stop, topk }
    }
}

/// The first tokens of the vocabulary, each less likely than the one before.
fn likely(k: usize) -> TopK {
    (0..k).map(|at| (at as Token, LOGPROB - at as f32)).collect()
}

#[async_trait]
impl SamplingBackend for StubModel {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        let k = request.topk_prompt_logprobs;
        let of_prompt = |at: usize| (at > 0).then_some(LOGPROB);
        Ok(SampleResponse {
            sequences: vec![self.complete(&request); request.num_samples],
            prompt_logprobs: request
                .prompt_logprobs
                .then(|| (0..request.prompt.len()).map(of_prompt).collect()),
            topk_prompt_logprobs: (k > 0)
                .then(|| (0..request.prompt.len()).map(|at| (at > 0).then(|| likely(k))).collect()),
            cached_prompt_tokens: 0,
        })
    }
}

#[async_trait]
impl Oracle for StubModel {
    async fn logprobs(&self, _: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, RewardError> {
        Ok(vec![LOGPROB; target.len()].into())
    }

    async fn next_tokens(&self, _: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, RewardError> {
        Ok(likely(k).into())
    }

    async fn logprob_delta(
        &self,
        _: Datum,
        _: Arc<[Token]>,
        target: Arc<[Token]>,
    ) -> Result<LogprobDelta, RewardError> {
        let before = f64::from(LOGPROB) * target.len() as f64;
        Ok(LogprobDelta { before, after: before / 2.0 })
    }

    async fn lease_adapter(&self) -> Result<AdapterLease, RewardError> {
        Ok(AdapterLease { training: Arc::new(self.clone()), guard: Box::new(()) })
    }

    async fn frozen(&self, _: FrozenWeights) -> Result<Arc<dyn SamplingBackend>, RewardError> {
        Ok(Arc::new(self.clone()))
    }
}

impl TrainingBackend for StubModel {
    fn forward(&self, data: Vec<Datum>, _: Loss) -> Pending<ForwardOutput> {
        let logprobs: Vec<Vec<f32>> = data.iter().map(|datum| vec![LOGPROB; datum.targets().len()]).collect();
        let sum = -f64::from(LOGPROB) * logprobs.iter().map(Vec::len).sum::<usize>() as f64;
        let metrics = BTreeMap::from([("loss:sum".to_owned(), sum)]);
        Box::pin(ready(Ok(ForwardOutput { logprobs, metrics })))
    }

    fn forward_backward(&self, data: Vec<Datum>, loss: Loss) -> Pending<ForwardOutput> {
        self.forward(data, loss)
    }

    fn optim_step(&self, _: AdamParams) -> Pending<OptimStep> {
        Box::pin(ready(Ok(OptimStep::default())))
    }

    fn save_state(&self, name: &str) -> Pending<String> {
        Box::pin(ready(Ok(name.to_owned())))
    }

    fn load_state(&self, _: &str, _: bool) -> Pending<()> {
        Box::pin(ready(Ok(())))
    }

    fn export_sampler(&self, _: Option<&str>) -> Pending<Export> {
        Box::pin(ready(Ok(Export { sampler: Arc::new(self.clone()), path: None })))
    }
}
