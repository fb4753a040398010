//! Settings of the optimizer.

use crate::number::ShortNumber;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// AdamW with decoupled weight decay (Loshchilov & Hutter 2019) and an optional clip of the global gradient norm.
/// Defaults are those of the Tinker API.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AdamParams {
    /// Learning rate of the step.
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

/// How the step size changes over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LearningRateSchedule {
    /// Decay of the step size after the warm-up.
    pub decay: LearningRateDecay,
    /// Steps over which the step size grows linearly from 0.
    pub warmup: u64,
    /// Step size at the end of the decay, as a share of the full size; unused by [`LearningRateDecay::Constant`].
    pub floor: f64,
}

/// How the step size falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LearningRateDecay {
    /// No decay after the warm-up.
    #[default]
    Constant,
    /// Linear decay to the floor.
    Linear,
    /// Along half a cosine (Loshchilov & Hutter 2017, "SGDR", eq. 5, without restarts).
    Cosine,
}

impl LearningRateSchedule {
    /// The share of the full step size that the step after `done` steps takes, of a run of `all` steps.
    #[must_use]
    pub fn share(&self, done: u64, all: u64) -> f64 {
        if done < self.warmup {
            return (done + 1) as f64 / self.warmup as f64;
        }
        // The first step after the warm-up is a full one; the floor is where the step after the last one would be, so
        // that no step has size 0.
        let span = all.saturating_sub(self.warmup).max(1) as f64;
        let progress = ((done - self.warmup) as f64 / span).min(1.0);
        let left = match self.decay {
            LearningRateDecay::Constant => return 1.0,
            LearningRateDecay::Linear => 1.0 - progress,
            LearningRateDecay::Cosine => (1.0 + (std::f64::consts::PI * progress).cos()) / 2.0,
        };
        self.floor + (1.0 - self.floor) * left
    }
}

/// A setting that is out of range.
#[derive(Debug, Error, PartialEq)]
#[error("the optimizer's {key} is {}; it must {must}", ShortNumber(*value))]
pub struct AdamParamsError {
    /// Name of the invalid field.
    pub key: &'static str,
    /// Value of that field, as given.
    pub value: f64,
    /// The condition that the value violates.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_size_warms_up_and_falls() {
        let rate = |decay, floor| LearningRateSchedule { decay, warmup: 2, floor };
        // Two of warm-up, then a full step and four that fall by a fifth each; cosines of 0, 36, 72, 108 and 144 degrees.
        let far = (1.0 + 5_f64.sqrt()) / 4.0;
        let near = (5_f64.sqrt() - 1.0) / 4.0;
        for (rate, expected) in [
            (rate(LearningRateDecay::Constant, 0.0), [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
            (rate(LearningRateDecay::Linear, 0.0), [0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]),
            (rate(LearningRateDecay::Linear, 0.5), [0.5, 1.0, 1.0, 0.9, 0.8, 0.7, 0.6]),
            (
                rate(LearningRateDecay::Cosine, 0.0),
                [0.5, 1.0, 1.0, 0.5 + far / 2.0, 0.5 + near / 2.0, 0.5 - near / 2.0, 0.5 - far / 2.0],
            ),
        ] {
            for (done, expected) in (0..).zip(expected) {
                let share = rate.share(done, 7);
                assert!((share - expected).abs() < 1e-12, "{rate:?} after {done}: {share} for {expected}");
            }
        }
        assert_eq!(
            rate(LearningRateDecay::Linear, 0.0).share(9, 7),
            0.0,
            "a run that was made longer stays at its floor"
        );
        assert_eq!(LearningRateSchedule::default().share(0, 1), 1.0);
    }
}
