//! Appending tokens to many sequences in one batch.

use super::{Activations, AdapterSpan, DecoderBatch, DecoderScratch, Model};
use crate::adapter::AdapterWeights;
use crate::attention::{SequenceQueries, attend};
use crate::error::EngineError;
use crate::kernel::rows::rms_norm;
use crate::kv_cache::KvCache;
use crate::real::Real;
use minds_core::architecture::Architecture;
use minds_core::ids::Token;
use std::ops::Range;
use std::ptr;

/// New tokens of one sequence.
#[derive(Debug)]
pub struct SequenceExtension<'a, T> {
    /// The adapter that the sequence runs under; `None` for the plain model.
    pub adapter: Option<&'a AdapterWeights<T>>,
    /// Tokens to append: one (decoding) or many (prefill).
    pub tokens: &'a [Token],
    /// Sequence that the tokens are appended to.
    pub kv: &'a mut KvCache<T>,
}

/// Normalised hidden states of new tokens: what the head reads.
#[derive(Debug)]
pub struct HiddenStates<T> {
    dim: usize,
    values: Vec<T>,
    entries: Vec<Range<usize>>,
}

impl<T: Real> HiddenStates<T> {
    /// Rows of the `entry`-th sequence of the call, one per new token.
    #[must_use]
    pub fn rows(&self, entry: usize) -> Range<usize> {
        self.entries[entry].clone()
    }

    /// Hidden state of one row.
    #[must_use]
    pub fn row(&self, row: usize) -> &[T] {
        &self.values[row * self.dim..(row + 1) * self.dim]
    }
}

/// Appends tokens to sequences, all in one batch. Prompts may be cut into pieces anywhere: the bits stay the same.
///
/// # Errors
/// Unknown tokens, a sequence beyond the context, keys or an adapter of another model; nothing is changed then.
pub fn extend<T: Real>(
    model: &Model<T>,
    work: &mut [SequenceExtension<'_, T>],
) -> Result<HiddenStates<T>, EngineError> {
    for entry in work.iter() {
        check(model, entry)?;
    }
    // Rows of one adapter are adjacent.
    let key = |e: &SequenceExtension<'_, T>| e.adapter.map_or(ptr::null(), ptr::from_ref);
    let mut order: Vec<usize> = (0..work.len()).collect();
    order.sort_by_key(|&i| key(&work[i]));
    let mut entries = vec![0..0; work.len()];
    let mut spans: Vec<AdapterSpan<'_, T>> = Vec::new();
    let mut tokens = Vec::new();
    let mut positions = Vec::new();
    for &i in &order {
        let entry = &work[i];
        let rows = tokens.len()..tokens.len() + entry.tokens.len();
        tokens.extend_from_slice(entry.tokens);
        positions.extend(entry.kv.len()..entry.kv.len() + entry.tokens.len());
        match (entry.adapter, spans.last_mut()) {
            (Some(adapter), Some(last)) if ptr::eq(adapter, last.adapter) => last.rows.end = rows.end,
            (Some(adapter), _) => spans.push(AdapterSpan { rows: rows.clone(), adapter }),
            (None, _) => {}
        }
        entries[i] = rows;
    }
    let batch = DecoderBatch::new(model, spans, positions.iter().copied());
    let starts: Vec<usize> = work.iter().map(|entry| entry.kv.len()).collect();

    let heads = model.heads();
    let width = model.heads().qkv_width();
    let mut a = Activations { x: model.embed(tokens.iter().copied()), ..Activations::default() };
    let mut scratch = DecoderScratch::default();
    let mut out = Vec::new();
    for (index, layer) in model.layers.iter().enumerate() {
        layer.before_attention(model, index, &batch, &mut a, &mut scratch);
        for (entry, rows) in work.iter_mut().zip(&entries) {
            entry.kv.segment_mut(index).append(&a.qkv[rows.start * width..rows.end * width]);
        }
        let sequences: Vec<_> = work
            .iter()
            .zip(&entries)
            .zip(&starts)
            .map(|((entry, rows), &position)| SequenceQueries {
                rows: rows.clone(),
                position,
                chain: entry.kv.chain(index),
            })
            .collect();
        attend(heads, &a.qkv, &sequences, &mut a.mixed, &mut a.lse);
        layer.after_attention(model, index, &batch, &mut a, &mut scratch, &mut out);
        std::mem::swap(&mut a.x, &mut out);
    }
    let mut values = vec![T::ZERO; a.x.len()];
    rms_norm(&a.x, &model.norm, model.eps(), &mut values);
    Ok(HiddenStates { dim: model.arch.dim, values, entries })
}

/// Logits of the given rows, `[rows, vocab]`.
#[must_use]
pub fn logits<T: Real>(model: &Model<T>, hidden: &HiddenStates<T>, rows: &[usize]) -> Vec<T> {
    let chosen: Vec<T> = rows.iter().flat_map(|&row| hidden.row(row)).copied().collect();
    let mut out = vec![T::ZERO; rows.len() * model.arch.vocab];
    model.head(&chosen, &mut out);
    out
}

fn check<T: Real>(model: &Model<T>, entry: &SequenceExtension<'_, T>) -> Result<(), EngineError> {
    let arch = model.architecture();
    check_tokens(arch, entry.tokens)?;
    let len = entry.kv.len() + entry.tokens.len();
    if len > arch.context {
        return Err(EngineError::TooLong { len, context: arch.context });
    }
    if !entry.kv.fits(arch) {
        return Err(EngineError::Adapter("the keys and values belong to a model of another shape".into()));
    }
    entry.adapter.map_or(Ok(()), |adapter| adapter.check(arch))
}

/// Refuses tokens outside of the vocabulary.
pub(crate) fn check_tokens(arch: &Architecture, tokens: &[Token]) -> Result<(), EngineError> {
    let vocab = arch.vocab;
    match tokens.iter().find(|&&t| t as usize >= vocab) {
        Some(&token) => Err(EngineError::Token { token, vocab }),
        None => Ok(()),
    }
}
