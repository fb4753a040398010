//! Checks in the first step that trains anything that sampler and trainer agree about the policy.
//!
//! On-policy, the logprob of a token when it was sampled and its logprob in the training pass are those of the same
//! weights. They differ by the arithmetic of two implementations, less than 0.05 nats on average. More means that one of
//! the two reads other text or holds other weights, and then every later importance ratio is wrong as well.

use super::TrainerOptions;
use super::token_gaps::TokenGaps;
use crate::error::{GAP_ADVICE, PipelineError};
use crate::messages::TrainingGroup;
use minds_core::ids::PolicyVersion;
use minds_core::service::ForwardOutput;
use tracing::warn;

/// Mean gap in nats from which a first step is worth a warning.
const SUSPICIOUS_GAP: f64 = 0.05;

/// Compares the logprobs of those groups that weights of the version `since` or newer sampled, which are the weights in
/// training. Returns whether there was any.
///
/// # Errors
/// Their mean gap is at least `options.max_first_gap`.
pub(super) fn check(
    options: &TrainerOptions,
    since: PolicyVersion,
    groups: &[TrainingGroup],
    forward: &ForwardOutput,
) -> Result<bool, PipelineError> {
    let owners = groups.iter().flat_map(|group| group.data.iter().map(move |datum| (group.oldest, datum)));
    let on_policy = owners.zip(&forward.logprobs).filter(|((oldest, _), _)| *oldest >= since);
    let gaps = TokenGaps::of(on_policy.map(|((_, datum), now)| (datum, now)));
    if gaps.is_empty() {
        return Ok(false);
    }
    let gap = gaps.mean_magnitude();
    if options.max_first_gap > 0.0 && gap >= options.max_first_gap {
        return Err(PipelineError::FirstGap { gap });
    }
    if gap >= SUSPICIOUS_GAP {
        warn!(
            gap,
            "the logprobs of the first step's tokens when sampled and when trained differ by more than two implementations \
             of one model do: {GAP_ADVICE}"
        );
    }
    Ok(true)
}
