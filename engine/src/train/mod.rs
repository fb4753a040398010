//! Losses of data, and their gradients with respect to an adapter.

use crate::adapter::{AdapterWeights, Grads};
use crate::error::EngineError;
use crate::model::Model;
use crate::real::Real;
use minds_core::datum::Datum;
use minds_core::loss::Loss;

/// For which positions log-probs are computed; the others are reported as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogprobRows {
    /// Every position.
    #[default]
    All,
    /// Positions with a non-zero weight or advantage, or a non-zero sampling log-prob.
    Trained,
}

/// Losses and log-probs of a pass.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardOut<T> {
    /// Sum of the loss over all tokens of all data.
    pub loss: f64,
    /// Log-prob of each target, one vector per datum.
    pub logprobs: Vec<Vec<T>>,
}

/// Computes losses without gradients.
///
/// # Errors
/// Data that the model cannot read, or a loss that is not finite.
pub fn forward<T: Real>(
    model: &Model<T>,
    adapter: Option<&AdapterWeights<T>>,
    data: &[Datum],
    loss: Loss,
    rows: LogprobRows,
) -> Result<ForwardOut<T>, EngineError> {
    let _ = (model, adapter, data, loss, rows);
    todo!()
}

/// Computes losses and adds their gradients to `grads`.
///
/// # Errors
/// Data that the model cannot read, or numbers that are not finite; `grads` is left as it was then.
pub fn forward_backward<T: Real>(
    model: &Model<T>,
    adapter: &AdapterWeights<T>,
    data: &[Datum],
    loss: Loss,
    rows: LogprobRows,
    grads: &mut Grads<T>,
) -> Result<ForwardOut<T>, EngineError> {
    let _ = (model, adapter, data, loss, rows, grads);
    todo!()
}
