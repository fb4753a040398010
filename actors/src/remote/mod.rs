//! Rewards and self-driven environments on other machines, over a broker: NATS with JetStream.
//!
//! A run puts jobs into a stream, workers take them, and results come back through the same stream. Read
//! [`RemoteEnvironment`] first, which stands in the pipeline where the environment itself would; then `dispatcher`
//! (the run's end), `worker` (the other end), `questions` (what a job may ask of the model), `message` (what travels)
//! and `broker` (how it travels).

mod broker;
pub mod dead_letters;
mod dispatcher;
mod early_results;
mod environment;
pub mod message;
mod names;
mod questions;
mod settled_jobs;
mod worker;
mod worker_table;

pub use broker::{Broker, BrokerError, BrokerOptions, BrokerState, StreamSettings, probe};
pub use dispatcher::{Dispatcher, DispatcherOptions, JobCounts};
pub use environment::RemoteEnvironment;
pub use names::{StreamNames, hash, token};
pub use worker::{EnvironmentLoader, WorkerOptions, WorkerSummary, run_worker};
pub use worker_table::SeenWorker;
