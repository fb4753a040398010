//! The losses, token by token: value and derivative with respect to the log-prob.
//!
//! Losses are sums over tokens, so this is all of the arithmetic. A carrier (weight or advantage) of zero gives
//! exactly zero for both.

use crate::real::Real;
use minds_core::loss::Loss;

/// Loss of one token and its derivative with respect to `logprob`.
///
/// `sampled` is the log-prob at sampling time; cross-entropy does not read it. `carrier` is the weight or the
/// advantage.
pub fn token_loss<T: Real>(loss: Loss, logprob: T, sampled: T, carrier: T) -> (T, T) {
    if carrier == T::ZERO {
        return (T::ZERO, T::ZERO);
    }
    let ratio = || (logprob - sampled).exp();
    match loss {
        Loss::CrossEntropy => (-(logprob * carrier), -carrier),
        Loss::ImportanceSampling => {
            let value = -(ratio() * carrier);
            (value, value)
        }
        Loss::Ppo { low, high } => {
            let ratio = ratio();
            let plain = ratio * carrier;
            let clipped = clamp(ratio, low, high) * carrier;
            // Within the bounds both are equal; outside, a chosen clip is constant. NaN stays on the first branch.
            if clipped < plain { (-clipped, T::ZERO) } else { (-plain, -plain) }
        }
        Loss::Cispo { low, high } => {
            let weight = clamp(ratio(), low, high) * carrier;
            (-(weight * logprob), -weight)
        }
    }
}

fn clamp<T: Real>(x: T, low: f64, high: f64) -> T {
    let (low, high) = (T::from_f64(low), T::from_f64(high));
    if x < low {
        low
    } else if x > high {
        high
    } else {
        x
    }
}
