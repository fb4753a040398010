//! A sampler of scripted weights.

use crate::numbered::SampleRecord;
use crate::request::{RequestProgress, ServiceRequest};
use crate::state::{DrawKind, DrawTime, SimulationState};
use crate::weights::SimulatedWeights;
use async_trait::async_trait;
use minds_core::ids::{PolicyVersion, Token};
use minds_core::sampling::{
    Completion, SampleRequest, SampleResponse, Stop, StopReason, TargetLogprobs, TopK,
};
use minds_core::service::{BackendError, SamplingBackend};
use rand::RngExt as _;
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
        let (number, open) = state.accept(ServiceRequest::Sample(steps, &request));
        request.check().map_err(|error| BackendError::Rejected(error.to_string()))?;
        state.check_tokens(&request.prompt)?;
        state.check_stops(&request.params.stop)?;
        let (key, before) = state.key_of_samples(&request.prompt, request.params.seed, request.num_samples);
        state.until_back().await;

        let mut chance = state.chance(DrawKind::SampleFault, [key, before]);
        if chance.random::<f64>() < options.hangs {
            return open.hang().await;
        }
        let delay = (options.sample_delay)(number);
        let time = |n| state.draw(&options.sample, DrawKind::Sample, [key, before + n]);
        let times = (0..request.num_samples as u64).map(|n| delay + Duration::from_secs_f64(time(n)));
        let drawn = state.occupy(times).await;
        state.until_back().await;
        // Of all requests, not only of those that do not hang.
        if chance.random::<f64>() * (1.0 - options.hangs) < options.failures {
            return open.fail();
        }

        // A seed makes samples repeatable. Without a seed, each request gets new samples.
        let first = request.params.seed.map_or(before, |_| 0);
        let mut not_finite = 0;
        let mut sequences = Vec::with_capacity(request.num_samples);
        for (n, drawn) in (0_u64..).zip(drawn) {
            let mut completion = match options.numbered {
                true => self.numbered_completion(&request, drawn),
                false => self.completion(&request, [key, first + n], drawn),
            };
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
        if not_finite > 0 {
            open.progress(RequestProgress::NotFinite(not_finite));
        }
        open.end(RequestProgress::Answered(0.0));
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
        let (number, open) = state.accept(ServiceRequest::Logprobs(steps, &tokens));
        state.check_tokens(&tokens)?;
        let case = [number as u64, 0];
        state.until_back().await;
        let time = Duration::from_secs_f64(state.draw(&options.query, DrawKind::Query, case));
        state.occupy([time + (options.query_delay)(number)].into_iter()).await;
        state.until_back().await;
        if state.chance(DrawKind::QueryFault, case).random::<f64>() < options.failures {
            return open.fail();
        }
        let request = SampleRequest::score_from(tokens.clone(), from);
        let mut scores = scores(&request, SimulationState::logprob(steps));
        (options.on_query)(number, &mut scores)?;
        open.end(RequestProgress::Answered(0.0));
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
    /// Most tokens of a completion, the length at which it ends, and the tokens that end it; none if nothing but the
    /// length does.
    fn limits<'a>(&self, request: &'a SampleRequest, drawn: DrawTime) -> (usize, usize, Option<&'a [Token]>) {
        let options = &self.state.options;
        let length = options.tokens_per_second.map_or(options.completion_tokens, |rate| drawn.tokens(rate));
        let room = (options.info.context - request.prompt.len()).max(1);
        let stops = match &request.params.stop {
            Stop::Tokens(stops) => Some(&stops[..]).filter(|stops| !stops.is_empty()),
            Stop::ModelDefault => Some(&[][..]),
            Stop::Strings(strings) => (!strings.is_empty()).then_some(&[][..]),
        };
        (request.params.max_tokens.min(room), length, stops)
    }

    /// Samples random tokens until the scripted length, a stop token or the token limit.
    fn completion(&self, request: &SampleRequest, case: [u64; 2], drawn: DrawTime) -> Completion {
        let (most, length, ends) = self.limits(request, drawn);
        let stops = ends.unwrap_or_default();
        let mut random = self.state.chance(DrawKind::Tokens, case);
        let mut tokens = Vec::new();
        let mut stop = StopReason::Length;
        while stop == StopReason::Length && tokens.len() < most {
            let last = ends.is_some() && tokens.len() + 1 >= length;
            let next = random.random_range(self.state.options.alphabet.clone());
            let token = stops.first().copied().filter(|_| last).unwrap_or(next);
            if last || stops.contains(&token) {
                stop = StopReason::Stop;
            }
            tokens.push(token);
        }
        let weights = self.weights_of_tokens(drawn, tokens.len());
        with_logprobs(Completion::new(tokens, Vec::new(), stop), request, &weights)
    }

    /// Samples a numbered sample, whose last token is the first stop token if there is one.
    fn numbered_completion(&self, request: &SampleRequest, drawn: DrawTime) -> Completion {
        let (most, length, ends) = self.limits(request, drawn);
        let length = length.max(self.state.numbers.digits() + 1);
        let ended = ends.is_some() && length <= most;
        let count = length.min(most);
        let last = ends.and_then(<[Token]>::first).copied().filter(|_| ended);
        let mut records = self.state.records();
        let number = records.len() as u64;
        let mut tokens = self.state.numbered_tokens(number, count - usize::from(last.is_some()));
        tokens.extend(last);
        let weights = self.weights_of_tokens(drawn, count);
        records.push(SampleRecord {
            tokens: count as u32,
            stop: last,
            oldest: weights[0].0,
            newest: weights[count - 1].0,
            steps: weights.iter().map(|(steps, _)| steps).sum(),
            trained: false,
        });
        drop(records);
        let stop = if ended { StopReason::Stop } else { StopReason::Length };
        with_logprobs(Completion::new(tokens, Vec::new(), stop), request, &weights)
    }

    /// The weights of each token's moment, as their optimizer steps and their name: tokens are drawn at equal intervals of
    /// the sample's time.
    fn weights_of_tokens(&self, drawn: DrawTime, count: usize) -> Vec<(u64, Option<PolicyVersion>)> {
        (0..count).map(|token| self.weights.at(drawn.at(token, count))).collect()
    }
}

/// Adds the logprobs of the weights that drew each token.
fn with_logprobs(
    mut completion: Completion,
    request: &SampleRequest,
    weights: &[(u64, Option<PolicyVersion>)],
) -> Completion {
    let k = request.topk_sample_logprobs;
    let mut topk = Vec::new();
    for (steps, version) in weights {
        let logprob = SimulationState::logprob(*steps);
        completion.logprobs.push(logprob);
        if k > 0 {
            topk.push(likely(k, logprob));
        }
        if let Some(version) = version {
            completion.sampled_by(*version);
        }
    }
    Completion { topk: (k > 0).then_some(topk), ..completion }
}
