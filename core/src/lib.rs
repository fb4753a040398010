//! Types and arithmetic of the rollout pipeline.
//!
//! Everything here is a value or a trait: no I/O, no clock, no runtime. Types keep their invariants by
//! construction (a [`reward::Reward`] is finite, a [`datum::Datum`] has tensors of one length), so that code that
//! receives one need not check again.

pub mod advantage;
pub mod architecture;
pub mod chat;
pub mod checkpoint;
pub mod choice;
pub mod continuation;
pub mod contract;
pub mod datum;
pub mod demonstration;
#[cfg(test)]
mod documentation;
pub mod environment;
mod forward;
pub mod hosting;
pub mod ids;
mod item;
pub mod lora;
pub mod loss;
pub mod mean;
pub mod number;
pub mod optim;
pub mod paired;
pub mod pass_at_k;
pub mod random;
pub mod record;
pub mod reward;
pub mod rollout;
pub mod sampling;
pub mod schedule;
pub mod service;
pub mod telemetry;
pub mod tensor;
pub mod usage;
