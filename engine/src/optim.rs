//! AdamW, exactly as `torch.optim.AdamW` computes it, after an optional clip of the global gradient norm.
//!
//! A step either changes every value or, when a number is not finite, none.

use crate::adapter::{Adapter, Grads};
use crate::error::EngineError;
use crate::real::Real;
use minds_core::optim::AdamParams;

/// Weights from here on are refused, as a learning rate of 1e30 makes them: just below the square root of the largest `f32`
/// (1.845e19), above which a product of two of them overflows.
const LARGEST_WEIGHT: f64 = 1.8e19;

/// Moments of AdamW, in the order of [`Adapter::values`].
#[derive(Clone, Debug, PartialEq)]
pub struct AdamState<T> {
    /// Running mean of the gradient.
    pub m: Vec<T>,
    /// Running mean of its square.
    pub v: Vec<T>,
    /// Number of optimizer steps taken.
    pub step: u64,
}

impl<T: Real> AdamState<T> {
    /// Creates the state before the first step.
    #[must_use]
    pub fn new(adapter: &Adapter<T>) -> Self {
        let zeros = vec![T::ZERO; adapter.values().len()];
        Self { m: zeros.clone(), v: zeros, step: 0 }
    }
}

/// Measurements of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepStats {
    /// Euclidean norm of all gradients, before clipping.
    pub grad_norm: f64,
    /// Factor by which the gradients were scaled; 1 if they were not clipped.
    pub clip: f64,
}

/// Runs one step of AdamW. Leaves the gradients unchanged; the caller clears them.
///
/// # Errors
/// Gradients or results that are infinite or NaN, or weights too large to compute with; nothing is changed then.
pub fn adam_step<T: Real>(
    adapter: &mut Adapter<T>,
    grads: &Grads<T>,
    state: &mut AdamState<T>,
    params: &AdamParams,
) -> Result<StepStats, EngineError> {
    let lengths = [grads.values.len(), state.m.len(), state.v.len()];
    if lengths != [adapter.values.len(); 3] || grads.layout != adapter.layout {
        return Err(EngineError::Adapter("gradients or moments belong to another adapter".into()));
    }
    let grad_norm = grads.values.iter().map(|g| g.to_f64() * g.to_f64()).sum::<f64>().sqrt();
    if !grad_norm.is_finite() {
        return Err(EngineError::NotFinite { what: "gradient" });
    }
    // Same formula as torch.nn.utils.clip_grad_norm_.
    let clip = match params.grad_clip_norm {
        0.0 => 1.0,
        limit => (limit / (grad_norm + 1e-6)).min(1.0),
    };
    let step = state.step + 1;
    let exponent = i32::try_from(step).unwrap_or(i32::MAX);
    let correction1 = 1.0 - params.beta1.powi(exponent);
    let correction2 = (1.0 - params.beta2.powi(exponent)).sqrt();
    let [beta2, eps] = [params.beta2, params.eps].map(T::from_f64);
    let [keep1, keep2] = [1.0 - params.beta1, 1.0 - params.beta2].map(T::from_f64);
    let decay = T::from_f64(1.0 - params.learning_rate * params.weight_decay);
    let size = T::from_f64(params.learning_rate / correction1);
    let root = T::from_f64(correction2);

    let mut m = state.m.clone();
    let mut v = state.v.clone();
    let mut values = adapter.values.clone();
    let mut finite = true;
    for (((p, m), v), g) in values.iter_mut().zip(&mut m).zip(&mut v).zip(&grads.values) {
        // In 64 bits: a clip that rescues a huge gradient may be too small for 32.
        let g = T::from_f64(g.to_f64() * clip);
        *m += (g - *m) * keep1;
        *v = *v * beta2 + keep2 * g * g;
        let denominator = v.sqrt() / root + eps;
        // A value that never had a gradient stays, even with eps = 0 (torch would divide zero by zero).
        let change = if *m == T::ZERO { T::ZERO } else { size * *m / denominator };
        *p = *p * decay - change;
        finite &= p.to_f64().abs() < LARGEST_WEIGHT && v.is_finite();
    }
    if !finite {
        return Err(EngineError::NotFinite { what: "update" });
    }
    (state.m, state.v, state.step) = (m, v, step);
    adapter.values = values;
    Ok(StepStats { grad_norm, clip })
}
