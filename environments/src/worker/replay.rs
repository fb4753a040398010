//! Answers that were given before, given again.

use async_trait::async_trait;
use minds_core::backend::{BackendError, SamplingBackend};
use minds_core::episode::Turn;
use minds_core::sampling::{SampleRequest, SampleResponse, Sampled};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// A sampler that knows what it will say.
pub(super) struct Replay {
    answers: Mutex<VecDeque<Sampled>>,
    exhausted: AtomicBool,
}

impl Replay {
    pub(super) fn new(turns: &[Turn]) -> Self {
        let answers = turns.iter().map(|turn| turn.answer.clone()).collect();
        Self { answers: Mutex::new(answers), exhausted: false.into() }
    }

    /// Whether more was asked than had been given.
    pub(super) fn is_exhausted(&self) -> bool {
        self.exhausted.load(Relaxed)
    }
}

#[async_trait]
impl SamplingBackend for Replay {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(answer) = answers.pop_front().filter(|_| request.num_samples == 1) else {
            self.exhausted.store(true, Relaxed);
            return Err(BackendError::Unsupported("samples beside the answers that were given".into()));
        };
        Ok(SampleResponse {
            sequences: vec![answer],
            prompt_logprobs: None,
            topk_prompt_logprobs: None,
            cached_prompt_tokens: 0,
        })
    }
}
