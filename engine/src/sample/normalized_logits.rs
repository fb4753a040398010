//! Logprobs of a row of logits.
//!
//! The logprob of token `t` is `row[t] - log_sum_exp(row)`, in that order of operations and nowhere else computed,
//! so that the sampler, the scorer and the trainer agree to the bit.

use super::choose::best;
use crate::model::log_sum_exp;
use minds_core::ids::Token;
use thiserror::Error;

/// The logits are not finite: no token can be sampled.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the logits are not finite: the weights are damaged, load an earlier state")]
pub struct NonFiniteLogits;

/// A row of logits with its log-sum-exp.
#[derive(Clone, Copy, Debug)]
pub struct NormalizedLogits<'a> {
    row: &'a [f32],
    norm: f32,
}

impl<'a> NormalizedLogits<'a> {
    /// Computes the normalizer of a row.
    ///
    /// # Errors
    /// A row whose probabilities do not sum to a finite number.
    pub fn new(row: &'a [f32]) -> Result<Self, NonFiniteLogits> {
        let norm = log_sum_exp(row);
        if norm.is_finite() { Ok(Self { row, norm }) } else { Err(NonFiniteLogits) }
    }

    /// The logprob of one token.
    #[must_use]
    pub fn logprob(&self, token: Token) -> f32 {
        self.row[token as usize] - self.norm
    }

    /// The `k` most likely tokens, best first; ties go to the lower id.
    #[must_use]
    pub fn top(&self, k: usize) -> Vec<(Token, f32)> {
        best(self.row, k).into_iter().map(|token| (token, self.logprob(token))).collect()
    }
}
