//! Settings of the optimizer.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// AdamW with decoupled weight decay (Loshchilov & Hutter 2019) and an optional clip of the global gradient norm.
/// Defaults are those of the Tinker API.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamParams {
    /// Step size.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay; 0 turns it off.
    pub weight_decay: f64,
    /// Largest global gradient norm; 0 turns clipping off.
    pub grad_clip_norm: f64,
}

impl Default for AdamParams {
    fn default() -> Self {
        Self {
            learning_rate: 1e-4,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-12,
            weight_decay: 0.0,
            grad_clip_norm: 0.0,
        }
    }
}

/// A setting out of its range.
#[derive(Debug, Error, PartialEq)]
#[error("the optimizer's {key} is {value}, it must {must}")]
pub struct AdamParamsError {
    /// Field that is wrong.
    pub key: &'static str,
    /// Its value.
    pub value: f64,
    /// What would be right.
    pub must: &'static str,
}

impl AdamParams {
    /// Refuses settings that would destroy weights.
    ///
    /// # Errors
    /// Names the first field out of range.
    pub fn check(&self) -> Result<(), AdamParamsError> {
        let fail = |key, value, must| Err(AdamParamsError { key, value, must });
        let not_negative = |v: f64| v.is_finite() && v >= 0.0;
        if !not_negative(self.learning_rate) {
            return fail("learning_rate", self.learning_rate, "be finite and not negative");
        }
        for (key, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return fail(key, beta, "lie in [0, 1)");
            }
        }
        for (key, value) in
            [("eps", self.eps), ("weight_decay", self.weight_decay), ("grad_clip_norm", self.grad_clip_norm)]
        {
            if !not_negative(value) {
                return fail(key, value, "be finite and not negative");
            }
        }
        Ok(())
    }
}
