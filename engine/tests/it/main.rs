//! The engine against independent arithmetic: a plain decoder in double precision, finite differences, exact bits.
//! And the engine at work: sampling, training and checkpoints through its service.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod bits;
mod checkpoint;
mod embedded;
mod fixture;
mod golden;
mod gradients;
mod optimizer;
mod reference;
mod sampling;
mod service;
