//! One pass over all data, micro-batch by micro-batch.

use super::backward::{SavedForward, backward};
use super::head::{TargetLookup, head, read_logprobs};
use super::micro_batch::{DatumNeed, MicroBatch, plan};
use super::{LogprobRows, PassOptions, PassOutput, TrainingWorkspace};
use crate::adapter::{AdapterWeights, FusedProjection};
use crate::attention::{SequenceQueries, attend};
use crate::error::EngineError;
use crate::kernel::rows::rms_norm;
use crate::kv_cache::KvSegment;
use crate::model::{Activations, AdapterSpan, DecoderBatch, DecoderScratch, Model, check_tokens};
use crate::real::Real;
use minds_core::architecture::Architecture;
use minds_core::datum::{Datum, LossInputs};
use minds_core::loss::Loss;
use std::collections::HashMap;

/// Inputs and settings of a pass.
pub(crate) struct TrainingPass<'a, T> {
    pub(crate) model: &'a Model<T>,
    pub(crate) adapter: Option<&'a AdapterWeights<T>>,
    pub(crate) data: &'a [Datum],
    pub(crate) loss: Loss,
    pub(crate) options: PassOptions,
}

/// Most bytes of activations kept for the backward pass of one micro-batch.
const KEPT_BYTES: usize = 1 << 30;

/// Runs the pass; with `grads`, adds the gradients to them.
pub(crate) fn run<T: Real>(
    pass: &TrainingPass<'_, T>,
    mut grads: Option<&mut [T]>,
    workspace: &mut TrainingWorkspace<T>,
) -> Result<PassOutput<T>, EngineError> {
    check(pass)?;
    let needs: Vec<DatumNeed<'_>> =
        pass.data.iter().map(|d| need(d, pass.loss, pass.options.rows, grads.is_some())).collect();
    let mut out =
        PassOutput { loss: 0.0, logprobs: pass.data.iter().map(|d| vec![T::ZERO; d.len()]).collect() };
    let TrainingWorkspace { tape, forward, backward: buffers, logits } = workspace;
    for rows in plan(&needs, cap(pass), pass.options.share_prefixes) {
        let blocks = if rows.trained_rows > 0 { pass.model.layers.len() } else { 1 };
        if tape.len() < blocks {
            tape.resize_with(blocks, Activations::default);
        }
        let (batch, last) = trunk(pass, &rows, tape, forward);
        let trained = grads.as_ref().map_or(0, |_| rows.trained_rows);
        let mut picks = picks(pass, &rows);
        if pass.loss.has_sequence_ratio() {
            // The derivative of a token needs the logprobs of its whole sequence, so the head runs twice.
            let sampled: Vec<_> = picks.iter().filter(|pick| pick.sampled).copied().collect();
            read_logprobs(pass.model, &sampled, &last, logits, &mut out.logprobs)?;
            set_sequence_ratios(pass, &rows, &out.logprobs, &mut picks);
        }
        let d_last = head(pass, picks, &last, trained, logits, &mut out)?;
        if let (Some(grads), Some(adapter), true) = (grads.as_deref_mut(), pass.adapter, trained > 0) {
            let forward = SavedForward { model: pass.model, adapter, rows: &rows, batch: &batch, tape };
            backward(forward, d_last, grads, buffers);
        }
    }
    Ok(out)
}

/// Runs all rows through the decoder; returns the residual stream at its end. Each block keeps its activations in
/// `tape` where gradients flow, otherwise all use the first.
fn trunk<'a, T: Real>(
    pass: &TrainingPass<'a, T>,
    rows: &MicroBatch,
    tape: &mut [Activations<T>],
    scratch: &mut DecoderScratch<T>,
) -> (DecoderBatch<'a, T>, Vec<T>) {
    let model = pass.model;
    let heads = model.heads();
    let width = model.heads().qkv_width();
    let span = |adapter| AdapterSpan { rows: 0..rows.tokens.len(), adapter };
    let batch = DecoderBatch::new(model, pass.adapter.map(span).into_iter().collect(), rows.positions());
    let mut x = model.embed(rows.tokens.iter().copied());
    for (index, layer) in model.layers.iter().enumerate() {
        let a = if rows.trained_rows > 0 { &mut tape[index] } else { &mut tape[0] };
        std::mem::swap(&mut a.x, &mut x);
        layer.before_attention(model, index, &batch, a, scratch);
        let segments: Vec<KvSegment<T>> = rows
            .nodes
            .iter()
            .map(|node| {
                let mut segment = KvSegment::new(heads, node.position);
                segment.append(&a.qkv[node.rows.start * width..node.rows.end * width]);
                segment
            })
            .collect();
        let sequences: Vec<_> = rows
            .nodes
            .iter()
            .zip(&segments)
            .map(|(node, own)| {
                let prefix = rows.nodes.iter().zip(&segments).find(|(n, _)| n.rows == node.prefix);
                let prefix = prefix.map(|(_, segment)| segment.until(node.position));
                let chain = prefix.into_iter().chain([own.until(usize::MAX)]).collect();
                SequenceQueries { rows: node.rows.clone(), position: node.position, chain }
            })
            .collect();
        attend(heads, &a.qkv, &sequences, &mut a.mixed, &mut a.lse);
        layer.after_attention(model, index, &batch, a, scratch, &mut x);
    }
    (batch, x)
}

/// Normalised hidden states of the given rows of the decoder's last residual stream.
pub(crate) fn normed<T: Real>(model: &Model<T>, last: &[T]) -> Vec<T> {
    let mut out = vec![T::ZERO; last.len()];
    rms_norm(last, &model.norm, model.eps(), &mut out);
    out
}

/// The targets to look up, in order of their rows.
fn picks<T: Real>(pass: &TrainingPass<'_, T>, rows: &MicroBatch) -> Vec<TargetLookup<T>> {
    let mut picks = Vec::new();
    for (member, prefix, own) in &rows.members {
        let datum = &pass.data[*member];
        for (position, row) in prefix.clone().chain(own.clone()).enumerate() {
            if pass.options.rows == LogprobRows::All || is_read(datum, position) {
                let (old, coefficient) = datum.loss_inputs_at(position);
                picks.push(TargetLookup {
                    row,
                    datum: *member,
                    position,
                    target: datum.targets()[position] as usize,
                    old: T::from_f64(f64::from(old)),
                    coefficient: T::from_f64(f64::from(coefficient)),
                    sampled: datum.is_sampled(position),
                    sequence_log_ratio: None,
                });
            }
        }
    }
    picks.sort_by_key(|pick| pick.row);
    picks
}

/// Gives each target the log ratio of its sequence under these logprobs.
fn set_sequence_ratios<T: Real>(
    pass: &TrainingPass<'_, T>,
    rows: &MicroBatch,
    logprobs: &[Vec<T>],
    picks: &mut [TargetLookup<T>],
) {
    let of_member = |member: usize| {
        let ratio = Loss::sequence_log_ratio(&pass.data[member], |t| logprobs[member][t].to_f64());
        (member, T::from_f64(ratio))
    };
    let ratios: HashMap<usize, T> = rows.members.iter().map(|(member, ..)| of_member(*member)).collect();
    for pick in picks {
        pick.sequence_log_ratio = ratios.get(&pick.datum).copied();
    }
}

/// Whether a loss or a report reads the logprob at a position.
pub(crate) fn is_read(datum: &Datum, position: usize) -> bool {
    datum.loss_inputs_at(position) != (0.0, 0.0) || datum.is_sampled(position)
}

fn need(datum: &Datum, loss: Loss, rows: LogprobRows, with_gradients: bool) -> DatumNeed<'_> {
    let len = match rows {
        LogprobRows::All => datum.len(),
        LogprobRows::Trained => {
            (0..datum.len()).rev().find(|t| is_read(datum, *t)).map_or(0, |last| last + 1)
        }
    };
    let counts = |t: usize| loss.counts(f64::from(datum.loss_inputs_at(t).1), datum.is_sampled(t));
    DatumNeed { input: &datum.input()[..len], trained: with_gradients && (0..datum.len()).any(counts) }
}

/// Rows of a micro-batch.
fn cap<T: Real>(pass: &TrainingPass<'_, T>) -> usize {
    const MOST: usize = 4096;
    let arch = pass.model.architecture();
    let heads = pass.model.heads();
    let low: usize = FusedProjection::ALL.map(|s| pass.adapter.map_or(0, |a| a.layout.width(s))).iter().sum();
    let raw = if arch.qk_norm { heads.qkv_width() } else { 0 };
    let block = 2 * arch.dim + heads.qkv_width() + raw + heads.q_width() + heads.heads + 2 * arch.ffn + low;
    (KEPT_BYTES / (block * arch.layers * size_of::<T>())).clamp(1, MOST)
}

fn check<T: Real>(pass: &TrainingPass<'_, T>) -> Result<(), EngineError> {
    let arch = pass.model.architecture();
    if let Some(adapter) = pass.adapter {
        adapter.check(arch)?;
    }
    pass.data.iter().enumerate().try_for_each(|(index, datum)| check_datum(arch, index, datum, pass.loss))
}

/// Refuses a datum that the model or the loss cannot read; `index` is its place in the request.
pub(crate) fn check_datum(
    arch: &Architecture,
    index: usize,
    datum: &Datum,
    loss: Loss,
) -> Result<(), EngineError> {
    check_tokens(arch, datum.input())?;
    check_tokens(arch, datum.targets())?;
    if datum.len() > arch.context {
        return Err(EngineError::TooLong { len: datum.len(), context: arch.context });
    }
    if loss.needs_provenance() {
        return Err(EngineError::UnknownFormula { loss: loss.name() });
    }
    let is_weighted = matches!(datum.inputs(), LossInputs::Weights(_));
    if is_weighted != (loss == Loss::CrossEntropy) {
        return Err(EngineError::LossInputs { datum: index, loss: loss.name() });
    }
    Ok(())
}
