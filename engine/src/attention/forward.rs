//! Attention of new positions over chains of segments, row-exact.
//!
//! Scores of 32 keys are one tile of the micro-kernel. The sum of a softmax runs lane by lane over the absolute
//! position grid and the values are added in order of position; masked keys add exact zeros. So the bits do
//! not depend on where a sequence was cut into segments or into calls.

use crate::kernel::rows::fold;
use crate::kernel::{InitialSum, Strips, TileSums, WIDTH, tile, vectorized};
use crate::kv_cache::{AttentionShape, VisibleKv};
use crate::real::Real;
use rayon::prelude::*;
use std::ops::Range;

/// Consecutive new positions of one sequence.
pub(crate) struct SequenceQueries<'a, T> {
    /// Their rows in the batch.
    pub(crate) rows: Range<usize>,
    /// Position of the first.
    pub(crate) position: usize,
    /// Keys and values of the sequence, the new positions included.
    pub(crate) chain: Vec<VisibleKv<'a, T>>,
}

/// Positions of one task.
const BLOCK: usize = 16;

/// Attends for all rows: reads the queries of `qkv` (`[q | k | v]`), writes the mixed values to `out`
/// `[rows, heads * dim]` and the log of each softmax sum to `lse` `[rows, heads]`.
pub(crate) fn attend<T: Real>(
    heads: AttentionShape,
    qkv: &[T],
    sequences: &[SequenceQueries<'_, T>],
    out: &mut [T],
    lse: &mut [T],
) {
    let tasks: Vec<_> = sequences
        .iter()
        .flat_map(|s| s.rows.clone().step_by(BLOCK).map(move |row| (s, row..(row + BLOCK).min(s.rows.end))))
        .flat_map(|(s, rows)| (0..heads.kv_heads).map(move |head| (s, rows.clone(), head)))
        .collect();
    let run = |scratch: &mut AttentionScratch<T>,
               (sequence, rows, kv_head): &(&SequenceQueries<'_, T>, Range<usize>, usize)| {
        let first = sequence.position + rows.start - sequence.rows.start;
        let block = AttentionBlock { heads, qkv, rows: rows.clone(), first, kv_head: *kv_head };
        (rows.start, *kv_head, block.attend(&sequence.chain, scratch))
    };
    // One position costs about 10 µs; a few run on this thread, which is cheaper than distributing them.
    let done: Vec<_> = if tasks.len() <= 2 {
        let mut scratch = AttentionScratch::default();
        tasks.iter().map(|task| run(&mut scratch, task)).collect()
    } else {
        tasks.par_iter().map_init(AttentionScratch::default, run).collect()
    };
    let group = heads.group();
    let width = heads.group() * heads.dim;
    for (first, kv_head, (mixed, sums)) in done {
        for (i, (mixed, sums)) in mixed.chunks(width).zip(sums.chunks(group)).enumerate() {
            let row = first + i;
            out[row * heads.q_width() + kv_head * width..][..width].copy_from_slice(mixed);
            lse[row * heads.heads + kv_head * group..][..group].copy_from_slice(sums);
        }
    }
}

struct AttentionScratch<T> {
    strips: Strips<T>,
    scores: Vec<T>,
}

impl<T: Real> Default for AttentionScratch<T> {
    fn default() -> Self {
        Self { strips: Strips::default(), scores: Vec::new() }
    }
}

/// Some positions of a sequence and the query heads of one key head: row `i` of the block is query head
/// `i % group` of position `first + i / group`.
struct AttentionBlock<'a, T> {
    heads: AttentionShape,
    qkv: &'a [T],
    rows: Range<usize>,
    first: usize,
    kv_head: usize,
}

/// A cell of the grid within one segment: first position, and the lanes that exist.
struct GridCell<'a, T> {
    visible: VisibleKv<'a, T>,
    index: usize,
}

impl<T: Real> GridCell<'_, T> {
    /// Lanes that a query at `position` attends to.
    fn lanes(&self, position: usize) -> Range<usize> {
        let base = self.index * WIDTH;
        let from = self.visible.start().max(base);
        let to = self.visible.end().min(position + 1).min(base + WIDTH);
        from - base..to.max(from) - base
    }
}

impl<T: Real> AttentionBlock<'_, T> {
    fn attend(&self, chain: &[VisibleKv<'_, T>], scratch: &mut AttentionScratch<T>) -> (Vec<T>, Vec<T>) {
        let group = self.heads.group();
        let dim = self.heads.dim;
        let count = self.rows.len() * group;
        let end = self.first + self.rows.len();
        let cells: Vec<GridCell<'_, T>> = chain
            .iter()
            .flat_map(|&visible| visible.cells(end).map(move |index| GridCell { visible, index }))
            .collect();
        let width = cells.len() * WIDTH;

        scratch.strips.pack(count, dim, |i| {
            let head = self.kv_head * group + i % group;
            &self.qkv[(self.rows.start + i / group) * self.heads.qkv_width() + head * dim..]
        });
        if scratch.scores.len() < count * width {
            scratch.scores.resize(count * width, T::ZERO);
        }
        let scores = &mut scratch.scores[..count * width];
        let mut sums = TileSums::zeros();
        for (column, cell) in cells.iter().enumerate() {
            let keys = cell.visible.keys(cell.index, self.kv_head);
            for strip in 0..scratch.strips.count() {
                let rows = scratch.strips.rows(strip);
                let sums = &mut sums.0[..rows.len()];
                tile(scratch.strips.strip(strip), keys, sums, InitialSum::Zero);
                for (row, sums) in rows.zip(sums) {
                    scores[row * width + column * WIDTH..][..WIDTH].copy_from_slice(sums);
                }
            }
        }

        let scale = T::ONE / T::from_f64(dim as f64).sqrt();
        let mut lse = vec![T::ZERO; count];
        let mut inverse = vec![T::ZERO; count];
        for (i, row) in scores.chunks_mut(width).enumerate() {
            let position = self.first + i / group;
            let (max, sum) = softmax(row, scale, |column| cells[column].lanes(position));
            lse[i] = max + sum.ln();
            inverse[i] = T::ONE / sum;
        }

        // The probabilities as left operand: depth is the position, so each cell continues the same sums.
        let mut out = vec![T::ZERO; count * dim];
        scratch.strips.pack(count, width, |i| &scores[i * width..]);
        for strip in 0..scratch.strips.count() {
            let rows = scratch.strips.rows(strip);
            let weights = scratch.strips.strip(strip);
            for panel in 0..self.heads.value_panels() {
                let sums = &mut sums.0[..rows.len()];
                let mut start = InitialSum::Zero;
                for (cell, weights) in cells.iter().zip(weights.chunks(WIDTH * rows.len())) {
                    let values = cell.visible.values(cell.index, self.kv_head, panel);
                    tile(weights, values, sums, start);
                    start = InitialSum::Output;
                }
                let columns = panel * WIDTH..dim.min((panel + 1) * WIDTH);
                for (row, sums) in rows.clone().zip(sums) {
                    let out = &mut out[row * dim..(row + 1) * dim][columns.clone()];
                    out.iter_mut().zip(sums).for_each(|(out, sum)| *out = *sum * inverse[row]);
                }
            }
        }
        (out, lse)
    }
}

/// Turns scores into `exp(scale * score - max)`, zero in masked lanes; returns the maximum of the scaled
/// scores and the sum.
fn softmax<T: Real>(row: &mut [T], scale: T, lanes: impl Fn(usize) -> Range<usize>) -> (T, T) {
    vectorized(
        #[inline(always)]
        || {
            let (cells, _) = row.as_chunks_mut::<WIDTH>();
            let mut max = [T::NEG_INFINITY; WIDTH];
            for (column, cell) in cells.iter_mut().enumerate() {
                let seen = lanes(column);
                for (lane, (x, max)) in cell.iter_mut().zip(&mut max).enumerate() {
                    *x = if seen.start <= lane && lane < seen.end { *x * scale } else { T::NEG_INFINITY };
                    *max = if *x > *max { *x } else { *max };
                }
            }
            let max = max.into_iter().fold(T::NEG_INFINITY, |m, x| if x > m { x } else { m });
            let mut sums = [T::ZERO; WIDTH];
            for cell in cells {
                for (x, sum) in cell.iter_mut().zip(&mut sums) {
                    *x = (*x - max).exp();
                    *sum += *x;
                }
            }
            (max, fold(sums))
        },
    )
}
