//! The pipeline of actors that trains a policy.
//!
//! Items become rollouts, rollouts get rewards, rewards become advantages, advantages become optimizer steps, all of it
//! overlapping. Every group that is opened leaves with exactly one outcome; credits bound what is in flight.
//! Read [`pipeline`] first, which wires the stages, then [`messages`], which names what travels between them.

pub mod error;
pub mod generate;
pub mod ledger;
pub mod mailbox;
pub mod messages;
pub mod pipeline;
pub mod policy;
pub mod remote;
mod stages;

/// Time limits and retries of requests to the service.
pub mod service {
    pub mod deadlines;
    pub mod retry;
}

/// Tokens that the service bills: counted around the whole service, with a cap on their price.
pub mod usage {
    pub mod metered;
    pub mod usage_meter;
}

/// Metrics of a pipeline: counters and busy times.
pub mod telemetry {
    pub mod activity;
    mod board;
    pub mod meters;
    pub mod sample_waits;
    pub mod shadow_meter;

    pub use board::{StageBoard, StageSnapshot};
}

pub use stages::{batcher, evaluator, feeder, sampler, scorer, shadow, trainer};
