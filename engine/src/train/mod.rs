//! Losses of data, and their gradients with respect to an adapter.
//!
//! Logprobs are bitwise equal to those of sampling under the same weights. Gradients are exact sums over all
//! data, also when data share a prefix. A call that fails changes nothing.

mod backward;
mod head;
mod micro_batch;
mod pass;

use crate::adapter::{AdapterWeights, Grads};
use crate::error::EngineError;
use crate::model::{Activations, DecoderScratch, Model};
use crate::real::Real;
use minds_core::datum::Datum;
use minds_core::loss::Loss;
use pass::{TrainingPass, run};

pub(crate) use pass::{check_datum, is_read};

/// For which positions logprobs are computed; the others are reported as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogprobRows {
    /// Every position of every datum.
    #[default]
    All,
    /// Sampled targets, and positions with a non-zero weight.
    Trained,
}

/// How a pass is carried out. No setting changes the result beyond rounding of gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassOptions {
    /// For which positions logprobs are reported.
    pub rows: LogprobRows,
    /// Whether data with a common beginning share its rows.
    pub share_prefixes: bool,
}

impl Default for PassOptions {
    fn default() -> Self {
        Self { rows: LogprobRows::All, share_prefixes: true }
    }
}

/// Losses and logprobs of a pass.
#[derive(Clone, Debug, PartialEq)]
pub struct PassOutput<T> {
    /// Sum of the loss over all tokens of all data.
    pub loss: f64,
    /// Logprob of each target, one vector per datum.
    pub logprobs: Vec<Vec<T>>,
}

/// Memory of passes. Reusing it for the next pass saves a tenth of its time: the system need not find and clear
/// a gigabyte of pages again.
#[derive(Debug, Default)]
pub struct TrainingWorkspace<T> {
    /// Activations that each block of the decoder kept for its derivative.
    tape: Vec<Activations<T>>,
    forward: DecoderScratch<T>,
    backward: backward::BackwardBuffers<T>,
    logits: Vec<T>,
}

/// Computes losses without gradients.
///
/// # Errors
/// Data that the model cannot read, or infinite or NaN values.
pub fn forward<T: Real>(
    model: &Model<T>,
    adapter: Option<&AdapterWeights<T>>,
    data: &[Datum],
    loss: Loss,
    options: PassOptions,
    workspace: &mut TrainingWorkspace<T>,
) -> Result<PassOutput<T>, EngineError> {
    run(&TrainingPass { model, adapter, data, loss, options }, None, workspace)
}

/// Computes losses and adds their gradients to `grads`.
///
/// # Errors
/// Data that the model cannot read, or infinite or NaN values; `grads` is then unchanged.
pub fn forward_backward<T: Real>(
    model: &Model<T>,
    adapter: &AdapterWeights<T>,
    data: &[Datum],
    loss: Loss,
    options: PassOptions,
    grads: &mut Grads<T>,
    workspace: &mut TrainingWorkspace<T>,
) -> Result<PassOutput<T>, EngineError> {
    if grads.layout != adapter.layout {
        return Err(EngineError::Adapter("the gradients belong to another adapter".into()));
    }
    let mut added = vec![T::ZERO; grads.values.len()];
    let pass = TrainingPass { model, adapter: Some(adapter), data, loss, options };
    let out = run(&pass, Some(&mut added), workspace)?;
    if !added.iter().all(|g| g.is_finite()) {
        return Err(EngineError::NotFinite { what: "gradient" });
    }
    for (sum, g) in grads.values.iter_mut().zip(added) {
        *sum += g;
    }
    Ok(out)
}
