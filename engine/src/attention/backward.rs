//! The derivative through attention over a tree of sequences.
//!
//! Gradients of a shared prefix's keys and values are the sums over all who attend to it.

use crate::kernel::gemm::{Threads, View, ViewMut, gemm};
use crate::kernel::vectorized;
use crate::kv::Heads;
use crate::real::Real;
use rayon::prelude::*;
use std::ops::Range;

/// Rows of one sequence, or of the prefix that several share.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Its rows in the batch.
    pub(crate) rows: Range<usize>,
    /// Position of the first row.
    pub(crate) position: usize,
    /// Rows of the prefix before it, empty if there is none.
    pub(crate) prefix: Range<usize>,
}

/// Positions of one task.
const BLOCK: usize = 128;

/// What attention read and wrote.
pub(crate) struct Attended<'a, T> {
    /// `[q | k | v]` per row.
    pub(crate) qkv: &'a [T],
    /// Mixed values `[rows, heads * dim]`.
    pub(crate) out: &'a [T],
    /// Log of the softmax sums `[rows, heads]`.
    pub(crate) lse: &'a [T],
}
