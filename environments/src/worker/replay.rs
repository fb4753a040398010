//! Answers that were given before, given again.

use async_trait::async_trait;
use minds_core::backend::{BackendError, SamplingBackend};
use minds_core::episode::Turn;
use minds_core::sampling::{SampleRequest, SampleResponse, Sampled};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// A sampler that knows what it will say.
pub(super) struct Replay {
    answers: Mutex<VecDeque<Sampled>>,
}

impl Replay {
    pub(super) fn new(turns: &[Turn]) -> Self {
        Self { answers: Mutex::new(turns.iter().map(|turn| turn.answer.clone()).collect()) }
    }
}

#[async_trait]
impl SamplingBackend for Replay {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        let more = || BackendError::Rejected("the environment asks for more answers than were given".into());
        if request.num_samples != 1 {
            return Err(BackendError::Unsupported("samples beside the answers that were given".into()));
        }
        let answer = self.answers.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        Ok(SampleResponse {
            sequences: vec![answer.ok_or_else(more)?],
            prompt_logprobs: None,
            topk_prompt_logprobs: None,
            cached_prompt_tokens: 0,
        })
    }
}
