//! The row-exact matrix product of the forward pass.
//!
//! Work is split over blocks of rows and groups of panels. The split depends on the number of threads, the bits do
//! not: no sum is ever cut.

use super::aligned::AlignedVec;
use super::panels::{Panels, Strips, WIDTH};
use super::tile::{InitialSum, TALLEST, tile};
use crate::real::Real;
use rayon::prelude::*;
use std::ops::Range;

/// Some columns of a row-major matrix, from `first` on.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a, T> {
    pub(crate) data: &'a [T],
    pub(crate) stride: usize,
    pub(crate) first: usize,
}

impl<'a, T> Columns<'a, T> {
    /// All columns of a matrix with rows of `stride` elements.
    pub(crate) fn all(data: &'a [T], stride: usize) -> Self {
        Self { data, stride, first: 0 }
    }
}

/// Some columns of a row-major matrix, from `first` on, to be written.
pub(crate) struct ColumnsMut<'a, T> {
    pub(crate) data: &'a mut [T],
    pub(crate) stride: usize,
    pub(crate) first: usize,
}

impl<'a, T> ColumnsMut<'a, T> {
    /// All columns of a matrix with rows of `stride` elements.
    pub(crate) fn all(data: &'a mut [T], stride: usize) -> Self {
        Self { data, stride, first: 0 }
    }
}

/// A share of the output: a range of rows, a range of panels, and the slices that belong to both.
struct OutputShare<'a, T> {
    strips: Range<usize>,
    panels: Range<usize>,
    rows: Vec<&'a mut [T]>,
}

/// `out = x · w`, or `out += x · w`.
pub(crate) fn multiply<T: Real>(x: Columns<'_, T>, w: &Panels<T>, out: ColumnsMut<'_, T>, start: InitialSum) {
    let rows = x.data.len() / x.stride;
    assert_eq!(rows, out.data.len() / out.stride, "input and output differ in rows");
    assert!(x.first + w.depth() <= x.stride && out.first + w.columns() <= out.stride, "columns do not fit");
    let mut strips = Strips::default();
    strips.pack(rows, w.depth(), |r| &x.data[r * x.stride + x.first..]);

    let columns = out.first..out.first + w.columns();
    let output = out.data.chunks_mut(out.stride).map(|row| &mut row[columns.clone()]);
    let shares = split(&strips, rows * w.depth() * w.columns(), w, output);
    if let [_] = &shares[..] {
        shares.into_iter().for_each(|share| run(share, &strips, w, start));
    } else {
        shares.into_par_iter().for_each(|share| run(share, &strips, w, start));
    }
}

fn split<'a, T: Real>(
    strips: &Strips<T>,
    work: usize,
    w: &Panels<T>,
    mut output: impl Iterator<Item = &'a mut [T]>,
) -> Vec<OutputShare<'a, T>> {
    // Below this size, waking another thread costs more than it saves (about 5 µs).
    const WORTH_SPLITTING: usize = 1 << 18;
    // The strips of a share stay in the second-level cache while its panels pass.
    const SHARE_BYTES: usize = 1 << 20;
    let panels = w.columns().div_ceil(WIDTH);
    let (by_strips, by_panels) = if work < WORTH_SPLITTING {
        (strips.count().max(1), panels.max(1))
    } else {
        let strip_bytes = TALLEST * w.depth() * size_of::<T>();
        let by_strips = (SHARE_BYTES / strip_bytes.max(1)).clamp(1, strips.count().max(1));
        let row_shares = strips.count().div_ceil(by_strips).max(1);
        let panel_shares = (4 * rayon::current_num_threads()).div_ceil(row_shares);
        (by_strips, panels.div_ceil(panel_shares).max(1))
    };
    let mut shares = Vec::new();
    for first in (0..strips.count()).step_by(by_strips) {
        let strip_range = first..(first + by_strips).min(strips.count());
        let height = strips.rows(strip_range.end - 1).end - strips.rows(first).start;
        let base = shares.len();
        for panel in (0..panels).step_by(by_panels) {
            let panels = panel..(panel + by_panels).min(panels);
            shares.push(OutputShare {
                strips: strip_range.clone(),
                panels,
                rows: Vec::with_capacity(height),
            });
        }
        for row in output.by_ref().take(height) {
            for (share, piece) in shares[base..].iter_mut().zip(row.chunks_mut(by_panels * WIDTH)) {
                share.rows.push(piece);
            }
        }
    }
    shares
}

fn run<T: Real>(mut share: OutputShare<'_, T>, strips: &Strips<T>, w: &Panels<T>, start: InitialSum) {
    // This much of a panel stays in the first-level cache while the strips pass. Storing the sums in between and
    // loading them again does not change their bits.
    let blocked = share.strips.len() > 2 || !w.is_full();
    let step = if blocked { (32 << 10) / (WIDTH * size_of::<T>()) } else { usize::MAX };
    let top = strips.rows(share.strips.start).start;
    let mut sums = AlignedVec::zeros(share.rows.len() * WIDTH);
    let (sums, _) = sums.as_chunks_mut::<WIDTH>();
    let mut scratch = AlignedVec::zeros(0);
    for (column, panel) in share.panels.enumerate() {
        let from = column * WIDTH;
        let columns = WIDTH.min(w.columns() - panel * WIDTH);
        if start == InitialSum::Output {
            sums.iter_mut().zip(&share.rows).for_each(|(sums, row)| copy(&row[from..], sums, columns));
        }
        let mut depth = 0usize;
        while depth < w.depth() {
            let part = depth..depth.saturating_add(step).min(w.depth());
            let start = if depth > 0 { InitialSum::Output } else { start };
            let b = w.panel(panel, part.clone(), &mut scratch);
            for strip in share.strips.clone() {
                let rows = strips.rows(strip);
                let a = &strips.strip(strip)[part.start * rows.len()..part.end * rows.len()];
                tile(a, b, &mut sums[rows.start - top..rows.end - top], start);
            }
            depth = part.end;
        }
        sums.iter().zip(&mut share.rows).for_each(|(sums, row)| copy(sums, &mut row[from..], columns));
    }
}

/// Copies the first `columns` elements; a full panel without calling `memcpy`.
#[inline(always)]
fn copy<T: Real>(from: &[T], to: &mut [T], columns: usize) {
    match (from.first_chunk::<WIDTH>(), to.first_chunk_mut::<WIDTH>()) {
        (Some(from), Some(to)) if columns == WIDTH => *to = *from,
        _ => to[..columns].copy_from_slice(&from[..columns]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::unit;
    use minds_core::tensor::{QuantizedBlocks, Tensor};
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    fn random(len: usize, seed: u64) -> Vec<f32> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        (0..len).map(|_| (unit(&mut random) - 0.5) as f32).collect()
    }

    #[test]
    fn products_of_odd_sizes_agree_with_double_precision() {
        for (m, k, n) in [(1, 1, 1), (3, 7, 31), (13, 65, 33), (25, 40, 259), (100, 529, 70), (64, 1, 5)] {
            let x = random(m * (k + 2), 1);
            let w = random(n * k, 2);
            let before = random(m * (n + 3), 3);
            let mut out = before.clone();
            let input = Columns { data: &x, stride: k + 2, first: 2 };
            let output = ColumnsMut { data: &mut out, stride: n + 3, first: 1 };
            multiply(input, &Panels::from_rows(&w, n, k), output, InitialSum::Output);
            for (i, (found, before)) in out.iter().zip(&before).enumerate() {
                let row = i / (n + 3);
                let column = i % (n + 3);
                let mut exact = f64::from(*before);
                if (1..=n).contains(&column) {
                    let dot =
                        |d: usize| f64::from(x[row * (k + 2) + 2 + d]) * f64::from(w[(column - 1) * k + d]);
                    exact += (0..k).map(dot).sum::<f64>();
                }
                assert!((f64::from(*found) - exact).abs() < 2e-5, "{m}x{k}x{n} at {row},{column}");
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_in_every_batch_and_pool() {
        let m = 61;
        let k = 600;
        let n = 200;
        let x = random(m * k, 4);
        let w = Panels::from_rows(&random(n * k, 5), n, k);
        let run = |x: &[f32], threads: usize| {
            let mut out = vec![0.0; x.len() / k * n];
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let output = ColumnsMut::all(&mut out, n);
            pool.install(|| multiply(Columns::all(x, k), &w, output, InitialSum::Zero));
            out.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
        };
        let whole = run(&x, 3);
        for size in [1, 2, 5, 12, 17] {
            let parts: Vec<u32> = x.chunks(size * k).flat_map(|x| run(x, 2)).collect();
            assert_eq!(parts, whole, "in batches of {size}");
        }
    }

    /// The upper half of the bits.
    fn half(x: f32) -> f32 {
        f32::from_bits(x.to_bits() & 0xffff_0000)
    }

    #[test]
    fn short_forms_give_the_bits_of_their_numbers() {
        let m = 29;
        let k = 608;
        let n = 70;
        let steps: Vec<(f32, f32)> =
            random(n * k / 16, 6).chunks(2).map(|s| (half(s[0]) / 16.0, s[1])).collect();
        let codes = random(n * k, 7).iter().map(|x| (x * 255.0 + 128.0) as u8).collect();
        let halves = random(n * k, 8).iter().map(|x| (x.to_bits() >> 16) as u16).collect();
        for tensor in
            [Tensor::QuantizedBlocks(QuantizedBlocks::new(codes, steps).unwrap()), Tensor::Bfloat16(halves)]
        {
            let full = Panels::from_rows(&tensor.clone().into_values(), n, k);
            let short = Panels::from_tensor(&tensor, n, k);
            assert!(short.bytes() < full.bytes());
            for rows in [1, 16, m] {
                let x = random(rows * k, 9);
                let run = |w: &Panels<f32>| {
                    let mut out = vec![0.0; rows * n];
                    multiply(Columns::all(&x, k), w, ColumnsMut::all(&mut out, n), InitialSum::Zero);
                    out.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
                };
                assert_eq!(run(&short), run(&full));
            }
        }
    }
}
