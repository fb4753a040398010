//! How the model reads and writes, for environments that speak text.

use super::message::{ModelInfo, SamplingOverrides, StopOverride, WorkerRequest};
use super::tools;
use minds_core::chat::{PromptError, Renderer, Termination, Tokenizer};
use minds_core::ids::Token;
use minds_core::sampling::{Completion, SamplingParams, Stop, StopReason};
use serde_json::{Value, json};
use std::sync::Arc;

/// A model's renderer and tokenizer, and its default sampling parameters.
#[derive(Clone)]
pub struct ModelProfile {
    /// Renders conversations to tokens.
    pub renderer: Arc<dyn Renderer>,
    /// Converts text to tokens and back.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// Sampling parameters unless the environment overrides them.
    pub sampling: SamplingParams,
    /// Maximum sequence length in tokens, prompt and completion together.
    pub context: usize,
    /// Name of the base model.
    pub base_model: String,
}

impl ModelProfile {
    pub(super) fn model_info(&self) -> ModelInfo {
        let stop = match self.renderer.stop() {
            Stop::Tokens(tokens) => json!(tokens),
            Stop::Strings(texts) => json!(texts),
            Stop::ModelDefault => json!(self.tokenizer.stop_tokens()),
        };
        ModelInfo {
            base_model: self.base_model.clone(),
            vocab: self.tokenizer.vocab(),
            eos: self.tokenizer.stop_tokens().first().copied(),
            bos: self.tokenizer.bos(),
            stop,
        }
    }

    /// The response to a request that needs no weights; `None` for a request that needs them.
    pub(super) fn answer_text_request(&self, op: &WorkerRequest) -> Option<Result<Value, PromptError>> {
        Some(Ok(match op {
            WorkerRequest::Encode { text, special } => {
                let bos = self.tokenizer.bos().filter(|_| *special);
                json!(bos.into_iter().chain(self.tokenizer.encode(text)).collect::<Vec<Token>>())
            }
            WorkerRequest::Decode { tokens } => json!(self.tokenizer.decode(tokens)),
            WorkerRequest::Render { messages } => {
                match self.renderer.prompt(&tools::messages(messages, &[], |_| None)) {
                    Ok(tokens) => json!(tokens),
                    Err(error) => return Some(Err(error)),
                }
            }
            WorkerRequest::Parse { tokens } => {
                let logprobs = vec![0.0; tokens.len()];
                let sampled = Completion::new(tokens.clone(), logprobs, StopReason::Stop);
                let parsed = self.renderer.parse(&sampled);
                json!({ "text": parsed.text, "complete": parsed.termination == Termination::Stop })
            }
            _ => return None,
        }))
    }

    /// Sampling parameters of a completion. `room` is the number of tokens left in the context.
    pub(super) fn params(&self, draw: &SamplingOverrides, room: usize) -> SamplingParams {
        let usual = &self.sampling;
        let stop = match &draw.stop {
            None => usual.stop.clone(),
            Some(StopOverride::Tokens(tokens)) => Stop::Tokens(tokens.clone()),
            // The model's own stop tokens apply as well.
            Some(StopOverride::Texts(texts)) => Stop::Strings(texts.clone()),
        };
        SamplingParams {
            max_tokens: draw.max_tokens.unwrap_or(usual.max_tokens).min(room),
            temperature: draw.temperature.unwrap_or(usual.temperature),
            top_k: draw.top_k.or(usual.top_k),
            top_p: draw.top_p.unwrap_or(usual.top_p),
            seed: draw.seed,
            stop,
        }
    }
}
