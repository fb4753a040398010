//! The gaps between the logprobs of tokens when they were sampled and when they were trained.

use minds_core::datum::{Datum, LossInputs};
use minds_core::service::LOGPROB_ROUNDING;

/// Sums over `q - p` of every token that was sampled: logprob at sampling time minus logprob before the step, in nats. A
/// target whose logprob at sampling time is exactly 0 was given, not sampled, or certain, and has nothing to compare; nor
/// has one whose trained logprob is invalid.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TokenGaps {
    count: f64,
    sum: f64,
    magnitudes: f64,
    squares: f64,
    largest: f64,
}

impl TokenGaps {
    /// The gaps of data with their trained logprobs, token by token in one pass: steps may have millions of tokens.
    pub(super) fn of<'a>(data: impl Iterator<Item = (&'a Datum, &'a Vec<f32>)>) -> Self {
        let mut gaps = Self::default();
        for (datum, now) in data {
            if let LossInputs::Policy { logprobs, .. } = datum.inputs() {
                for (sampled, trained) in logprobs.iter().zip(now) {
                    if *sampled != 0.0 && *trained <= LOGPROB_ROUNDING {
                        gaps.add(f64::from(*sampled) - f64::from(*trained));
                    }
                }
            }
        }
        gaps
    }

    fn add(&mut self, gap: f64) {
        self.count += 1.0;
        self.sum += gap;
        self.magnitudes += gap.abs();
        self.squares += gap * gap;
        self.largest = f64::max(self.largest, gap.abs());
    }

    /// Whether no token was compared.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0.0
    }

    /// Mean gap; 0 without any.
    pub(super) fn mean(&self) -> f64 {
        self.sum / self.count.max(1.0)
    }

    /// Mean magnitude of a gap; 0 without any.
    pub(super) fn mean_magnitude(&self) -> f64 {
        self.magnitudes / self.count.max(1.0)
    }

    /// Half the mean of the squared gaps; 0 without any.
    pub(super) fn half_mean_square(&self) -> f64 {
        0.5 * (self.squares / self.count.max(1.0))
    }

    /// Largest magnitude of a gap; 0 without any.
    pub(super) fn largest(&self) -> f64 {
        self.largest
    }
}
