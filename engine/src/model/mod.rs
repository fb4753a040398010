//! The frozen decoder: its weights, and running new tokens through it.
//!
//! A [`Model`] never changes after it is made; any number of adapters, samplers and trainers share one.

mod batch;
mod decoder;
mod load;
mod rope;

pub use crate::kernel::rows::log_sum_exp;
pub use decoder::{HiddenStates, SequenceExtension, extend, logits};

pub(crate) use batch::{Activations, AdapterSpan, DecoderBatch, DecoderScratch, sized};
pub(crate) use decoder::check_tokens;
pub(crate) use rope::rotate_back;

use crate::adapter::FusedProjection;
use crate::kernel::{Columns, ColumnsMut, InitialSum, Panels, multiply};
use crate::kv_cache::AttentionShape;
use crate::real::Real;
use minds_core::architecture::Architecture;
use minds_core::ids::Token;

/// A frozen model. Share it with an `Arc`.
#[derive(Debug)]
pub struct Model<T> {
    arch: Architecture,
    /// Token embeddings by rows, `[vocab, dim]`.
    embedding: Vec<T>,
    pub(crate) layers: Vec<DecoderLayer<T>>,
    pub(crate) norm: Vec<T>,
    head: Panels<T>,
    /// The head's rows `[vocab, dim]`; `None` if the head is the embedding.
    untied: Option<Vec<T>>,
    frequencies: Vec<f64>,
}

/// The weights of one block.
#[derive(Debug)]
pub(crate) struct DecoderLayer<T> {
    pub(crate) input_norm: Vec<T>,
    pub(crate) post_norm: Vec<T>,
    /// In the order of [`FusedProjection::ALL`].
    linear: [FusedLinear<T>; 4],
    /// Per-head norms of q and k.
    pub(crate) qk_norm: Option<(Vec<T>, Vec<T>)>,
}

impl<T> DecoderLayer<T> {
    pub(crate) fn linear(&self, projection: FusedProjection) -> &FusedLinear<T> {
        &self.linear[projection as usize]
    }
}

/// The linear layers of one projection as one: packed for the forward pass, by rows for the backward pass.
#[derive(Debug)]
pub(crate) struct FusedLinear<T> {
    pub(crate) input: usize,
    pub(crate) output: usize,
    pub(crate) panels: Panels<T>,
    /// Weights by rows, `[output, input]`.
    pub(crate) rows: Vec<T>,
    pub(crate) bias: Option<Vec<T>>,
}

impl<T: Real> Model<T> {
    /// The shape of the model.
    #[must_use]
    pub fn architecture(&self) -> &Architecture {
        &self.arch
    }

    /// Bytes of all weights in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let linear = |l: &FusedLinear<T>| l.panels.bytes() + size_of_val(&l.rows[..]);
        let blocks: usize = self.layers.iter().flat_map(|l| &l.linear).map(linear).sum();
        let untied = self.untied.as_ref().map_or(0, |rows| size_of_val(&rows[..]));
        size_of_val(&self.embedding[..]) + blocks + self.head.bytes() + untied
    }

    pub(crate) fn heads(&self) -> AttentionShape {
        AttentionShape::new(&self.arch)
    }

    pub(crate) fn eps(&self) -> T {
        T::from_f64(self.arch.rms_eps)
    }

    /// Embeddings of tokens, `[tokens, dim]`.
    pub(crate) fn embed(&self, tokens: impl Iterator<Item = Token>) -> Vec<T> {
        let dim = self.arch.dim;
        tokens.flat_map(|t| &self.embedding[t as usize * dim..(t as usize + 1) * dim]).copied().collect()
    }

    /// Logits of normalised hidden states, `[rows, vocab]`.
    pub(crate) fn head(&self, hidden: &[T], out: &mut [T]) {
        let hidden = Columns::all(hidden, self.arch.dim);
        let out = ColumnsMut::all(out, self.arch.vocab);
        multiply(hidden, &self.head, out, InitialSum::Zero);
    }

    /// The head's weights `[vocab, dim]`.
    pub(crate) fn head_rows(&self) -> &[T] {
        self.untied.as_ref().unwrap_or(&self.embedding)
    }
}
