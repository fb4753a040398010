//! A policy that replaces the model when a Python package is tried: no requests are sent, and nothing is learned.
//!
//! It gives one fixed completion, finite logprobs for every query, and an adapter of the simulated service. So an error
//! against it comes from the package's own code.

use async_trait::async_trait;
use minds_core::datum::Datum;
use minds_core::environment::{
    AdapterLease, Environment, FrozenWeights, LogprobDelta, Oracle, RolloutSession, SessionError,
    SessionRollout,
};
use minds_core::ids::{GroupId, RolloutId, Token};
use minds_core::reward::RewardError;
use minds_core::sampling::{Completion, SampleRequest, Stop, StopReason};
use minds_core::service::{SamplingBackend, ServiceInfo};
use minds_environments::worker::ModelProfile;
use minds_simulation::{SimulatedService, SimulationOptions};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Text of every completion.
pub const COMPLETION: &str = "A stand-in answer: 1";
/// The logprob of every token under the start weights of a simulated service.
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
    let service = Arc::new(SimulatedService::new(options(profile)));
    let (sessions, results): (Vec<_>, Vec<_>) = (0..members)
        .map(|member| {
            let (left, result) = oneshot::channel();
            let rollout = RolloutId { group: GroupId(0), member };
            let exit = move |result| drop(left.send(result));
            (
                RolloutSession::new(rollout, service.sampler(0), Arc::new(StubOracle(service.clone())), exit),
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

/// A service that gives one text, with the stop that the request names.
fn options(profile: ModelProfile) -> SimulationOptions {
    let defaults = SimulationOptions::default();
    let complete = move |request: &SampleRequest, completion: &mut Completion| {
        let tokenizer = &profile.tokenizer;
        let mut tokens = tokenizer.encode(COMPLETION);
        match &request.params.stop {
            Stop::Tokens(stops) => tokens.extend(stops.first()),
            Stop::Strings(stops) => {
                tokens.extend(stops.first().map(|stop| tokenizer.encode(stop)).unwrap_or_default())
            }
            Stop::ModelDefault => tokens.extend(tokenizer.stop_tokens().first()),
        }
        let most = request.params.max_tokens;
        completion.stop = if tokens.len() > most { StopReason::Length } else { StopReason::Stop };
        tokens.truncate(most);
        completion.logprobs = vec![LOGPROB; tokens.len()];
        if let Some(topk) = &mut completion.topk {
            *topk = vec![topk[0].clone(); tokens.len()];
        }
        completion.tokens = tokens;
    };
    SimulationOptions {
        info: ServiceInfo { context: usize::MAX, vocab: usize::MAX, ..defaults.info },
        on_sample: Box::new(move |_, request, completions| {
            completions.iter_mut().for_each(|completion| complete(request, completion));
            Ok(())
        }),
        ..defaults
    }
}

struct StubOracle(Arc<SimulatedService>);

#[async_trait]
impl Oracle for StubOracle {
    async fn logprobs(&self, _: Arc<[Token]>, target: Arc<[Token]>) -> Result<Arc<[f32]>, RewardError> {
        Ok(vec![LOGPROB; target.len()].into())
    }

    async fn next_tokens(&self, _: Arc<[Token]>, k: usize) -> Result<Arc<[(Token, f32)]>, RewardError> {
        Ok((0..k).map(|at| (at as Token, LOGPROB - at as f32)).collect())
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
        Ok(AdapterLease { training: self.0.adapter(0), guard: Box::new(()) })
    }

    async fn frozen(&self, _: FrozenWeights) -> Result<Arc<dyn SamplingBackend>, RewardError> {
        Ok(self.0.sampler(0))
    }
}
