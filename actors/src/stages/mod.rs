//! The stages: actors that turn one kind of message into the next.

pub mod batcher;
pub mod evaluator;
pub mod event;
pub mod feeder;
pub mod sampler;
pub mod scorer;
pub mod shadow;
pub mod trainer;
