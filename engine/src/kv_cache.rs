//! Keys and values of the positions seen so far.
//!
//! A [`KvCache`] holds the positions from its start to its end for all layers; earlier ones are its parent's, which
//! is immutable and may be shared by any number of children. Attention over a chain of segments gives the same
//! bits as over one, because keys stand on an absolute grid of 32 positions.

use crate::kernel::{AlignedVec, WIDTH};
use crate::real::Real;
use minds_core::architecture::Architecture;
use std::ops::Range;
use std::sync::Arc;

/// Sizes of the attention heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionShape {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
}

impl AttentionShape {
    pub(crate) fn new(arch: &Architecture) -> Self {
        Self { heads: arch.heads, kv_heads: arch.kv_heads, dim: arch.head_dim }
    }

    /// Query heads per key and value head.
    pub(crate) fn group(self) -> usize {
        self.heads / self.kv_heads
    }

    /// Width of all queries of a position.
    pub(crate) fn q_width(self) -> usize {
        self.heads * self.dim
    }

    /// Width of all keys (or values) of a position.
    pub(crate) fn kv_width(self) -> usize {
        self.kv_heads * self.dim
    }

    /// Width of queries, keys and values of a position.
    pub(crate) fn qkv_width(self) -> usize {
        self.q_width() + 2 * self.kv_width()
    }

    /// Panels of value columns.
    pub(crate) fn value_panels(self) -> usize {
        self.dim.div_ceil(WIDTH)
    }

    /// Elements of one head's keys in a panel of positions, `[dim][WIDTH]`.
    fn key_block(self) -> usize {
        self.dim * WIDTH
    }

    /// Elements of one head's keys and values in a panel; values are `[column panel][position][WIDTH]`.
    fn head_block(self) -> usize {
        self.key_block() + self.value_panels() * WIDTH * WIDTH
    }

    /// Elements of a panel.
    fn block(self) -> usize {
        self.kv_heads * self.head_block()
    }

    /// Copies a range of positions of a panel.
    fn copy_lanes<T: Copy>(self, target: &mut [T], source: &[T], lanes: Range<usize>) {
        let blocks = target.chunks_mut(self.head_block()).zip(source.chunks(self.head_block()));
        for (target, source) in blocks {
            let (target_keys, target_values) = target.split_at_mut(self.key_block());
            let (source_keys, source_values) = source.split_at(self.key_block());
            for (target, source) in target_keys.chunks_mut(WIDTH).zip(source_keys.chunks(WIDTH)) {
                target[lanes.clone()].copy_from_slice(&source[lanes.clone()]);
            }
            let values = lanes.start * WIDTH..lanes.end * WIDTH;
            let panel = WIDTH * WIDTH;
            for (target, source) in target_values.chunks_mut(panel).zip(source_values.chunks(panel)) {
                target[values.clone()].copy_from_slice(&source[values.clone()]);
            }
        }
    }
}

/// Keys and values of consecutive positions in one layer, in panels on the absolute grid: lane `p % WIDTH` of a
/// panel belongs to position `p`. Lanes outside of the segment are zero.
#[derive(Debug)]
pub(crate) struct KvSegment<T> {
    heads: AttentionShape,
    start: usize,
    len: usize,
    panels: AlignedVec<T>,
}

impl<T: Real> KvSegment<T> {
    pub(crate) fn new(heads: AttentionShape, start: usize) -> Self {
        Self { heads, start, len: 0, panels: AlignedVec::zeros(0) }
    }

    /// Appends the keys and values of `rows`, `[q | k | v]` each.
    pub(crate) fn append(&mut self, rows: &[T]) {
        let heads = self.heads;
        let kv_width = heads.kv_width();
        let count = rows.len() / heads.qkv_width();
        let grid = self.start / WIDTH;
        let needed = ((self.start + self.len + count).div_ceil(WIDTH) - grid) * heads.block();
        if needed > self.panels.len() {
            self.panels.grow(needed);
        }
        for row in rows.chunks_exact(heads.qkv_width()) {
            let position = self.start + self.len;
            let lane = position % WIDTH;
            let panel = &mut self.panels[(position / WIDTH - grid) * heads.block()..][..heads.block()];
            let (keys, values) = row[heads.q_width()..].split_at(kv_width);
            let rows = keys.chunks(heads.dim).zip(values.chunks(heads.dim));
            for (block, (key, value)) in panel.chunks_mut(heads.head_block()).zip(rows) {
                let (key_block, value_block) = block.split_at_mut(heads.key_block());
                for (slot, x) in key_block[lane..].iter_mut().step_by(WIDTH).zip(key) {
                    *slot = *x;
                }
                for (columns, x) in value_block.chunks_mut(WIDTH * WIDTH).zip(value.chunks(WIDTH)) {
                    columns[lane * WIDTH..][..x.len()].copy_from_slice(x);
                }
            }
            self.len += 1;
        }
    }

    /// A segment of its own that holds the first `end` positions of a chain.
    fn copied(heads: AttentionShape, chain: &[VisibleKv<'_, T>], end: usize) -> Self {
        let block = heads.block();
        let mut panels = AlignedVec::zeros(end.div_ceil(WIDTH) * block);
        for part in chain {
            let from = part.start();
            let to = part.end().min(end);
            for cell in part.cells(end) {
                let lanes = from.max(cell * WIDTH) - cell * WIDTH..to.min((cell + 1) * WIDTH) - cell * WIDTH;
                let target = &mut panels[cell * block..][..block];
                let source = part.panel(cell);
                if lanes == (0..WIDTH) {
                    target.copy_from_slice(source);
                } else {
                    heads.copy_lanes(target, source, lanes);
                }
            }
        }
        Self { heads, start: 0, len: end, panels }
    }

    /// The positions before `end`.
    pub(crate) fn until(&self, end: usize) -> VisibleKv<'_, T> {
        VisibleKv { segment: self, end: end.min(self.start + self.len) }
    }
}

/// The part of a segment that a sequence attends to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VisibleKv<'a, T> {
    segment: &'a KvSegment<T>,
    end: usize,
}

impl<'a, T: Real> VisibleKv<'a, T> {
    pub(crate) fn start(&self) -> usize {
        self.segment.start
    }

    pub(crate) fn end(&self) -> usize {
        self.end
    }

    /// Cells of the position grid that this part touches before `end`.
    pub(crate) fn cells(&self, end: usize) -> Range<usize> {
        let grid = self.segment.start / WIDTH;
        let end = end.min(self.end);
        if end <= self.segment.start { grid..grid } else { grid..end.div_ceil(WIDTH) }
    }

    /// All heads' keys and values in a cell.
    fn panel(&self, cell: usize) -> &'a [T] {
        let heads = self.segment.heads;
        let grid = self.segment.start / WIDTH;
        &self.segment.panels[(cell - grid) * heads.block()..][..heads.block()]
    }

    fn block(&self, cell: usize, kv_head: usize) -> &'a [T] {
        let heads = self.segment.heads;
        &self.panel(cell)[kv_head * heads.head_block()..][..heads.head_block()]
    }

    /// One head's keys in a cell, `[dim][WIDTH]`.
    pub(crate) fn keys(&self, cell: usize, kv_head: usize) -> &'a [T] {
        &self.block(cell, kv_head)[..self.segment.heads.key_block()]
    }

    /// One head's values in a cell, one panel of columns, `[position][WIDTH]`.
    pub(crate) fn values(&self, cell: usize, kv_head: usize, panel: usize) -> &'a [T] {
        &self.block(cell, kv_head)[self.segment.heads.key_block() + panel * WIDTH * WIDTH..][..WIDTH * WIDTH]
    }
}

/// One segment of a sequence's keys and values, for all layers.
#[derive(Debug)]
pub struct KvCache<T> {
    parent: Option<Arc<KvCache<T>>>,
    start: usize,
    layers: Vec<KvSegment<T>>,
}

impl<T: Real> KvCache<T> {
    /// An empty sequence of a model of this shape, without a parent.
    #[must_use]
    pub fn root(arch: &Architecture) -> Self {
        let layers = (0..arch.layers).map(|_| KvSegment::new(AttentionShape::new(arch), 0)).collect();
        Self { parent: None, start: 0, layers }
    }

    /// Continues after all positions of `parent`, which it keeps alive.
    #[must_use]
    pub fn child(parent: Arc<Self>) -> Self {
        let start = parent.len();
        let layers = parent.layers.iter().map(|l| KvSegment::new(l.heads, start)).collect();
        Self { parent: Some(parent), start, layers }
    }

    /// A separate sequence that begins with a copy of the first `at` positions, or of all if there are fewer. It
    /// keeps no other sequence alive.
    #[must_use]
    pub fn fork(&self, at: usize) -> Self {
        let end = at.min(self.len());
        let copy =
            |(index, layer): (usize, &KvSegment<T>)| KvSegment::copied(layer.heads, &self.chain(index), end);
        Self { parent: None, start: 0, layers: self.layers.iter().enumerate().map(copy).collect() }
    }

    /// Positions from the beginning of the sequence to the end of this segment.
    #[must_use]
    pub fn len(&self) -> usize {
        self.start + self.layers.last().map_or(0, |l| l.len)
    }

    /// Whether the sequence has no position yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held by this segment, without its parents.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|l| l.panels.bytes()).sum()
    }

    /// The parent that the sequence continues.
    #[cfg(test)]
    pub(crate) fn parent(&self) -> Option<&Arc<Self>> {
        self.parent.as_ref()
    }

    pub(crate) fn segment_mut(&mut self, layer: usize) -> &mut KvSegment<T> {
        &mut self.layers[layer]
    }

    /// What a sequence that ends with this segment sees in one layer, from its beginning on.
    pub(crate) fn chain(&self, layer: usize) -> Vec<VisibleKv<'_, T>> {
        let mut chain = Vec::new();
        let mut node = Some(self);
        let mut end = usize::MAX;
        while let Some(kv) = node {
            if kv.start < end {
                chain.push(kv.layers[layer].until(end));
            }
            end = end.min(kv.start);
            node = kv.parent.as_deref();
        }
        chain.reverse();
        chain
    }

    /// Whether the segment belongs to a model of this shape.
    pub(crate) fn fits(&self, arch: &Architecture) -> bool {
        self.layers.len() == arch.layers && self.layers.iter().all(|l| l.heads == AttentionShape::new(arch))
    }
}
