//! The derivative through attention over a tree of sequences.
//!
//! Gradients of a shared prefix's keys and values are the sums over all sequences that attend to it.

use crate::kernel::gemm::{GemmThreads, MatrixView, MatrixViewMut, gemm};
use crate::kernel::vectorized;
use crate::kv_cache::AttentionShape;
use crate::real::Real;
use rayon::prelude::*;
use std::ops::Range;

/// Rows of one sequence, or of the prefix that several share.
#[derive(Clone, Debug)]
pub(crate) struct SequenceNode {
    /// Its rows in the batch.
    pub(crate) rows: Range<usize>,
    /// Position of the first row.
    pub(crate) position: usize,
    /// Rows of the prefix before it, empty if there is none.
    pub(crate) prefix: Range<usize>,
}

/// Positions of one task.
const BLOCK: usize = 128;

/// Input and output of the attention forward pass.
pub(crate) struct SavedAttention<'a, T> {
    /// `[q | k | v]` per row.
    pub(crate) qkv: &'a [T],
    /// Mixed values `[rows, heads * dim]`.
    pub(crate) out: &'a [T],
    /// Log of the softmax sums `[rows, heads]`.
    pub(crate) lse: &'a [T],
}

/// The derivative with respect to `[q | k | v]` of the rows of all nodes; `d_out` is the derivative with respect to
/// the mixed values.
pub(crate) fn attend_backward<T: Real>(
    heads: AttentionShape,
    nodes: &[SequenceNode],
    forward: &SavedAttention<'_, T>,
    d_out: &[T],
) -> Vec<T> {
    let rows = d_out.len() / heads.q_width();
    let mut d_qkv = vec![T::ZERO; rows * heads.qkv_width()];
    let tasks: Vec<_> = nodes
        .iter()
        .flat_map(|n| n.rows.clone().step_by(BLOCK).map(move |row| (n, row..(row + BLOCK).min(n.rows.end))))
        .flat_map(|(n, rows)| (0..heads.kv_heads).map(move |head| (n, rows.clone(), head)))
        .collect();
    let done: Vec<_> = tasks
        .into_par_iter()
        .map(|(node, rows, kv_head)| {
            AttentionBackwardBlock { heads, forward, node, rows, kv_head }.backward(d_out)
        })
        .collect();
    for block in done {
        for part in block {
            let width = part.width;
            let stride = heads.qkv_width();
            for (row, values) in part.rows.zip(part.values.chunks(width)) {
                let target = &mut d_qkv[row * stride + part.column..][..width];
                target.iter_mut().zip(values).for_each(|(t, v)| *t += *v);
            }
        }
    }
    d_qkv
}

/// Some positions of a node and the query heads of one key head.
struct AttentionBackwardBlock<'a, T> {
    heads: AttentionShape,
    forward: &'a SavedAttention<'a, T>,
    node: &'a SequenceNode,
    rows: Range<usize>,
    kv_head: usize,
}

/// What a block adds to a range of columns in a range of rows.
struct PartialGradient<T> {
    rows: Range<usize>,
    column: usize,
    width: usize,
    values: Vec<T>,
}

impl<T: Real> AttentionBackwardBlock<'_, T> {
    fn backward(&self, d_out: &[T]) -> Vec<PartialGradient<T>> {
        let AttentionShape { heads, dim, .. } = self.heads;
        let group = self.heads.group();
        let stride = self.heads.qkv_width();
        let q_width = self.heads.q_width();
        let first_head = self.kv_head * group;
        let count = self.rows.len() * group;
        let scale = T::ONE / T::from_f64(dim as f64).sqrt();
        // Row i is query head i % group of position i / group; the heads of a group lie side by side.
        let mut q = Vec::with_capacity(count * dim);
        let mut d_o = Vec::with_capacity(count * dim);
        let mut lse = Vec::with_capacity(count);
        let mut pull = Vec::with_capacity(count);
        for row in self.rows.clone() {
            let columns = first_head * dim..(first_head + group) * dim;
            q.extend(self.forward.qkv[row * stride..][columns.clone()].iter().map(|q| *q * scale));
            let out = &self.forward.out[row * q_width..];
            let d = &d_out[row * q_width..];
            d_o.extend_from_slice(&d[columns.clone()]);
            lse.extend_from_slice(&self.forward.lse[row * heads + first_head..][..group]);
            let pairs = out[columns.clone()].chunks(dim).zip(d[columns.clone()].chunks(dim));
            pull.extend(pairs.map(|(out, d)| out.iter().zip(d).map(|(o, d)| *o * *d).sum::<T>()));
        }

        let mut d_q = vec![T::ZERO; count * dim];
        let mut parts = Vec::with_capacity(5);
        let own = self.node.rows.start..self.rows.end;
        for keys in [self.node.prefix.clone(), own] {
            let n = keys.len();
            if n == 0 {
                continue;
            }
            let k_column = q_width + self.kv_head * dim;
            let v_column = k_column + self.heads.kv_width();
            let column = |column: usize| {
                MatrixView::new(&self.forward.qkv[keys.start * stride + column..], n, dim, stride)
            };
            let k = column(k_column);
            let v = column(v_column);
            let (q_view, d_o_view) =
                (MatrixView::new(&q, count, dim, dim), MatrixView::new(&d_o, count, dim, dim));
            let mut p = vec![T::ZERO; count * n];
            let mut d_s = vec![T::ZERO; count * n];
            gemm(MatrixViewMut::new(&mut p, count, n, n), false, T::ONE, q_view, k.t(), GemmThreads::One);
            gemm(MatrixViewMut::new(&mut d_s, count, n, n), false, T::ONE, d_o_view, v.t(), GemmThreads::One);
            let causal = keys.start == self.node.rows.start;
            vectorized(
                #[inline(always)]
                || {
                    for (i, (p, d_s)) in p.chunks_mut(n).zip(d_s.chunks_mut(n)).enumerate() {
                        let row = self.rows.start + i / group;
                        let seen = if causal { row + 1 - keys.start } else { n };
                        let lse = lse[i];
                        let pull = pull[i];
                        for (p, d_s) in p[..seen].iter_mut().zip(&mut d_s[..seen]) {
                            *p = (*p - lse).exp();
                            *d_s = *p * (*d_s - pull);
                        }
                        p[seen..].fill(T::ZERO);
                        d_s[seen..].fill(T::ZERO);
                    }
                },
            );
            let p = MatrixView::new(&p, count, n, n);
            let d_s = MatrixView::new(&d_s, count, n, n);
            gemm(MatrixViewMut::new(&mut d_q, count, dim, dim), true, scale, d_s, k, GemmThreads::One);
            for (column, left, right) in [(k_column, d_s, q_view), (v_column, p, d_o_view)] {
                let mut values = vec![T::ZERO; n * dim];
                gemm(
                    MatrixViewMut::new(&mut values, n, dim, dim),
                    false,
                    T::ONE,
                    left.t(),
                    right,
                    GemmThreads::One,
                );
                parts.push(PartialGradient { rows: keys.clone(), column, width: dim, values });
            }
        }
        let width = group * dim;
        parts.push(PartialGradient { rows: self.rows.clone(), column: first_head * dim, width, values: d_q });
        parts
    }
}
