//! The embedded engine: a Llama-family decoder with LoRA training and sampling on the CPU.
//!
//! A row's result never depends on its neighbours: whatever the batch, the split of the prompt or the sharing of
//! prefixes, the same tokens give the same logits bit for bit, in sampling and in training alike.
//! Only [`runtime`] starts threads and reads a clock; everything else runs inside the caller's rayon pool.

pub mod adapter;
mod attention;
pub mod checkpoint;
pub mod embedded;
pub mod error;
mod kernel;
pub mod kv_cache;
pub mod loss;
pub mod model;
pub mod optim;
pub mod real;
pub mod runtime;
pub mod sample;
pub mod train;
