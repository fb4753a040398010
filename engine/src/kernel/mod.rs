//! The arithmetic on matrices and rows.
//!
//! [`multiply`] and the row functions give every row the same bits, whatever the other rows are; forward passes use
//! nothing else. [`gemm`] is faster for large products but does not guarantee that; only gradients use it.

mod aligned;
pub(crate) mod gemm;
mod multiply;
mod panels;
pub(crate) mod rows;
mod tile;

pub(crate) use aligned::AlignedVec;
pub(crate) use multiply::{Columns, ColumnsMut, multiply};
pub use panels::Panels;
pub(crate) use panels::{Strips, WIDTH};
pub(crate) use tile::{InitialSum, TileSums, tile, vectorized};
