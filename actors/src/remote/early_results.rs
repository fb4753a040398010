//! Results that arrived before this process submitted their job: those of a run that was interrupted.
//!
//! They stay unacknowledged, so that another interruption does not lose them.

use super::message::JobResult;
use async_nats::jetstream::message::Acker;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// Most bytes of results that are kept.
const MOST_BYTES: usize = 64 << 20;
/// Time after which a result is dropped if its job was not submitted.
const KEPT: Duration = Duration::from_secs(3600);

struct EarlyResult {
    result: JobResult,
    acker: Acker,
    bytes: usize,
}

/// Results whose job was not submitted yet, by job id.
#[derive(Default)]
pub(super) struct EarlyResults {
    results: HashMap<String, EarlyResult>,
    order: VecDeque<(Instant, String)>,
    bytes: usize,
}

impl EarlyResults {
    /// Removes and returns the result of a job, if it has arrived.
    pub(super) fn take(&mut self, id: &str) -> Option<(JobResult, Acker)> {
        let EarlyResult { result, acker, bytes } = self.results.remove(id)?;
        self.bytes -= bytes;
        Some((result, acker))
    }

    /// Stores a result of this many bytes. Drops the oldest results above the limits and returns their ackers.
    pub(super) fn put(&mut self, id: String, result: JobResult, acker: Acker, bytes: usize) -> Vec<Acker> {
        let now = Instant::now();
        let replaced = self.results.insert(id.clone(), EarlyResult { result, acker, bytes });
        self.bytes += bytes;
        match replaced {
            Some(replaced) => self.bytes -= replaced.bytes,
            None => self.order.push_back((now, id)),
        }
        let mut given_up = Vec::new();
        while let Some((since, oldest)) = self.order.front() {
            let is_taken = !self.results.contains_key(oldest);
            if !is_taken && self.bytes <= MOST_BYTES && now - *since < KEPT {
                break;
            }
            if let Some((_, oldest)) = self.order.pop_front() {
                given_up.extend(self.take(&oldest).map(|(_, acker)| acker));
            }
        }
        given_up
    }
}
