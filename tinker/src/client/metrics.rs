//! Prometheus metrics of the client: requests on the network, including polls and retries.
//!
//! This file alone defines names and help texts. Labels are bounded: the operations of the API, and statuses.

use super::retry::RetryReason;
use prometheus::core::Collector;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, exponential_buckets};
use std::time::Duration;

/// Counters and histograms of a client. Clones are cheap and share their counts.
#[derive(Clone, Debug)]
pub struct ClientMetrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
    retries: IntCounterVec,
}

const NAMES: &str = "names, labels and buckets of this file are right: a test makes them all";

impl Default for ClientMetrics {
    fn default() -> Self {
        let counters =
            |name, help, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels).expect(NAMES);
        // From 1 ms to 65 s: no server holds a poll longer.
        let buckets = exponential_buckets(0.001, 2.0, 17).expect(NAMES);
        let seconds = HistogramOpts::new(
            "minds_client_request_seconds",
            "Time of one network request; for `retrieve_future`, how long the server held the poll.",
        );
        Self {
            requests: counters(
                "minds_client_requests_total",
                "Network requests by the status of their answer; `none` without an answer.",
                &["operation", "status"],
            ),
            seconds: HistogramVec::new(seconds.buckets(buckets), &["operation"]).expect(NAMES),
            retries: counters(
                "minds_client_retries_total",
                "Requests that were repeated, by why: `busy` (429, or a pause that the server asked for), `failed`, \
                 `conflict`, `unreadable`, `billing`.",
                &["why"],
            ),
        }
    }
}

impl ClientMetrics {
    /// All collectors, to be registered.
    #[must_use]
    pub fn collectors(&self) -> Vec<Box<dyn Collector>> {
        let Self { requests, seconds, retries } = self.clone();
        vec![Box::new(requests), Box::new(seconds), Box::new(retries)]
    }

    pub(super) fn request(&self, path: &str, status: Option<u16>, took: Duration) {
        let operation = operation(path);
        let status = status.map_or_else(|| "none".to_owned(), |status| status.to_string());
        self.requests.with_label_values(&[operation, &status]).inc();
        self.seconds.with_label_values(&[operation]).observe(took.as_secs_f64());
    }

    /// Initializes the retry counters of a new client to 0.
    pub(super) fn begin(&self) {
        for why in REASONS {
            self.retries.with_label_values(&[why]);
        }
    }

    pub(super) fn retry(&self, reason: &RetryReason) {
        self.retries.with_label_values(&[why(reason)]).inc();
    }
}

/// All label values of [`why`].
const REASONS: [&str; 5] = ["failed", "busy", "billing", "conflict", "unreadable"];

/// Label value for the reason of a retry.
fn why(reason: &RetryReason) -> &'static str {
    match reason {
        RetryReason::Failed { .. } => "failed",
        RetryReason::Busy(..) => "busy",
        RetryReason::Billing(_) => "billing",
        RetryReason::Conflict(_) => "conflict",
        RetryReason::Unreadable(_) => "unreadable",
    }
}

/// Operation of a path, without the names of runs and checkpoints.
pub(super) fn operation(path: &str) -> &'static str {
    const KNOWN: &[&str] = &[
        "asample",
        "cancel_future",
        "client",
        "create_model",
        "create_sampling_session",
        "create_session",
        "forward",
        "forward_backward",
        "get_info",
        "get_server_capabilities",
        "healthz",
        "load_weights",
        "optim_step",
        "retrieve_future",
        "save_weights",
        "save_weights_for_sampler",
        "session_heartbeat",
        "sessions",
        "training_runs",
        "unload_model",
        "weights_info",
    ];
    let first = path.split(['/', '?']).next().unwrap_or_default();
    KNOWN.iter().find(|known| **known == first).copied().unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_runs_and_checkpoints_are_not_used_as_labels() {
        for (path, expected) in [
            ("asample", "asample"),
            ("training_runs/0b1d/checkpoints/weights/000010", "training_runs"),
            ("client/config", "client"),
            ("../../", "other"),
            ("0b1d", "other"),
        ] {
            assert_eq!(operation(path), expected, "{path}");
        }
        assert_eq!(ClientMetrics::default().collectors().len(), 3);
    }

    #[test]
    fn retries_of_every_kind_are_zero_from_the_start() {
        let metrics = ClientMetrics::default();
        metrics.begin();
        let count =
            || metrics.retries.collect().iter().map(|family| family.get_metric().len()).sum::<usize>();
        assert_eq!(count(), REASONS.len());
        let text = String::new;
        let reasons = [
            RetryReason::failed(None, text()),
            RetryReason::Busy(text(), None),
            RetryReason::Billing(text()),
            RetryReason::Conflict(text()),
            RetryReason::Unreadable(text()),
        ];
        reasons.iter().for_each(|reason| metrics.retry(reason));
        assert_eq!(count(), REASONS.len(), "no other came along");
        assert!(REASONS.iter().all(|why| metrics.retries.with_label_values(&[why]).get() == 1));
    }
}
