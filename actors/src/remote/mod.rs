//! Rewards and self-driven environments on other machines, over a broker: NATS with JetStream.
//!
//! A run publishes jobs to a stream, workers pull them, and results return through the same stream. Read
//! [`RemoteEnvironment`] first: it replaces the local environment in the pipeline. Then read `dispatcher` (the run's
//! side), `worker` (the worker's side), `questions` (model queries of a job), `message` (the messages) and `broker`
//! (the connection and the stream).

mod broker;
pub mod dead_letters;
mod dispatcher;
mod early_results;
mod environment;
pub mod message;
mod names;
mod probe;
mod questions;
mod settled_jobs;
mod worker;
mod worker_table;

pub use broker::{Broker, BrokerError, BrokerOptions, BrokerState, StreamSettings};
pub use dispatcher::{Dispatcher, DispatcherOptions, JobCounts};
pub use environment::RemoteEnvironment;
pub use names::{StreamNames, hash, token};
pub use probe::{probe, probe_run};
pub use worker::{EnvironmentLoader, WorkerOptions, WorkerSummary, run_worker};
pub use worker_table::SeenWorker;
