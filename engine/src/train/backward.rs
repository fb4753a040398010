//! The hand-written derivative of the decoder with respect to an adapter; base weights are frozen.

use super::micro_batch::MicroBatch;
use crate::adapter::{AdapterLayout, AdapterWeights, FusedProjection};
use crate::attention::{SavedAttention, attend_backward};
use crate::kernel::gemm::{GemmThreads, MatrixView, MatrixViewMut, gemm};
use crate::kernel::rows::{
    for_rows, gated, gated_backward, rms_norm, rms_norm_backward, rms_norm_backward_row,
};
use crate::kernel::vectorized;
use crate::model::{Activations, DecoderBatch, DecoderLayer, FusedLinear, Model, rotate_back, sized};
use crate::real::Real;

/// Memory that is reused from block to block and from pass to pass.
#[derive(Debug, Default)]
pub(crate) struct BackwardBuffers<T> {
    normed: Vec<T>,
    d_normed: Vec<T>,
    activated: Vec<T>,
    d_activated: Vec<T>,
    d_gate_up: Vec<T>,
    d_mixed: Vec<T>,
}

/// Inputs of a forward pass, and the activations it kept.
pub(crate) struct SavedForward<'a, T> {
    pub(crate) model: &'a Model<T>,
    pub(crate) adapter: &'a AdapterWeights<T>,
    pub(crate) rows: &'a MicroBatch,
    pub(crate) batch: &'a DecoderBatch<'a, T>,
    pub(crate) tape: &'a [Activations<T>],
}

/// Adds the gradients of all adapter values to `grads`; `d` is the derivative with respect to the decoder's last
/// residual stream, for the trained rows only.
pub(crate) fn backward<T: Real>(
    forward: SavedForward<'_, T>,
    mut d: Vec<T>,
    grads: &mut [T],
    buffers: &mut BackwardBuffers<T>,
) {
    let SavedForward { model, adapter, rows, batch, tape } = forward;
    let arch = model.architecture();
    let heads = model.heads();
    let count = rows.trained_rows;
    let eps = model.eps();
    let dim = arch.dim;
    let ffn = arch.ffn;
    let layout = &adapter.layout;
    let normed = sized(&mut buffers.normed, count * dim);
    let d_normed = sized(&mut buffers.d_normed, count * dim);
    let activated = sized(&mut buffers.activated, count * ffn);
    let d_activated = sized(&mut buffers.d_activated, count * ffn);
    let d_gate_up = sized(&mut buffers.d_gate_up, count * 2 * ffn);
    let d_mixed = sized(&mut buffers.d_mixed, count * heads.q_width());
    for (index, (layer, a)) in model.layers.iter().zip(tape).enumerate().rev() {
        let values = &adapter.values[index * layout.per_layer..][..layout.per_layer];
        let grads = &mut grads[index * layout.per_layer..][..layout.per_layer];
        let mut through = |projection: FusedProjection, x: &[T], d_y: &[T], d_x: Option<&mut [T]>| {
            let low = &a.low[projection as usize];
            ProjectionBackward {
                linear: layer.linear(projection),
                projection,
                layout,
                values,
                x,
                low,
                d_y,
                count,
            }
            .run(d_x, grads);
        };

        gated(&a.gate_up, ffn, activated);
        through(FusedProjection::Down, activated, &d, Some(&mut *d_activated));
        gated_backward(&a.gate_up, ffn, d_activated, d_gate_up);
        rms_norm(&a.middle, &layer.post_norm, eps, normed);
        through(FusedProjection::GateUp, normed, d_gate_up, Some(&mut *d_normed));
        rms_norm_backward(&a.middle, &layer.post_norm, eps, d_normed, &mut d);

        through(FusedProjection::O, &a.mixed, &d, Some(&mut *d_mixed));
        let attended = SavedAttention { qkv: &a.qkv, out: &a.mixed, lse: &a.lse };
        let mut d_qkv = attend_backward(heads, &rows.nodes[..rows.trained_nodes], &attended, d_mixed);
        unrotate(model, layer, batch, a, &mut d_qkv);
        rms_norm(&a.x, &layer.input_norm, eps, normed);
        if index == 0 {
            // Below are only frozen embeddings.
            through(FusedProjection::Qkv, normed, &d_qkv, None);
        } else {
            through(FusedProjection::Qkv, normed, &d_qkv, Some(&mut *d_normed));
            rms_norm_backward(&a.x, &layer.input_norm, eps, d_normed, &mut d);
        }
    }
}

/// From rotated (and normed) q and k back to the projections.
fn unrotate<T: Real>(
    model: &Model<T>,
    layer: &DecoderLayer<T>,
    batch: &DecoderBatch<'_, T>,
    a: &Activations<T>,
    d_qkv: &mut [T],
) {
    let heads = model.heads();
    let eps = model.eps();
    let q_width = heads.q_width();
    let width = heads.qkv_width();
    for_rows(d_qkv, width, |i, row| {
        let angles = &batch.angles[i * heads.dim..(i + 1) * heads.dim];
        vectorized(
            #[inline(always)]
            || {
                row[..q_width + heads.kv_width()]
                    .chunks_mut(heads.dim)
                    .for_each(|head| rotate_back(head, angles));
            },
        );
        if let Some((q_gain, k_gain)) = &layer.qk_norm {
            for h in 0..heads.heads + heads.kv_heads {
                let gain = if h < heads.heads { q_gain } else { k_gain };
                let head = &mut row[h * heads.dim..(h + 1) * heads.dim];
                let d = head.to_vec();
                head.fill(T::ZERO);
                rms_norm_backward_row(
                    &a.raw_qk[i * width + h * heads.dim..][..heads.dim],
                    gain,
                    eps,
                    &d,
                    head,
                );
            }
        }
    });
}

/// The linear layers of one projection with their adapters: `y = x W + s (x Aᵀ) Bᵀ`.
struct ProjectionBackward<'a, T> {
    linear: &'a FusedLinear<T>,
    projection: FusedProjection,
    layout: &'a AdapterLayout,
    values: &'a [T],
    x: &'a [T],
    low: &'a [T],
    d_y: &'a [T],
    count: usize,
}

impl<T: Real> ProjectionBackward<'_, T> {
    /// Sets `d_x`, adds to the gradients of `A` and `B`.
    fn run(self, mut d_x: Option<&mut [T]>, grads: &mut [T]) {
        let Self { linear, layout, count, .. } = self;
        let input = linear.input;
        let output = linear.output;
        let rank = layout.spec.rank;
        let slots = layout.projection(self.projection);
        let width = layout.width(self.projection);
        let scale = T::from_f64(layout.spec.scale());
        if let Some(d_x) = d_x.as_deref_mut() {
            let weights = MatrixView::new(&linear.rows, output, input, input);
            let d_y = MatrixView::new(self.d_y, count, output, output);
            gemm(MatrixViewMut::new(d_x, count, input, input), false, T::ONE, d_y, weights, GemmThreads::All);
        }
        let Some(first) = slots.first() else { return };
        // The crate's kernel is tall and narrow: a few rows of many columns are fast, many rows of a few are not.
        let mut d_low = vec![T::ZERO; width * count];
        for slot in slots {
            let d_y = MatrixView::new(&self.d_y[slot.column..], count, slot.output, output);
            let low = MatrixView::new(&self.low[slot.rank_column..], count, rank, width);
            let b = MatrixView::new(&self.values[slot.b..], slot.output, rank, rank);
            let mut d_b = vec![T::ZERO; rank * slot.output];
            let d_b_view = MatrixViewMut::new(&mut d_b, rank, slot.output, slot.output);
            gemm(d_b_view, false, scale, low.t(), d_y, GemmThreads::All);
            for (o, sums) in grads[slot.b..][..slot.output * rank].chunks_mut(rank).enumerate() {
                sums.iter_mut().enumerate().for_each(|(r, sum)| *sum += d_b[r * slot.output + o]);
            }
            let d_low = MatrixViewMut::new(&mut d_low[slot.rank_column * count..], rank, count, count);
            gemm(d_low, false, scale, b.t(), d_y.t(), GemmThreads::All);
        }
        let d_low = MatrixView::new(&d_low, width, count, count);
        let x = MatrixView::new(self.x, count, input, input);
        gemm(
            MatrixViewMut::new(&mut grads[first.a..], width, input, input),
            true,
            T::ONE,
            d_low,
            x,
            GemmThreads::All,
        );
        if let Some(d_x) = d_x {
            let a = MatrixView::new(&self.values[first.a..], width, input, input);
            gemm(MatrixViewMut::new(d_x, count, input, input), true, T::ONE, d_low.t(), a, GemmThreads::All);
        }
    }
}
