//! Rotary positions (Su et al. 2021, "RoFormer", §3.2) in Hugging Face's layout: pairs are (j, j + dim / 2).

use crate::real::Real;
use minds_core::architecture::{Architecture, RopeScaling};
use std::f64::consts::PI;

/// Angle per position of each pair, stretched as Llama 3 does where the architecture says so.
pub(crate) fn frequencies(arch: &Architecture) -> Vec<f64> {
    let half = arch.head_dim / 2;
    let plain = (0..half).map(|j| arch.rope_theta.powf(-(j as f64) / half as f64));
    match arch.rope_scaling {
        None => plain.collect(),
        Some(scaling) => plain.map(|f| stretch(f, scaling)).collect(),
    }
}

fn stretch(frequency: f64, scaling: RopeScaling) -> f64 {
    let RopeScaling { factor, low_freq_factor, high_freq_factor, original_context } = scaling;
    let turns = original_context * frequency / (2.0 * PI);
    if turns < low_freq_factor {
        frequency / factor
    } else if turns > high_freq_factor {
        frequency
    } else {
        let smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}

/// Cosines and sines of one position, `[cos | sin]`.
pub(crate) fn angles<T: Real>(frequencies: &[f64], position: usize) -> impl Iterator<Item = T> {
    let angle = move |f: &f64| position as f64 * f;
    let cosines = frequencies.iter().map(move |f| T::from_f64(angle(f).cos()));
    cosines.chain(frequencies.iter().map(move |f| T::from_f64(angle(f).sin())))
}

/// Rotates one head by the angles `[cos | sin]`.
#[inline(always)]
pub(crate) fn rotate<T: Real>(head: &mut [T], angles: &[T]) {
    let (cos, sin) = angles.split_at(angles.len() / 2);
    let (low, high) = head.split_at_mut(cos.len());
    for (((a, b), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        (*a, *b) = (*a * *cos - *b * *sin, *b * *cos + *a * *sin);
    }
}

/// Undoes [`rotate`]: also its derivative, for a rotation's transpose is its inverse.
#[inline(always)]
pub(crate) fn rotate_back<T: Real>(head: &mut [T], angles: &[T]) {
    let (cos, sin) = angles.split_at(angles.len() / 2);
    let (low, high) = head.split_at_mut(cos.len());
    for (((a, b), cos), sin) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        (*a, *b) = (*a * *cos + *b * *sin, *b * *cos - *a * *sin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `rope_type = "llama3"` with Llama 3.2's settings (theta 500000, head 64, factor 32, 1, 4, 8192),
    /// from the formula in transformers' `modeling_rope_utils`.
    #[test]
    fn llama3_scaling_keeps_fast_pairs_and_slows_slow_ones() {
        let scaling = RopeScaling {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 8192.0,
        };
        let arch = Architecture {
            head_dim: 64,
            rope_theta: 500_000.0,
            rope_scaling: Some(scaling),
            ..Architecture::tiny()
        };
        let found = frequencies(&arch);
        let plain = |j: i32| 500_000f64.powf(-f64::from(j) / 32.0);
        assert_eq!(found[0], 1.0);
        assert_eq!(found[10], plain(10));
        assert!((found[31] - plain(31) / 32.0).abs() < 1e-18);
        // Pair 16: 500000^-0.5 = 1.41421356e-3, 1.84385 turns, so 0.281283 of the way from slow to fast.
        assert!((found[16] - (0.718_717 * plain(16) / 32.0 + 0.281_283 * plain(16))).abs() < 1e-8);
    }

    #[test]
    fn rotation_turns_pairs_and_back() {
        let mut head = [1.0f64, 0.0, 0.0, 2.0];
        let angles: Vec<f64> = angles(&[PI / 2.0, PI], 1).collect();
        rotate(&mut head, &angles);
        for (found, expected) in head.iter().zip([0.0, 0.0, 1.0, -2.0]) {
            assert!((found - expected).abs() < 1e-15, "{head:?}");
        }
        rotate_back(&mut head, &angles);
        for (found, expected) in head.iter().zip([1.0, 0.0, 0.0, 2.0]) {
            assert!((found - expected).abs() < 1e-15, "{head:?}");
        }
    }
}
