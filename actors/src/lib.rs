//! The actors of the line and the kit they stand on.
//!
//! Prompts become rollouts, rollouts rewards, rewards advantages, advantages optimizer steps, all of it
//! overlapping. Every group that is opened leaves with exactly one verdict; what flows is bounded by credits.
//! Start reading at [`line`], which wires the stages, and [`parcels`], which names what travels between them.

pub mod activity;
pub mod batcher;
pub mod capacities;
mod clock;
pub mod deadline;
pub mod evaluator;
pub mod feeder;
pub mod frozen;
pub mod kit;
pub mod ledger;
pub mod line;
pub mod memory;
pub mod meters;
pub mod names;
pub mod observer;
pub mod parcels;
pub mod play;
pub mod policy;
pub mod queries;
pub mod retry;
pub mod sampler;
pub mod scorer;
pub mod seats;
pub mod shadow_trainer;
pub mod trainer;
