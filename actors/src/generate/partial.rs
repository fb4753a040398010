//! Continues samples that the service ended before their end.
//!
//! A service that drains or evicts requests may return what they had sampled. Such a sample ends for its length and has
//! fewer tokens than its request allows. Its tokens and logprobs stay, and the rest is requested from there, as often as
//! needed. A service that returns nothing of an interrupted request fails it, and then it is sent again as a whole.
//!
//! A stop string that begins before the interruption and ends after it is not found. A sample that the service recorded
//! for its loss is not continued, because the record names one request.

use super::{RolloutGenerator, SampleResult, seed};
use crate::messages::RolloutError;
use minds_core::ids::Token;
use minds_core::sampling::{Completion, SampleRequest, SamplingParams, StopReason};
use minds_core::service::{BackendError, SamplingBackend};
use std::sync::Arc;
use tracing::debug;

/// Whether the service ended a sample before its end.
fn is_interrupted(request: &SampleRequest, sampled: &Completion) -> bool {
    sampled.stop == StopReason::Length
        && !sampled.tokens.is_empty()
        && sampled.tokens.len() < request.params.max_tokens
        && !request.record_stability_info
}

impl RolloutGenerator {
    /// The sample with all its tokens; `index` is its place in the response to `request`.
    ///
    /// # Errors
    /// A request for the rest failed. A sample whose rest is refused, or empty, remains as it is.
    pub(super) async fn continued(
        &self,
        sampler: &dyn SamplingBackend,
        request: &SampleRequest,
        index: u64,
        sampled: Completion,
    ) -> SampleResult {
        let mut whole = sampled;
        while is_interrupted(request, &whole) {
            let tokens = whole.tokens.len();
            debug!(tokens, "a sample was interrupted and is continued");
            let prompt: Arc<[Token]> = [&request.prompt[..], &whole.tokens].concat().into();
            let own = request.params.seed.map(|own| seed(own, index, [tokens as u64, 0]));
            let max_tokens = request.params.max_tokens - tokens;
            let params = SamplingParams { max_tokens, seed: own, ..request.params.clone() };
            let rest = SampleRequest { prompt, num_samples: 1, params, ..request.clone() };
            let answer = self.retry.run("sample", || sampler.sample(rest.clone())).await;
            let rest = match answer {
                Ok(response) => response.sequences.into_iter().next(),
                Err(BackendError::Rejected(_)) => None,
                Err(error) => return Err(RolloutError::Service(error)),
            };
            match rest.filter(|rest| !rest.tokens.is_empty()) {
                Some(rest) => whole.append(rest),
                None => break,
            }
        }
        Ok(whole)
    }
}
