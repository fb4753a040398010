//! A sampler of scripted weights.

use crate::request::{RequestProgress, ServiceRequest};
use crate::state::{DrawKind, SimulationState};
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
    /// Number of optimizer steps of the weights.
    pub version: u64,
}

#[async_trait]
impl SamplingBackend for SimulatedSampler {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        let state = &*self.state;
        let options = &state.options;
        let reported = ServiceRequest::Sample(self.version, &request);
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
        state.occupy(times).await;
        state.until_back().await;
        if chance.random::<f64>() < options.failures {
            return state.fail(reported);
        }

        // A seed makes samples repeatable. Without a seed, each request gets new samples.
        let repeated = request.params.seed.map_or(attempt, |_| 0);
        let mut not_finite = 0;
        let mut sequences = Vec::with_capacity(request.num_samples);
        for n in 0..request.num_samples as u64 {
            let mut completion = self.completion(&request, [key, n << 32 | repeated]);
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
        let per_token = |at: usize| (at > 0).then(|| self.topk(topk));
        Ok(SampleResponse {
            sequences,
            prompt_logprobs: request.prompt_logprobs.then(|| self.scores(&request)),
            topk_prompt_logprobs: (topk > 0).then(|| (0..request.prompt.len()).map(per_token).collect()),
            target_prompt_logprobs: request.target_prompt_logprobs.as_ref().map(|targets| TargetLogprobs {
                logprobs: targets
                    .tokens
                    .iter()
                    .map(|token| if token.is_some() { self.logprob() } else { 0.0 })
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
        let reported = ServiceRequest::Logprobs(self.version, &tokens);
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
        let mut scores = self.scores(&SampleRequest::score_from(tokens.clone(), from));
        (options.on_query)(number, &mut scores)?;
        state.report(reported, RequestProgress::Answered(0.0));
        Ok(scores)
    }
}

impl SimulatedSampler {
    fn logprob(&self) -> f32 {
        SimulationState::logprob(self.version)
    }

    fn scores(&self, request: &SampleRequest) -> Vec<Option<f32>> {
        let from = request.scored_from().unwrap_or(0).max(1);
        (0..request.prompt.len()).map(|at| (at >= from).then_some(self.logprob())).collect()
    }

    /// The first `k` tokens of the vocabulary, with decreasing logprobs.
    fn topk(&self, k: usize) -> TopK {
        (0..k).map(|at| (at as Token, self.logprob() - at as f32)).collect()
    }

    /// Samples random letters until the scripted length, a stop token or the token limit.
    fn completion(&self, request: &SampleRequest, case: [u64; 2]) -> Completion {
        let options = &self.state.options;
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
            let last = ends && tokens.len() + 1 >= options.completion_tokens;
            let letter = Token::from(letters.random_range(b'a'..=b'z'));
            let token = stops.first().copied().filter(|_| last).unwrap_or(letter);
            if last || stops.contains(&token) {
                stop = StopReason::Stop;
            }
            tokens.push(token);
        }
        let k = request.topk_sample_logprobs;
        let topk = (k > 0).then(|| vec![self.topk(k); tokens.len()]);
        Completion { logprobs: vec![self.logprob(); tokens.len()], tokens, stop, topk, sequence_id: None }
    }
}
