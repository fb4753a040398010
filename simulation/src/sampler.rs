//! A sampler of scripted weights.

use crate::request::{RequestProgress, ServiceRequest};
use crate::state::{DrawKind, DrawTime, SimulationState};
use crate::weights::SimulatedWeights;
use async_trait::async_trait;
use minds_core::ids::Token;
use minds_core::sampling::{
    Completion, SampleRequest, SampleResponse, Stop, StopReason, TargetLogprobs, TopK,
};
use minds_core::service::{BackendError, SamplingBackend};
use rand::RngExt as _;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

pub struct SimulatedSampler {
    pub state: Arc<SimulationState>,
    pub weights: SimulatedWeights,
}

#[async_trait]
impl SamplingBackend for SimulatedSampler {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        let state = &*self.state;
        let options = &state.options;
        let steps = self.weights.steps();
        let reported = ServiceRequest::Sample(steps, &request);
        let number = state.arrived(reported);
        request.check().map_err(|error| BackendError::Rejected(error.to_string()))?;
        state.check_tokens(&request.prompt)?;
        let (key, attempt) = state.attempt(&request.prompt, request.params.seed);
        state.until_back().await;

        let mut chance = state.chance(DrawKind::SampleFault, [key, attempt]);
        if chance.random::<f64>() < options.hangs {
            state.count(|counts| counts.hung += 1);
            state.report(reported, RequestProgress::Hung);
            return pending().await;
        }
        let delay = (options.sample_delay)(number);
        let case = |n: usize| [key, (n as u64) << 32 | attempt];
        let time = |n| state.draw(&options.sample, DrawKind::Sample, case(n));
        let times = (0..request.num_samples).map(|n| delay + Duration::from_secs_f64(time(n)));
        let drawn = state.occupy(times).await;
        state.until_back().await;
        if chance.random::<f64>() < options.failures {
            return state.fail(reported);
        }

        // A seed makes samples repeatable. Without a seed, each request gets new samples.
        let repeated = request.params.seed.map_or(attempt, |_| 0);
        let mut not_finite = 0;
        let mut sequences = Vec::with_capacity(request.num_samples);
        for (n, drawn) in (0_u64..).zip(drawn) {
            let mut completion = self.completion(&request, [key, n << 32 | repeated], drawn);
            if chance.random::<f64>() < options.not_finite {
                completion.logprobs[0] = f32::NAN;
                not_finite += 1;
            }
            if request.record_stability_info {
                completion.sequence_id = Some(format!("sample-{number}-{n}").into());
            }
            sequences.push(completion);
        }
        state.count(|counts| {
            counts.samples += sequences.len() as u64;
            counts.not_finite += not_finite;
        });
        (options.on_sample)(number, &request, &mut sequences)?;
        state.report(reported, RequestProgress::Answered(0.0));
        let topk = request.topk_prompt_logprobs;
        let logprob = SimulationState::logprob(steps);
        let per_token = |at: usize| (at > 0).then(|| likely(topk, logprob));
        Ok(SampleResponse {
            sequences,
            prompt_logprobs: request.prompt_logprobs.then(|| scores(&request, logprob)),
            topk_prompt_logprobs: (topk > 0).then(|| (0..request.prompt.len()).map(per_token).collect()),
            target_prompt_logprobs: request.target_prompt_logprobs.as_ref().map(|targets| TargetLogprobs {
                logprobs: targets
                    .tokens
                    .iter()
                    .map(|token| if token.is_some() { logprob } else { 0.0 })
                    .collect(),
                k: targets.k,
            }),
            cached_prompt_tokens: 0,
        })
    }

    async fn logprobs_from(
        &self,
        tokens: Arc<[Token]>,
        from: usize,
    ) -> Result<Vec<Option<f32>>, BackendError> {
        let state = &*self.state;
        let options = &state.options;
        let steps = self.weights.steps();
        let reported = ServiceRequest::Logprobs(steps, &tokens);
        let number = state.arrived(reported);
        state.check_tokens(&tokens)?;
        let case = [number as u64, 0];
        state.until_back().await;
        let time = Duration::from_secs_f64(state.draw(&options.query, DrawKind::Query, case));
        state.occupy([time + (options.query_delay)(number)].into_iter()).await;
        state.until_back().await;
        if state.chance(DrawKind::QueryFault, case).random::<f64>() < options.failures {
            return state.fail(reported);
        }
        let request = SampleRequest::score_from(tokens.clone(), from);
        let mut scores = scores(&request, SimulationState::logprob(steps));
        (options.on_query)(number, &mut scores)?;
        state.report(reported, RequestProgress::Answered(0.0));
        Ok(scores)
    }
}

/// Logprobs of the prompt's tokens from the first scored one on.
fn scores(request: &SampleRequest, logprob: f32) -> Vec<Option<f32>> {
    let from = request.scored_from().unwrap_or(0).max(1);
    (0..request.prompt.len()).map(|at| (at >= from).then_some(logprob)).collect()
}

/// The first `k` tokens of the vocabulary, with decreasing logprobs.
fn likely(k: usize, logprob: f32) -> TopK {
    (0..k).map(|at| (at as Token, logprob - at as f32)).collect()
}

impl SimulatedSampler {
    /// Samples random letters until the scripted length, a stop token or the token limit, from the weights at equal
    /// intervals of the time in which they are drawn.
    fn completion(&self, request: &SampleRequest, case: [u64; 2], drawn: DrawTime) -> Completion {
        let options = &self.state.options;
        let length = options.tokens_per_second.map_or(options.completion_tokens, |rate| drawn.tokens(rate));
        let room = (options.info.context - request.prompt.len()).max(1);
        let (stops, ends) = match &request.params.stop {
            Stop::Tokens(stops) => (&stops[..], !stops.is_empty()),
            Stop::ModelDefault => (&[][..], true),
            Stop::Strings(strings) => (&[][..], !strings.is_empty()),
        };
        let mut letters = self.state.chance(DrawKind::Tokens, case);
        let mut tokens = Vec::new();
        let mut stop = StopReason::Length;
        while stop == StopReason::Length && tokens.len() < request.params.max_tokens.min(room) {
            let last = ends && tokens.len() + 1 >= length;
            let letter = Token::from(letters.random_range(b'a'..=b'z'));
            let token = stops.first().copied().filter(|_| last).unwrap_or(letter);
            if last || stops.contains(&token) {
                stop = StopReason::Stop;
            }
            tokens.push(token);
        }
        let k = request.topk_sample_logprobs;
        let mut completion = Completion::new(tokens, Vec::new(), stop);
        let count = completion.tokens.len();
        let mut topk = Vec::new();
        for token in 0..count {
            let (steps, version) = self.weights.at(drawn.at(token, count));
            let logprob = SimulationState::logprob(steps);
            completion.logprobs.push(logprob);
            topk.push(likely(k, logprob));
            if let Some(version) = version {
                completion.sampled_by(version);
            }
        }
        Completion { topk: (k > 0).then_some(topk), ..completion }
    }
}
