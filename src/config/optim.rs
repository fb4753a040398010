//! The `[optim]` table, and the learning rate of `[trainer]`.

use super::choice::chosen;
use super::error::{KeyProblem, ensure_number};
use super::file::{ConfigFile, OptimConfig};
use minds_core::number::ShortNumber;
use minds_core::optim::{AdamParams, LearningRateDecay, LearningRateSchedule};

/// Twice the largest jump above the norms before that was seen in any step of the shipped configs (docs/learning.md).
const CLIP_MULTIPLE: f64 = 4.0;

/// Largest learning rate: AdamW moves a weight by about as much in a step, and weights are smaller.
pub(super) const MOST_RATE: f64 = 1.0;

/// Adam parameters before the schedule applies.
pub(super) fn adam(file: &ConfigFile) -> Result<AdamParams, KeyProblem> {
    let usual = AdamParams::default();
    let optim = &file.optim;
    let adam = AdamParams {
        learning_rate: file.trainer.learning_rate.unwrap_or(usual.learning_rate),
        beta1: optim.beta1.unwrap_or(usual.beta1),
        beta2: optim.beta2.unwrap_or(usual.beta2),
        eps: optim.eps.unwrap_or(usual.eps),
        weight_decay: optim.weight_decay.unwrap_or(usual.weight_decay),
        grad_clip_norm: optim.grad_clip_norm.unwrap_or(usual.grad_clip_norm),
    };
    adam.check().map_err(|error| {
        let table = if error.key == "learning_rate" { "trainer" } else { "optim" };
        let problem = format!("is {}; it must {}", ShortNumber(error.value), error.must);
        KeyProblem::new(format!("{table}.{}", error.key), problem)
    })?;
    bounded("trainer.learning_rate", adam.learning_rate, MOST_RATE)?;
    Ok(adam)
}

/// The number, if it is at most `most`.
pub(super) fn bounded(key: &str, value: f64, most: f64) -> Result<f64, KeyProblem> {
    ensure_number(key, value, value <= most, format_args!("be at most {most}"))
}

/// How the step size changes over the run.
pub(super) fn schedule(optim: &OptimConfig) -> Result<LearningRateSchedule, KeyProblem> {
    let decay = chosen(optim.lr_schedule);
    let floor = optim.lr_floor.unwrap_or(0.0);
    let must = "lie in [0, 1]: a share of the learning rate";
    ensure_number("optim.lr_floor", floor, (0.0..=1.0).contains(&floor), must)?;
    if floor > 0.0 && decay == LearningRateDecay::Constant {
        return Err(KeyProblem::new("optim.lr_floor", "has no effect without `optim.lr_schedule`"));
    }
    Ok(LearningRateSchedule { decay, warmup: optim.warmup_steps.unwrap_or(0), floor })
}

/// Multiple of the largest recent gradient norm at which gradients are clipped; 0 for no such limit. A norm in the
/// config replaces it.
pub(super) fn clip_multiple(optim: &OptimConfig) -> Result<f64, KeyProblem> {
    let key = "optim.grad_clip_multiple";
    match (optim.grad_clip_multiple, optim.grad_clip_norm) {
        (None, Some(_)) => Ok(0.0),
        (None, None) => Ok(CLIP_MULTIPLE),
        (Some(_), Some(_)) => {
            let problem = "cannot be given beside `optim.grad_clip_norm`, which sets a limit of its own";
            Err(KeyProblem::new(key, problem))
        }
        (Some(multiple), None) => {
            // Below 1 each step would shrink the next one's limit.
            let holds = multiple == 0.0 || (multiple >= 1.0 && multiple.is_finite());
            ensure_number(key, multiple, holds, "be at least 1, or 0 for no limit")
        }
    }
}
