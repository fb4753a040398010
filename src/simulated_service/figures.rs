//! Figures of the traffic of a scripted service.

use minds_stages::trainer::StalenessHistogram;
use std::collections::BTreeMap;

/// Running totals, as of the end of an optimizer step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepMark {
    /// Seconds since the start of the service.
    pub at: f64,
    /// Seconds of passes and optimizer steps.
    pub training_s: f64,
    /// Seconds of exports, saves and loads.
    pub publishing_s: f64,
    /// Seconds of samples in flight: their number, summed over time.
    pub sample_s: f64,
    /// Seconds without a sample in flight, since the first one.
    pub idle_s: f64,
    /// Samples that clients got.
    pub sampled: u64,
    /// Samples trained, each counted once.
    pub trained: u64,
    /// Tokens of trained samples.
    pub trained_tokens: u64,
    /// Logprob queries that arrived.
    pub queries: u64,
}

/// Figures so far. Times are in seconds since the start of the service.
#[derive(Default)]
pub struct TrafficFigures {
    /// Running totals of this moment.
    pub now: StepMark,
    /// Running totals at the end of each optimizer step.
    pub steps: Vec<StepMark>,
    /// When the first sample was requested.
    pub first_sample: Option<f64>,
    /// Samples that are requested and not answered.
    pub in_flight: usize,
    /// Most samples in flight.
    pub most_in_flight: usize,
    /// When `in_flight` changed last.
    pub changed: f64,
    /// Staleness of trained samples.
    pub staleness: StalenessHistogram,
    /// Staleness of the tokens of trained samples, summed; those of samples that were trained again count again.
    pub staleness_of_tokens: u64,
    /// Number of these tokens.
    pub stale_tokens: u64,
    /// Samples that were trained again.
    pub again: u64,
    /// Spans of training data that are no sample of the service.
    pub unknown: u64,
    /// Sample requests that failed, hung or were given up, samples with a logprob that is not a number, and faults of the
    /// server, by kind.
    pub faults: BTreeMap<&'static str, u64>,
}

impl TrafficFigures {
    /// Adds the time since the last change to the totals, and changes the number of samples in flight.
    pub fn change_in_flight(&mut self, at: f64, change: isize) {
        let since = at - self.changed;
        self.now.sample_s += since * self.in_flight as f64;
        if self.in_flight == 0 && self.first_sample.is_some() {
            self.now.idle_s += since;
        }
        self.changed = at;
        self.in_flight = self.in_flight.saturating_add_signed(change);
        self.most_in_flight = self.most_in_flight.max(self.in_flight);
    }
}
