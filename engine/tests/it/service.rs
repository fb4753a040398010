//! A running engine over the seeded test model, for the tests that follow.

use minds_core::architecture::Architecture;
use minds_core::chat::Tokenizer;
use minds_core::datum::{Datum, LossInputs};
use minds_core::ids::Token;
use minds_core::lora::LoraSpec;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::sampling::{SampleRequest, SampleResponse, SamplingParams, Stop};
use minds_core::service::{Pending, TrainingBackend};
use minds_engine::embedded::{EmbeddedService, EmbeddedTraining};
use minds_engine::model::Model;
use minds_engine::runtime::{Engine, EngineOptions};
use minds_engine::train::LogprobRows;
use std::sync::Arc;

/// Bytes as tokens; 256 to 258 are control tokens.
pub struct Bytes;

impl Tokenizer for Bytes {
    fn encode(&self, text: &str) -> Vec<Token> {
        text.bytes().map(Token::from).collect()
    }
    fn control(&self, name: &str) -> Option<Token> {
        (name == "<end>").then_some(257)
    }
    fn decode(&self, tokens: &[Token]) -> String {
        let bytes: Vec<u8> = tokens.iter().filter_map(|t| u8::try_from(*t).ok()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
    fn vocab(&self) -> usize {
        259
    }
    fn stop_tokens(&self) -> Vec<Token> {
        vec![256]
    }
    fn bos(&self) -> Option<Token> {
        None
    }
}

pub fn model() -> Arc<Model<f32>> {
    Arc::new(Model::random(Architecture::tiny(), 1).unwrap())
}

pub fn options() -> EngineOptions {
    EngineOptions { threads: Some(2.try_into().unwrap()), ..EngineOptions::new("tiny") }
}

pub fn engine(options: &EngineOptions) -> Engine {
    Engine::start(model(), Some(Arc::new(Bytes)), options).unwrap()
}

pub fn service(options: &EngineOptions) -> EmbeddedService {
    EmbeddedService::start(model(), Some(Arc::new(Bytes)), options).unwrap()
}

pub fn wait<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// A prompt of `len` tokens that no other `salt` begins with.
pub fn prompt(len: usize, salt: u32) -> Arc<[Token]> {
    (0..len as u32).map(|i| (i * 37 + salt * 11) % 256).collect()
}

/// Samples that nothing stops.
pub fn request(prompt: Arc<[Token]>, num_samples: usize, max_tokens: usize, seed: u64) -> SampleRequest {
    let stop = Stop::Tokens(vec![]);
    let params = SamplingParams { seed: Some(seed), stop, ..SamplingParams::plain(max_tokens) };
    SampleRequest::new(prompt, num_samples, params)
}

/// Tokens and bits of the logprobs of every sequence.
pub fn bits(response: &SampleResponse) -> Vec<(Vec<Token>, Vec<u32>)> {
    let bits = |lps: &[f32]| lps.iter().map(|lp| lp.to_bits()).collect();
    response.sequences.iter().map(|s| (s.tokens.clone(), bits(&s.logprobs))).collect()
}

/// A datum over prompt and sample; only the sample carries advantage.
pub fn rollout(prompt: &[Token], sampled: &[Token], logprobs: &[f32], advantage: f32) -> Datum {
    let all: Vec<Token> = prompt.iter().chain(sampled).copied().collect();
    let n = all.len() - 1;
    let pad = |values: Vec<f32>| [vec![0.0; prompt.len() - 1], values].concat();
    let inputs = LossInputs::Policy {
        logprobs: pad(logprobs.to_vec()),
        advantages: pad(vec![advantage; sampled.len()]),
    };
    Datum::new(all[..n].to_vec(), all[1..].to_vec(), inputs).unwrap()
}

/// An adapter that has made a few large steps, so that it matters.
pub fn trained(service: &EmbeddedService, rows: LogprobRows) -> EmbeddedTraining {
    let training = wait(service.training(None, LoraSpec::all_linear(4, 1), rows)).unwrap();
    let params = AdamParams { learning_rate: 0.02, ..AdamParams::default() };
    let datum = rollout(&prompt(20, 3), &[1, 2, 3, 4], &[-5.0; 4], 1.0);
    let mut last: Option<Pending<_>> = None;
    for _ in 0..3 {
        drop(training.forward_backward(vec![datum.clone()], Loss::ImportanceSampling));
        last = Some(training.optim_step(params));
    }
    wait(last.unwrap()).unwrap();
    training
}
