//! How a run publishes its jobs.

use crate::remote::broker::StreamSettings;
use std::time::Duration;

/// How a run publishes its jobs.
#[derive(Clone, Debug)]
pub struct DispatcherOptions {
    /// Name of the run on the broker; one token of a subject.
    pub run: String,
    /// Secret part of job ids. It makes them impossible to guess, so that only a worker that received a job can send
    /// its result. A resumed run uses the same salt.
    pub salt: String,
    /// Version of the program, which workers receive in announcements.
    pub program: String,
    /// Settings of the stream if the dispatcher creates it.
    pub stream: StreamSettings,
    /// Time without a progress report of its worker after which a job is redelivered.
    pub ack_wait: Duration,
    /// Number of deliveries after which an unfinished job becomes a dead letter.
    pub max_deliver: u64,
    /// Most jobs of one environment that are delivered but not acknowledged at a time.
    pub max_ack_pending: i64,
    /// Age from which the audit looks for a job without a result on the broker; also the time between two audits.
    pub audit_every: Duration,
    /// Most bytes of jobs that wait until the broker stores them.
    pub buffer_bytes: usize,
}
