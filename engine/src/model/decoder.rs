//! Runs new tokens of many sequences through the decoder in one batch.

use super::Model;
use crate::adapter::AdapterWeights;
use crate::error::EngineError;
use crate::kv::Kv;
use crate::real::Real;
use minds_core::ids::Token;
use std::ops::Range;

/// New tokens of one sequence.
#[derive(Debug)]
pub struct Extend<'a, T> {
    /// The adapter that the sequence runs under; `None` for the plain model.
    pub adapter: Option<&'a AdapterWeights<T>>,
    /// Tokens to append; may be one (decoding) or many (prefill).
    pub tokens: &'a [Token],
    /// What they are appended to.
    pub kv: &'a mut Kv<T>,
}

/// Normalised hidden states of new tokens: what the head reads.
#[derive(Debug)]
pub struct Hidden<T> {
    rows: Vec<T>,
    spans: Vec<Range<usize>>,
}

impl<T: Real> Hidden<T> {
    /// Rows of the `entry`-th sequence of the call, one per new token.
    #[must_use]
    pub fn rows(&self, entry: usize) -> Range<usize> {
        self.spans[entry].clone()
    }
    /// values of all rows
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }
}

/// Appends tokens to sequences, all in one batch. Cut prompts into pieces as you like: the bits stay the same.
///
/// # Errors
/// Unknown tokens, sequences beyond the context, or an adapter of another model; no sequence is changed then.
pub fn extend<T: Real>(model: &Model<T>, work: &mut [Extend<'_, T>]) -> Result<Hidden<T>, EngineError> {
    let _ = (model, work);
    todo!()
}

/// Logits of some rows, `[rows, vocab]`.
#[must_use]
pub fn logits<T: Real>(model: &Model<T>, hidden: &Hidden<T>, rows: &[usize]) -> Vec<T> {
    let _ = (model, hidden, rows);
    todo!()
}

/// `ln Σ exp(x)`: the log-prob of token `t` is `row[t] - log_sum_exp(row)`, for sampler and trainer alike.
#[must_use]
pub fn log_sum_exp<T: Real>(row: &[T]) -> T {
    let _ = row;
    todo!()
}
