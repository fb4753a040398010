//! The losses, token by token: value and derivative with respect to the logprob.
//!
//! Losses are sums over tokens, so this is all of the arithmetic, except the ratio of a sequence
//! ([`Loss::sequence_log_ratio`]). A token that does not count gives exactly zero for both.

use crate::real::Real;
use minds_core::loss::Loss;

/// Loss of one token and its derivative with respect to `logprob`.
///
/// `log_ratio` is the log of the importance ratio: of the token, or of its whole sequence where the loss has one ratio
/// per sequence, which is then a constant. Cross-entropy does not read it. `coefficient` is the weight or the advantage,
/// `sampled` whether the model sampled the target. `stable_reinforce`, whose formula is not public, gives NaN: its data
/// are refused before.
pub fn token_loss<T: Real>(loss: Loss, logprob: T, log_ratio: T, coefficient: T, sampled: bool) -> (T, T) {
    if !loss.counts(coefficient.to_f64(), sampled) {
        return (T::ZERO, T::ZERO);
    }
    match loss {
        Loss::CrossEntropy => (-(logprob * coefficient), -coefficient),
        Loss::ImportanceSampling => {
            let value = -(log_ratio.exp() * coefficient);
            (value, value)
        }
        Loss::Ppo { low, high } | Loss::Gspo { low, high } => {
            let ratio = log_ratio.exp();
            let plain = ratio * coefficient;
            let clipped = clamp(ratio, low, high) * coefficient;
            // Within the bounds both are equal; outside, a selected clip is constant. NaN takes the first branch.
            if clipped < plain { (-clipped, T::ZERO) } else { (-plain, -plain) }
        }
        Loss::Cispo { low, high } => weighted(clamp(log_ratio.exp(), low, high) * coefficient, logprob),
        Loss::TruncatedImportanceSampling { high } => {
            weighted(clamp(log_ratio.exp(), 0.0, high) * coefficient, logprob)
        }
        Loss::MaskedImportanceSampling { low, high } => {
            let ratio = log_ratio.exp();
            match ratio < T::from_f64(low) || ratio > T::from_f64(high) {
                true => (T::ZERO, T::ZERO),
                false => weighted(ratio * coefficient, logprob),
            }
        }
        Loss::Dro { beta } => {
            let beta = T::from_f64(beta);
            let half = T::from_f64(0.5);
            let value = half * beta * log_ratio * log_ratio - logprob * coefficient;
            (value, beta * log_ratio - coefficient)
        }
        Loss::StableReinforce { .. } => (T::from_f64(f64::NAN), T::from_f64(f64::NAN)),
    }
}

/// A logprob under a weight that is constant.
fn weighted<T: Real>(weight: T, logprob: T) -> (T, T) {
    (-(weight * logprob), -weight)
}

fn clamp<T: Real>(x: T, low: f64, high: f64) -> T {
    let low = T::from_f64(low);
    let high = T::from_f64(high);
    if x < low {
        low
    } else if x > high {
        high
    } else {
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ratio 1.5, 0.5 or 1.1 of a logprob of -1.
    fn check(loss: Loss, ratio: f64, coefficient: f64, value: f64, slope: f64) {
        let (found, found_slope) = token_loss(loss, -1.0, ratio.ln(), coefficient, true);
        assert!((found - value).abs() < 1e-14, "{loss:?} {ratio} {coefficient}: value {found}");
        assert!((found_slope - slope).abs() < 1e-14, "{loss:?} {ratio} {coefficient}: slope {found_slope}");
        let defined = loss.value(-1.0, ratio.ln(), coefficient).unwrap();
        assert!((found - defined).abs() < 1e-14, "{loss:?} {ratio} {coefficient}: defined as {defined}");
        let (single, single_slope) = token_loss(loss, -1.0f32, ratio.ln() as f32, coefficient as f32, true);
        assert!((f64::from(single) - value).abs() < 1e-6 && (f64::from(single_slope) - slope).abs() < 1e-6);
    }

    #[test]
    fn cross_entropy_weighs_the_log_prob() {
        check(Loss::CrossEntropy, 1.5, 2.0, 2.0, -2.0);
        check(Loss::CrossEntropy, 1.5, -0.5, -0.5, 0.5);
    }

    #[test]
    fn importance_sampling_weighs_the_ratio() {
        check(Loss::ImportanceSampling, 1.5, 2.0, -3.0, -3.0);
        check(Loss::ImportanceSampling, 0.5, -2.0, 1.0, 1.0);
    }

    #[test]
    fn ppo_stops_where_the_ratio_has_gone_far_enough() {
        let ppo = Loss::Ppo { low: 0.8, high: 1.2 };
        for ratio in [0.9, 1.1] {
            check(ppo, ratio, 2.0, -2.0 * ratio, -2.0 * ratio);
            check(ppo, ratio, -2.0, 2.0 * ratio, 2.0 * ratio);
        }
        // A good token: no push beyond 1.2, full push from below.
        check(ppo, 1.5, 2.0, -2.4, 0.0);
        check(ppo, 0.5, 2.0, -1.0, -1.0);
        // A bad one: no push below 0.8, full push from above.
        check(ppo, 0.5, -2.0, 1.6, 0.0);
        check(ppo, 1.5, -2.0, 3.0, 3.0);
    }

    #[test]
    fn cispo_clips_the_weight_and_keeps_the_slope() {
        let cispo = Loss::Cispo { low: 0.8, high: 1.2 };
        for (ratio, weight) in [(0.5, 0.8), (1.1, 1.1), (1.5, 1.2)] {
            check(cispo, ratio, 2.0, 2.0 * weight, -2.0 * weight);
            check(cispo, ratio, -2.0, -2.0 * weight, 2.0 * weight);
        }
    }

    #[test]
    fn truncated_ratios_keep_the_slope_and_masked_ones_lose_it() {
        let truncated = Loss::TruncatedImportanceSampling { high: 1.2 };
        for (ratio, weight) in [(0.5, 0.5), (1.1, 1.1), (1.5, 1.2)] {
            check(truncated, ratio, -2.0, -2.0 * weight, 2.0 * weight);
        }
        let masked = Loss::MaskedImportanceSampling { low: 0.8, high: 1.2 };
        for (ratio, weight) in [(0.5, 0.0), (1.1, 1.1), (1.5, 0.0)] {
            check(masked, ratio, -2.0, -2.0 * weight, 2.0 * weight);
        }
    }

    #[test]
    fn dro_pulls_back_to_the_sampler() {
        let dro = Loss::Dro { beta: 0.5 };
        let log = 1.5f64.ln();
        check(dro, 1.5, 2.0, 2.0 + 0.25 * log * log, 0.5 * log - 2.0);
        // A sampled token without an advantage is penalized, a token of the prompt is not.
        check(dro, 1.5, 0.0, 0.25 * log * log, 0.5 * log);
        assert_eq!(token_loss(dro, -1.0, log, 0.0, false), (0.0, 0.0));
    }

    #[test]
    fn a_coefficient_of_zero_gives_zero_even_for_ratios_that_overflow() {
        for loss in [Loss::CrossEntropy, Loss::ImportanceSampling, Loss::Ppo { low: 0.8, high: 1.2 }] {
            assert_eq!(token_loss(loss, 0.0f32, 1e9, 0.0, true), (0.0, 0.0));
        }
        assert_eq!(token_loss(Loss::ImportanceSampling, 0.0f32, 1e9, 1.0, true).0, f32::NEG_INFINITY);
    }
}
