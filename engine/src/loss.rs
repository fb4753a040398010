//! The losses, token by token: value and derivative with respect to the logprob.
//!
//! Losses are sums over tokens, so this is all of the arithmetic. A coefficient (weight or advantage) of zero gives
//! exactly zero for both.

use crate::real::Real;
use minds_core::loss::Loss;

/// Loss of one token and its derivative with respect to `logprob`.
///
/// `sampled` is the logprob at sampling time; cross-entropy does not read it. `coefficient` is the weight or the
/// advantage.
pub fn token_loss<T: Real>(loss: Loss, logprob: T, sampled: T, coefficient: T) -> (T, T) {
    if coefficient == T::ZERO {
        return (T::ZERO, T::ZERO);
    }
    let ratio = || (logprob - sampled).exp();
    match loss {
        Loss::CrossEntropy => (-(logprob * coefficient), -coefficient),
        Loss::ImportanceSampling => {
            let value = -(ratio() * coefficient);
            (value, value)
        }
        Loss::Ppo { low, high } => {
            let ratio = ratio();
            let plain = ratio * coefficient;
            let clipped = clamp(ratio, low, high) * coefficient;
            // Within the bounds both are equal; outside, a selected clip is constant. NaN takes the first branch.
            if clipped < plain { (-clipped, T::ZERO) } else { (-plain, -plain) }
        }
        Loss::Cispo { low, high } => {
            let weight = clamp(ratio(), low, high) * coefficient;
            (-(weight * logprob), -weight)
        }
    }
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
        let (found, found_slope) = token_loss(loss, -1.0, -1.0 - ratio.ln(), coefficient);
        assert!((found - value).abs() < 1e-14, "{loss:?} {ratio} {coefficient}: value {found}");
        assert!((found_slope - slope).abs() < 1e-14, "{loss:?} {ratio} {coefficient}: slope {found_slope}");
        let defined = loss.value(-1.0, -1.0 - ratio.ln(), coefficient);
        assert!((found - defined).abs() < 1e-14, "{loss:?} {ratio} {coefficient}: defined as {defined}");
        let (single, single_slope) =
            token_loss(loss, -1.0f32, (-1.0 - ratio.ln()) as f32, coefficient as f32);
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
    fn a_coefficient_of_zero_gives_zero_even_for_ratios_that_overflow() {
        for loss in [Loss::CrossEntropy, Loss::ImportanceSampling, Loss::Ppo { low: 0.8, high: 1.2 }] {
            assert_eq!(token_loss(loss, 0.0f32, -1e9, 0.0), (0.0, 0.0));
        }
        assert_eq!(token_loss(Loss::ImportanceSampling, 0.0f32, -1e9, 1.0).0, f32::NEG_INFINITY);
    }
}
