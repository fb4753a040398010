//! Functions of single rows, each with one fixed order of its sums.

use super::panels::WIDTH;
use super::tile::vectorized;
use crate::real::Real;
use rayon::prelude::*;

/// Calls `f(index, row)` for each row, in parallel for large inputs.
pub(crate) fn for_rows<T: Real>(data: &mut [T], width: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    const WORTH_SPLITTING: usize = 1 << 15;
    let per_task = (WORTH_SPLITTING / 2 / width.max(1)).max(1);
    if data.len() < WORTH_SPLITTING {
        data.chunks_mut(width).enumerate().for_each(|(i, row)| f(i, row));
    } else {
        data.par_chunks_mut(per_task * width).enumerate().for_each(|(task, rows)| {
            rows.chunks_mut(width).enumerate().for_each(|(i, row)| f(task * per_task + i, row));
        });
    }
}

/// Adds the lanes pairwise, always in the same tree.
#[inline(always)]
pub(crate) fn fold<T: Real>(mut lanes: [T; WIDTH]) -> T {
    let mut half = WIDTH / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Sum of `f` over the elements; element `i` goes to lane `i % WIDTH`.
#[inline(always)]
fn lane_sum<T: Real>(row: &[T], f: impl Fn(T) -> T) -> T {
    let mut lanes = [T::ZERO; WIDTH];
    let (blocks, rest) = row.as_chunks::<WIDTH>();
    for block in blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *lane += f(*x);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += f(*x);
    }
    fold(lanes)
}

#[inline(always)]
pub(crate) fn max<T: Real>(row: &[T]) -> T {
    let mut lanes = [T::NEG_INFINITY; WIDTH];
    let (blocks, rest) = row.as_chunks::<WIDTH>();
    for block in blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *lane = if *x > *lane { *x } else { *lane };
        }
    }
    lanes.iter().chain(rest).fold(T::NEG_INFINITY, |m, x| if *x > m { *x } else { m })
}

/// `ln Σ exp(x)`: the logprob of token `t` is `row[t] - log_sum_exp(row)`, for sampler and trainer alike.
#[must_use]
pub fn log_sum_exp<T: Real>(row: &[T]) -> T {
    vectorized(
        #[inline(always)]
        || {
            let max = max(row);
            max + lane_sum(row, |x| (x - max).exp()).ln()
        },
    )
}

/// `1 / sqrt(mean(x²) + eps)`.
#[inline(always)]
fn inverse_rms<T: Real>(x: &[T], eps: T) -> T {
    T::ONE / (lane_sum(x, |x| x * x) / T::from_f64(x.len() as f64) + eps).sqrt()
}

/// `out = x / rms(x) * gain`, row by row.
pub(crate) fn rms_norm<T: Real>(x: &[T], gain: &[T], eps: T, out: &mut [T]) {
    let width = gain.len();
    for_rows(out, width, |i, out| {
        vectorized(
            #[inline(always)]
            || {
                let x = &x[i * width..(i + 1) * width];
                let inverse = inverse_rms(x, eps);
                for ((out, x), gain) in out.iter_mut().zip(x).zip(gain) {
                    *out = *x * inverse * *gain;
                }
            },
        );
    });
}

/// One row of [`rms_norm`] in place.
#[inline(always)]
pub(crate) fn rms_norm_row<T: Real>(x: &mut [T], gain: &[T], eps: T) {
    let inverse = inverse_rms(x, eps);
    for (x, gain) in x.iter_mut().zip(gain) {
        *x = *x * inverse * *gain;
    }
}

/// The derivative through one row of [`rms_norm`]: `dx += J(x)ᵀ dy`.
#[inline(always)]
pub(crate) fn rms_norm_backward_row<T: Real>(x: &[T], gain: &[T], eps: T, dy: &[T], dx: &mut [T]) {
    let inverse = inverse_rms(x, eps);
    let mut lanes = [T::ZERO; WIDTH];
    for ((x, dy), gain) in x.chunks(WIDTH).zip(dy.chunks(WIDTH)).zip(gain.chunks(WIDTH)) {
        for (((lane, x), dy), gain) in lanes.iter_mut().zip(x).zip(dy).zip(gain) {
            *lane += *x * *dy * *gain;
        }
    }
    let pull = fold(lanes) * inverse * inverse / T::from_f64(x.len() as f64);
    for (((dx, x), dy), gain) in dx.iter_mut().zip(x).zip(dy).zip(gain) {
        *dx += inverse * (*gain * *dy - *x * pull);
    }
}

/// The derivative through [`rms_norm`], added to `dx`.
pub(crate) fn rms_norm_backward<T: Real>(x: &[T], gain: &[T], eps: T, dy: &[T], dx: &mut [T]) {
    let width = gain.len();
    for_rows(dx, width, |i, dx| {
        let range = i * width..(i + 1) * width;
        vectorized(
            #[inline(always)]
            || rms_norm_backward_row(&x[range.clone()], gain, eps, &dy[range.clone()], dx),
        );
    });
}

/// `out = silu(gate) * up` for rows `[gate | up]`.
pub(crate) fn gated<T: Real>(gate_up: &[T], width: usize, out: &mut [T]) {
    for_rows(out, width, |i, out| {
        vectorized(
            #[inline(always)]
            || {
                let (gate, up) = gate_up[2 * i * width..2 * (i + 1) * width].split_at(width);
                for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
                    *out = *gate / (T::ONE + (-*gate).exp()) * *up;
                }
            },
        );
    });
}

/// The derivative through [`gated`]: `out = [d gate | d up]`.
pub(crate) fn gated_backward<T: Real>(gate_up: &[T], width: usize, dy: &[T], out: &mut [T]) {
    for_rows(out, 2 * width, |i, out| {
        vectorized(
            #[inline(always)]
            || {
                let (gate, up) = gate_up[2 * i * width..2 * (i + 1) * width].split_at(width);
                let dy = &dy[i * width..(i + 1) * width];
                let (d_gate, d_up) = out.split_at_mut(width);
                for ((((d_gate, d_up), gate), up), dy) in
                    d_gate.iter_mut().zip(d_up).zip(gate).zip(up).zip(dy)
                {
                    let sigmoid = T::ONE / (T::ONE + (-*gate).exp());
                    *d_up = *dy * *gate * sigmoid;
                    *d_gate = *dy * *up * sigmoid * (T::ONE + *gate * (T::ONE - sigmoid));
                }
            },
        );
    });
}

/// `x += y`, row by row.
pub(crate) fn add<T: Real>(x: &mut [T], y: &[T], width: usize) {
    for_rows(x, width, |i, x| {
        for (x, y) in x.iter_mut().zip(&y[i * width..]) {
            *x += *y;
        }
    });
}
