//! Bounds the gradient of a step by the gradients of the steps before it.
//!
//! One token whose sampled logprob is wrong by 20 nats has an importance ratio of 5e8. The second moment of Adam
//! remembers a gradient of that size for hundreds of steps, so a single glitch of a service freezes the weights, and no
//! request fails. A limit that follows the run needs no knowledge of the scale of the loss, which is a sum over tokens.

use minds_core::service::OptimStep;
use std::collections::VecDeque;

/// Steps whose norms set the limit.
const WINDOW: usize = 16;

/// Limits the global gradient norm to a multiple of the largest norm of the last 16 optimizer steps.
///
/// A norm above the limit is remembered as the largest of those before it, so that outliers do not raise the limit. Adam
/// does not depend on the scale of gradients: a run whose gradients have really grown is clipped and learns on. Without a
/// norm to go by, as in the first step of a run or with a service that reports none, nothing is
/// clipped.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RunningClip {
    /// 0 turns clipping off.
    multiple: f64,
    norms: VecDeque<f64>,
}

/// What the limit did to an optimizer step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ClippedGradient {
    /// Norm of the gradient before clipping.
    pub(super) norm: f64,
    /// Largest norm allowed for this optimizer step.
    pub(super) limit: f64,
}

impl RunningClip {
    /// Continues from the `norms` of an earlier part of the run, the oldest first.
    pub(super) fn new(multiple: f64, norms: &[f64]) -> Self {
        let norms = norms[norms.len().saturating_sub(WINDOW)..].iter().copied().collect();
        Self { multiple, norms }
    }

    /// The largest norm allowed in the next optimizer step, if there is a limit.
    pub(super) fn limit(&self) -> Option<f64> {
        let largest = self.norms.iter().copied().fold(0.0, f64::max);
        (self.multiple > 0.0 && largest > 0.0).then_some(self.multiple * largest)
    }

    /// Records an optimizer step that was submitted under the current limit; `Some` if its gradient was clipped.
    pub(super) fn record(&mut self, step: &OptimStep) -> Option<ClippedGradient> {
        // SkyRL prefixes the metric with its own name.
        let norm = step.metrics.iter().find(|(name, _)| name.rsplit('/').next() == Some("grad_norm"));
        let norm = norm.map(|(_, norm)| *norm).filter(|norm| norm.is_finite())?;
        let limit = self.limit();
        let clipped = limit.filter(|limit| norm > *limit);
        self.norms.push_back(clipped.map_or(norm, |limit| limit / self.multiple));
        if self.norms.len() > WINDOW {
            self.norms.pop_front();
        }
        clipped.map(|limit| ClippedGradient { norm, limit })
    }

    /// The norms that the limit follows, for a checkpoint.
    pub(super) fn norms(&self) -> Vec<f64> {
        self.norms.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &str, norm: f64) -> OptimStep {
        OptimStep { metrics: [(name.to_owned(), norm)].into() }
    }

    #[test]
    fn the_limit_follows_the_largest_of_recent_norms_and_outliers_do_not_raise_it() {
        let mut clip = RunningClip::new(3.0, &[]);
        assert_eq!(clip.limit(), None, "nothing is known of the scale of the first gradient");
        assert_eq!(clip.record(&step("grad_norm", 2.0)), None);
        assert_eq!(clip.record(&step("skyrl.ai/grad_norm", 1.0)), None);
        assert_eq!(clip.limit(), Some(6.0));
        assert_eq!(clip.record(&step("grad_norm", 1e9)), Some(ClippedGradient { norm: 1e9, limit: 6.0 }));
        assert_eq!(clip.limit(), Some(6.0));
        for _ in 0..WINDOW {
            assert_eq!(clip.record(&step("grad_norm", 1.0)), None);
        }
        assert_eq!(clip.limit(), Some(3.0), "the larger norms have left the window");
        assert_eq!(RunningClip::new(3.0, &clip.norms()), clip);
    }

    #[test]
    fn without_norms_or_with_a_multiple_of_0_nothing_is_clipped() {
        let mut silent = RunningClip::new(3.0, &[]);
        assert_eq!(silent.record(&step("learning_rate", 1e-4)), None);
        assert_eq!(silent.record(&step("grad_norm", f64::NAN)), None);
        assert_eq!(silent.limit(), None);
        let mut off = RunningClip::new(0.0, &[1.0]);
        assert_eq!((off.record(&step("grad_norm", 1e9)), off.limit()), (None, None));
    }
}
