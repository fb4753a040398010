//! A model small enough to be right: the next token depends on the last one only.

use minds_core::datum::{Datum, LossInputs};
use minds_core::ids::Token;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::sampling::{
    Completion, SampleRequest, SampleResponse, Stop, StopReason, TargetLogprobs, TopK,
};
use minds_core::service::ForwardOutput;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

pub const VOCAB: usize = 64;
pub const CONTEXT: usize = 128;

/// Logits of each token after each token.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights(Vec<f64>);

impl Weights {
    pub fn base() -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        Self((0..VOCAB * VOCAB).map(|_| rng.random_range(-1.0..1.0)).collect())
    }

    fn logprobs(&self, after: Token) -> Vec<f64> {
        let row = &self.0[after as usize * VOCAB..][..VOCAB];
        let total = row.iter().map(|l| l.exp()).sum::<f64>().ln();
        row.iter().map(|l| l - total).collect()
    }

    /// Losses, and their gradients if there is somewhere to put them.
    pub fn pass(&self, data: &[Datum], loss: Loss, mut grads: Option<&mut Vec<f64>>) -> ForwardOutput {
        let (mut sum, mut rows) = (0.0, Vec::new());
        for datum in data {
            let mut row = Vec::new();
            for (t, (from, to)) in datum.input().iter().zip(datum.targets()).enumerate() {
                let all = self.logprobs(*from);
                let lp = all[*to as usize];
                let (value, slope) = match (datum.inputs(), loss) {
                    (LossInputs::Weights(w), _) => (-lp * f64::from(w[t]), -f64::from(w[t])),
                    (LossInputs::Policy { logprobs: q, advantages: a }, _) => {
                        let value = -(lp - f64::from(q[t])).exp() * f64::from(a[t]);
                        (value, value)
                    }
                };
                sum += value;
                row.push(lp as f32);
                if let Some(grads) = &mut grads {
                    for (v, lp) in all.iter().enumerate() {
                        let hit = if v == *to as usize { 1.0 } else { 0.0 };
                        grads[*from as usize * VOCAB + v] += slope * (hit - lp.exp());
                    }
                }
            }
            rows.push(row);
        }
        ForwardOutput { logprobs: rows, metrics: BTreeMap::from([("loss:sum".into(), sum)]) }
    }

    pub fn sample(&self, request: &SampleRequest, fallback_seed: u64) -> SampleResponse {
        let prompt = &request.prompt;
        let score = |(i, token): (usize, &Token)| {
            (i > 0).then(|| self.logprobs(prompt[i - 1])[*token as usize] as f32)
        };
        let likely = |k: usize, i: usize| (i > 0).then(|| top(&self.logprobs(prompt[i - 1]), k));
        let seed = request.params.seed.unwrap_or(fallback_seed);
        SampleResponse {
            sequences: (0..request.num_samples as u64).map(|i| self.one(request, seed, i)).collect(),
            prompt_logprobs: request.prompt_logprobs.then(|| prompt.iter().enumerate().map(score).collect()),
            topk_prompt_logprobs: (request.topk_prompt_logprobs > 0)
                .then(|| (0..prompt.len()).map(|i| likely(request.topk_prompt_logprobs, i)).collect()),
            target_prompt_logprobs: request.target_prompt_logprobs.as_ref().map(|targets| {
                let score = |(i, token): (usize, &Option<Token>)| {
                    token.map_or(0.0, |token| self.likely(prompt[i / targets.k], token))
                };
                let logprobs = targets.tokens.iter().enumerate().map(score).collect();
                TargetLogprobs { logprobs, k: targets.k }
            }),
            cached_prompt_tokens: 0,
        }
    }

    fn one(&self, request: &SampleRequest, seed: u64, index: u64) -> Completion {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(index);
        let params = &request.params;
        let mut last = *request.prompt.last().unwrap();
        let k = request.topk_sample_logprobs;
        let mut out = Completion {
            topk: (k > 0).then(Vec::new),
            ..Completion::new(vec![], vec![], StopReason::Length)
        };
        while out.tokens.len() < params.max_tokens && request.prompt.len() + out.tokens.len() < CONTEXT {
            let all = self.logprobs(last);
            last = match params.temperature {
                0.0 => top(&all, 1)[0].0,
                t => draw(&all, f64::from(t), rng.random_range(0.0..1.0)),
            };
            out.tokens.push(last);
            out.logprobs.push(all[last as usize] as f32);
            if let Some(rows) = &mut out.topk {
                rows.push(top(&all, k));
            }
            if matches!(&params.stop, Stop::Tokens(stops) if stops.contains(&last)) {
                out.stop = StopReason::Stop;
                break;
            }
        }
        out
    }
}

fn top(logprobs: &[f64], k: usize) -> TopK {
    let mut all: TopK = logprobs.iter().enumerate().map(|(v, lp)| (v as Token, *lp as f32)).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(k);
    all
}

fn draw(logprobs: &[f64], temperature: f64, point: f64) -> Token {
    let masses: Vec<f64> = logprobs.iter().map(|lp| (lp / temperature).exp()).collect();
    let mut rest = point * masses.iter().sum::<f64>();
    masses
        .iter()
        .position(|mass| {
            rest -= mass;
            rest <= 0.0
        })
        .unwrap_or(VOCAB - 1) as Token
}

/// An adapter: weights, gradients not yet applied, moments.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    pub weights: Weights,
    grads: Vec<f64>,
    pub moments: Moments,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moments {
    first: Vec<f64>,
    second: Vec<f64>,
    steps: i32,
}

impl Adapter {
    pub fn new() -> Self {
        Self::of(Weights::base(), Moments::default())
    }

    pub fn of(weights: Weights, mut moments: Moments) -> Self {
        moments.first.resize(VOCAB * VOCAB, 0.0);
        moments.second.resize(VOCAB * VOCAB, 0.0);
        Self { weights, grads: vec![0.0; VOCAB * VOCAB], moments }
    }

    pub fn forward_backward(&mut self, data: &[Datum], loss: Loss) -> ForwardOutput {
        self.weights.pass(data, loss, Some(&mut self.grads))
    }

    /// Adam without decay and clip.
    pub fn step(&mut self, params: &AdamParams) {
        let Moments { first, second, steps } = &mut self.moments;
        *steps += 1;
        let (b1, b2) = (params.beta1, params.beta2);
        for (i, grad) in self.grads.iter_mut().enumerate() {
            first[i] = b1 * first[i] + (1.0 - b1) * *grad;
            second[i] = b2 * second[i] + (1.0 - b2) * *grad * *grad;
            let (m, v) = (first[i] / (1.0 - b1.powi(*steps)), second[i] / (1.0 - b2.powi(*steps)));
            self.weights.0[i] -= params.learning_rate * m / (v.sqrt() + params.eps);
            *grad = 0.0;
        }
    }
}

impl Weights {
    pub fn likely(&self, after: Token, token: Token) -> f32 {
        self.logprobs(after)[token as usize] as f32
    }
}
