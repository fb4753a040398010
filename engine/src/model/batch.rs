//! One block of the decoder over a batch of rows: the same code for sampling and for training.

use super::rope::{angles, rotate};
use super::{DecoderLayer, Model};
use crate::adapter::{AdapterWeights, FusedProjection};
use crate::kernel::rows::{add, for_rows, gated, rms_norm, rms_norm_row};
use crate::kernel::{Columns, ColumnsMut, InitialSum, multiply, vectorized};
use crate::real::Real;
use std::ops::Range;

/// Consecutive rows that run under one adapter.
pub(crate) struct AdapterSpan<'a, T> {
    pub(crate) rows: Range<usize>,
    pub(crate) adapter: &'a AdapterWeights<T>,
}

/// Adapters and positions of the rows of a batch.
pub(crate) struct DecoderBatch<'a, T> {
    /// Rows under adapters; the others run under none.
    pub(crate) spans: Vec<AdapterSpan<'a, T>>,
    /// `[cos | sin]` of each row's position.
    pub(crate) angles: Vec<T>,
}

impl<'a, T: Real> DecoderBatch<'a, T> {
    pub(crate) fn new(
        model: &Model<T>,
        spans: Vec<AdapterSpan<'a, T>>,
        positions: impl Iterator<Item = usize>,
    ) -> Self {
        Self { spans, angles: positions.flat_map(|p| angles(&model.frequencies, p)).collect() }
    }
}

/// Intermediate values of a block that its derivative needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activations<T> {
    /// Residual stream at the input of the block.
    pub(crate) x: Vec<T>,
    /// q and k before their norms, where the model has such norms.
    pub(crate) raw_qk: Vec<T>,
    /// `[q | k | v]` after rotation.
    pub(crate) qkv: Vec<T>,
    /// Output of attention, and the logs of its softmax sums.
    pub(crate) mixed: Vec<T>,
    pub(crate) lse: Vec<T>,
    /// Residual stream between attention and feed-forward.
    pub(crate) middle: Vec<T>,
    /// Outputs `[gate | up]` of each row.
    pub(crate) gate_up: Vec<T>,
    /// Low-rank activations of the last span per projection.
    pub(crate) low: [Vec<T>; 4],
}

/// Memory that is reused from block to block.
#[derive(Debug, Default)]
pub(crate) struct DecoderScratch<T> {
    normed: Vec<T>,
    gated: Vec<T>,
    added: Vec<T>,
}

/// Resizes the buffer to this length. Old values stay in it.
pub(crate) fn sized<T: Real>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    buffer.resize(len, T::ZERO);
    buffer
}

impl<T: Real> DecoderLayer<T> {
    /// From the residual stream `a.x` to rotated queries, keys and values.
    pub(crate) fn before_attention(
        &self,
        model: &Model<T>,
        index: usize,
        batch: &DecoderBatch<'_, T>,
        a: &mut Activations<T>,
        scratch: &mut DecoderScratch<T>,
    ) {
        let heads = model.heads();
        let dim = model.arch.dim;
        let rows = a.x.len() / dim;
        rms_norm(&a.x, &self.input_norm, model.eps(), sized(&mut scratch.normed, a.x.len()));
        let qkv = sized(&mut a.qkv, rows * heads.qkv_width());
        self.project(index, FusedProjection::Qkv, batch, &scratch.normed, qkv, &mut a.low);
        if self.qk_norm.is_some() {
            a.raw_qk.clone_from(&a.qkv);
        }
        let q_width = heads.q_width();
        for_rows(&mut a.qkv, heads.qkv_width(), |i, row| {
            let angles = &batch.angles[i * heads.dim..(i + 1) * heads.dim];
            vectorized(
                #[inline(always)]
                || {
                    let (q, k) = row[..q_width + heads.kv_width()].split_at_mut(q_width);
                    if let Some((q_gain, k_gain)) = &self.qk_norm {
                        q.chunks_mut(heads.dim).for_each(|head| rms_norm_row(head, q_gain, model.eps()));
                        k.chunks_mut(heads.dim).for_each(|head| rms_norm_row(head, k_gain, model.eps()));
                    }
                    q.chunks_mut(heads.dim)
                        .chain(k.chunks_mut(heads.dim))
                        .for_each(|head| rotate(head, angles));
                },
            );
        });
        sized(&mut a.mixed, rows * q_width);
        sized(&mut a.lse, rows * heads.heads);
    }

    /// From `a.mixed` to the residual stream at the output of the block, written to `out`.
    pub(crate) fn after_attention(
        &self,
        model: &Model<T>,
        index: usize,
        batch: &DecoderBatch<'_, T>,
        a: &mut Activations<T>,
        scratch: &mut DecoderScratch<T>,
        out: &mut Vec<T>,
    ) {
        let dim = model.arch.dim;
        let ffn = model.arch.ffn;
        let rows = a.x.len() / dim;
        let added = sized(&mut scratch.added, a.x.len());
        self.project(index, FusedProjection::O, batch, &a.mixed, added, &mut a.low);
        a.middle.clone_from(&a.x);
        add(&mut a.middle, added, dim);
        rms_norm(&a.middle, &self.post_norm, model.eps(), sized(&mut scratch.normed, a.x.len()));
        let gate_up = sized(&mut a.gate_up, rows * 2 * ffn);
        self.project(index, FusedProjection::GateUp, batch, &scratch.normed, gate_up, &mut a.low);
        let activated = sized(&mut scratch.gated, rows * ffn);
        gated(&a.gate_up, ffn, activated);
        self.project(index, FusedProjection::Down, batch, activated, added, &mut a.low);
        out.clone_from(&a.middle);
        add(out, added, dim);
    }

    /// The linear layers of a projection: base weights and bias for all rows, then each span's adapter on top, in one
    /// running sum per element.
    fn project(
        &self,
        index: usize,
        projection: FusedProjection,
        batch: &DecoderBatch<'_, T>,
        x: &[T],
        out: &mut [T],
        low: &mut [Vec<T>; 4],
    ) {
        let linear = self.linear(projection);
        let input = linear.input;
        let output = linear.output;
        let start = match &linear.bias {
            None => InitialSum::Zero,
            Some(bias) => {
                out.chunks_mut(output).for_each(|row| row.copy_from_slice(bias));
                InitialSum::Output
            }
        };
        multiply(Columns::all(x, input), &linear.panels, ColumnsMut::all(out, output), start);
        for span in &batch.spans {
            let Some(weights) = span.adapter.projection(index, projection) else { continue };
            let width = weights.a.columns();
            let low = sized(&mut low[projection as usize], span.rows.len() * width);
            let x = &x[span.rows.start * input..span.rows.end * input];
            multiply(Columns::all(x, input), &weights.a, ColumnsMut::all(low, width), InitialSum::Zero);
            for (slot, b) in span.adapter.layout.projection(projection).iter().zip(&weights.b) {
                let low = Columns { data: low, stride: width, first: slot.rank_column };
                let out = &mut out[span.rows.start * output..span.rows.end * output];
                let out = ColumnsMut { data: out, stride: output, first: slot.column };
                multiply(low, b, out, InitialSum::Output);
            }
        }
    }
}
