//! Matrices packed for the micro-kernel.

use super::aligned::AlignedVec;
use super::tile::{dispatch, tallest, vectorized};
use crate::real::Real;
use minds_core::tensor::{BLOCK, Tensor, widened};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use std::ops::Range;

/// Columns of a panel.
pub const WIDTH: usize = 32;

/// A frozen right operand `[depth, columns]` in panels of [`WIDTH`] columns, zero-padded: `[panel][depth][WIDTH]`.
#[derive(Debug)]
pub struct Panels<T> {
    depth: usize,
    columns: usize,
    data: PanelData<T>,
}

/// Short forms are unpacked when a panel is used: a decoding step is bound by the bytes it reads.
#[derive(Debug)]
enum PanelData<T> {
    Full(AlignedVec<T>),
    Bfloat16(AlignedVec<u16>),
    /// `steps` are `[panel][depth / BLOCK][scale, offset][WIDTH]`.
    QuantizedBlocks {
        codes: AlignedVec<u8>,
        steps: AlignedVec<T>,
    },
}

impl<T: Real> Panels<T> {
    /// Packs a matrix given by its columns, `[columns, depth]`: the layout of a linear layer, `[out, in]`.
    #[must_use]
    pub fn from_rows(rows: &[T], columns: usize, depth: usize) -> Self {
        assert_eq!(rows.len(), columns * depth, "the matrix is not {columns} x {depth}");
        Self::from_rows_with(columns, depth, |c, d| rows[c * depth + d])
    }

    /// Packs the matrix with the element `value(column, depth)`.
    #[must_use]
    pub fn from_rows_with(columns: usize, depth: usize, value: impl Fn(usize, usize) -> T + Sync) -> Self {
        Self { depth, columns, data: PanelData::Full(pack(columns, depth, value)) }
    }

    /// Packs a matrix `[columns, depth]` in the form that it has.
    #[must_use]
    pub fn from_tensor(tensor: &Tensor, columns: usize, depth: usize) -> Self {
        assert_eq!(tensor.len(), columns * depth, "the matrix is not {columns} x {depth}");
        let data = match tensor {
            Tensor::Full(rows) => {
                PanelData::Full(pack(columns, depth, |c, d| T::from_f64(f64::from(rows[c * depth + d]))))
            }
            Tensor::Bfloat16(rows) => PanelData::Bfloat16(pack(columns, depth, |c, d| rows[c * depth + d])),
            Tensor::QuantizedBlocks(grid) => {
                let blocks = depth / BLOCK;
                let step = |c: usize, d: usize| {
                    let (scale, offset) = grid.steps()[c * blocks + d / 2];
                    T::from_f64(f64::from(if d.is_multiple_of(2) { scale } else { offset }))
                };
                PanelData::QuantizedBlocks {
                    codes: pack(columns, depth, |c, d| grid.codes()[c * depth + d]),
                    steps: pack(columns, 2 * blocks, step),
                }
            }
        };
        Self { depth, columns, data }
    }

    /// Rows of the matrix: the length of the sums.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Columns of the matrix.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Size of the packed matrix in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.data {
            PanelData::Full(data) => data.bytes(),
            PanelData::Bfloat16(data) => data.bytes(),
            PanelData::QuantizedBlocks { codes, steps } => codes.bytes() + steps.bytes(),
        }
    }

    /// Whether panels are stored in the form that the kernel reads.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self.data, PanelData::Full(_))
    }

    /// A range of depths of panel `index`, `[depth][WIDTH]`, which starts on a multiple of [`BLOCK`]. Panels that are
    /// not full are unpacked into `scratch`.
    #[inline]
    pub(crate) fn panel<'a>(
        &'a self,
        index: usize,
        depths: Range<usize>,
        scratch: &'a mut AlignedVec<T>,
    ) -> &'a [T] {
        let first = index * self.depth;
        let cells = (first + depths.start) * WIDTH..(first + depths.end) * WIDTH;
        if !self.is_full() && scratch.len() < cells.len() {
            *scratch = AlignedVec::zeros(cells.len());
        }
        match &self.data {
            PanelData::Full(data) => return &data[cells],
            PanelData::Bfloat16(data) => vectorized(
                #[inline(always)]
                || {
                    for (out, half) in scratch.iter_mut().zip(&data[cells.clone()]) {
                        *out = T::from_f64(f64::from(widened(*half)));
                    }
                },
            ),
            PanelData::QuantizedBlocks { codes, steps } => {
                let of_panel = 2 * (self.depth / BLOCK) * WIDTH;
                let steps = &steps[index * of_panel + 2 * (depths.start / BLOCK) * WIDTH..];
                let out = &mut scratch[..cells.len()];
                let codes = &codes[cells.clone()];
                dispatch(CodeUnpacker { codes, steps, out });
            }
        }
        &scratch[..cells.len()]
    }
}

/// `[panel][depth][WIDTH]` of the elements `value(column, depth)`.
fn pack<U: Copy + Default + Send>(
    columns: usize,
    depth: usize,
    value: impl Fn(usize, usize) -> U + Sync,
) -> AlignedVec<U> {
    let mut data = AlignedVec::zeros(columns.div_ceil(WIDTH) * depth * WIDTH);
    data.par_chunks_mut((depth * WIDTH).max(1)).enumerate().for_each(|(panel, data)| {
        let first = panel * WIDTH;
        for lane in 0..WIDTH.min(columns - first) {
            for d in 0..depth {
                data[d * WIDTH + lane] = value(first + lane, d);
            }
        }
    });
    data
}

/// Turns the codes of whole blocks into numbers.
///
/// First all codes become numbers, then blocks are scaled: a single loop over a block's lanes is unrolled to scalar
/// code.
struct CodeUnpacker<'a, T> {
    codes: &'a [u8],
    steps: &'a [T],
    out: &'a mut [T],
}

impl<T: Real> WithSimd for CodeUnpacker<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for (out, code) in self.out.iter_mut().zip(self.codes) {
            *out = T::from_f64(f64::from(*code));
        }
        let vectors = WIDTH / T::lane_count::<S>();
        let out = T::registers_mut::<S>(self.out);
        let steps = T::registers::<S>(self.steps);
        for (out, steps) in out.chunks_mut(BLOCK * vectors).zip(steps.chunks_exact(2 * vectors)) {
            for v in 0..vectors {
                let scale = steps[v];
                let offset = steps[vectors + v];
                for row in out.chunks_exact_mut(vectors) {
                    row[v] = T::fused(simd, row[v], scale, offset);
                }
            }
        }
    }
}

/// A left operand `[rows, depth]` cut into strips of nearly equal height: `[strip][depth][height]`.
#[derive(Debug, Default)]
pub(crate) struct Strips<T> {
    depth: usize,
    /// Number of strips, height of the lower ones, and how many of them (the first) are one row taller.
    count: usize,
    height: usize,
    taller: usize,
    data: Vec<T>,
}

impl<T: Real> Strips<T> {
    /// Packs `rows` rows; `row(i)` is row `i`. Reuses the memory.
    pub(crate) fn pack<'a>(&mut self, rows: usize, depth: usize, row: impl Fn(usize) -> &'a [T] + Sync) {
        let count = rows.div_ceil(tallest());
        let height = rows.checked_div(count).unwrap_or(0);
        let taller = rows - count * height;
        (self.depth, self.count, self.height, self.taller) = (depth, count, height, taller);
        if self.data.len() < rows * depth {
            self.data.resize(rows * depth, T::ZERO);
        }
        let (tall, low) = self.data[..rows * depth].split_at_mut(taller * (height + 1) * depth);
        let fill = |first: usize, height: usize, strip: &mut [T]| {
            macro_rules! by_height {
                ($($height:literal)*) => {
                    match height {
                        $($height => interleave::<T, $height>(|h| &row(first + h)[..depth], strip),)*
                        more => unreachable!("a strip of {more} rows"),
                    }
                };
            }
            by_height!(1 2 3 4 5 6 7 8 9 10 11 12);
        };
        let tall = tall.chunks_mut(((height + 1) * depth).max(1)).enumerate();
        let low = low.chunks_mut((height * depth).max(1)).enumerate();
        let base = taller * (height + 1);
        if rows * depth < 1 << 16 {
            tall.for_each(|(i, strip)| fill(i * (height + 1), height + 1, strip));
            low.for_each(|(i, strip)| fill(base + i * height, height, strip));
        } else {
            let tall = tall.map(|(i, strip)| (i * (height + 1), height + 1, strip));
            let low = low.map(|(i, strip)| (base + i * height, height, strip));
            let strips: Vec<_> = tall.chain(low).collect();
            strips.into_par_iter().for_each(|(first, height, strip)| fill(first, height, strip));
        }
    }

    /// Number of strips over all rows.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Row range of strip `index`.
    pub(crate) fn rows(&self, index: usize) -> Range<usize> {
        let start = |i: usize| i * self.height + i.min(self.taller);
        start(index)..start(index + 1)
    }

    /// The packed strip `index`, `[depth][height]`.
    #[inline]
    pub(crate) fn strip(&self, index: usize) -> &[T] {
        let rows = self.rows(index);
        &self.data[rows.start * self.depth..rows.end * self.depth]
    }
}

/// Writes `[depth][H]` from `H` rows.
fn interleave<'a, T: Real, const H: usize>(row: impl Fn(usize) -> &'a [T], strip: &mut [T]) {
    let rows: [&[T]; H] = std::array::from_fn(row);
    for (d, column) in strip.as_chunks_mut::<H>().0.iter_mut().enumerate() {
        for h in 0..H {
            column[h] = rows[h][d];
        }
    }
}
