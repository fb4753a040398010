//! Replays completions that were sampled before.

use async_trait::async_trait;
use minds_core::rollout::Turn;
use minds_core::sampling::{Completion, SampleRequest, SampleResponse};
use minds_core::service::{BackendError, SamplingBackend};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A sampler that returns recorded completions in order.
pub(super) struct ReplaySampler {
    answers: Mutex<VecDeque<Completion>>,
    exhausted: AtomicBool,
}

impl ReplaySampler {
    pub(super) fn new(turns: &[Turn]) -> Self {
        let answers = turns.iter().map(|turn| turn.completion.clone()).collect();
        Self { answers: Mutex::new(answers), exhausted: false.into() }
    }

    /// Whether more completions were requested than recorded.
    pub(super) fn is_exhausted(&self) -> bool {
        self.exhausted.load(Relaxed)
    }
}

#[async_trait]
impl SamplingBackend for ReplaySampler {
    async fn sample(&self, request: SampleRequest) -> Result<SampleResponse, BackendError> {
        let mut answers = self.answers.lock();
        let Some(answer) = answers.pop_front().filter(|_| request.num_samples == 1) else {
            self.exhausted.store(true, Relaxed);
            return Err(BackendError::Unsupported("samples beside the answers that were given".into()));
        };
        Ok(SampleResponse {
            sequences: vec![answer],
            prompt_logprobs: None,
            topk_prompt_logprobs: None,
            target_prompt_logprobs: None,
            cached_prompt_tokens: 0,
        })
    }
}
