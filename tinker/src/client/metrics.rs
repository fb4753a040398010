//! Prometheus metrics of the client: requests on the network, including polls and retries.
//!
//! Names and help texts are in [`minds_core::telemetry`]. Labels are bounded: the operations of the API, and statuses.

use super::retry::RetryReason;
use minds_core::telemetry::{self, MetricKind, MetricSpec};
use prometheus::core::Collector;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts};
use std::time::Duration;

/// Counters and histograms of a client. Clones are cheap and share their counts.
#[derive(Clone, Debug)]
pub struct ClientMetrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
    retries: IntCounterVec,
}

impl Default for ClientMetrics {
    fn default() -> Self {
        let valid = "names, labels and buckets of the table are valid: a test makes them all";
        let counters =
            |spec: MetricSpec| IntCounterVec::new(Opts::new(spec.name, spec.help), spec.labels).expect(valid);
        let MetricSpec { name, help, labels, kind, .. } = telemetry::CLIENT_REQUEST_SECONDS;
        let mut seconds = HistogramOpts::new(name, help);
        if let MetricKind::Histogram(buckets) = kind {
            seconds = seconds.buckets(buckets.to_vec());
        }
        Self {
            requests: counters(telemetry::CLIENT_REQUESTS),
            seconds: HistogramVec::new(seconds, labels).expect(valid),
            retries: counters(telemetry::CLIENT_RETRIES),
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
const REASONS: [&str; 4] = ["failed", "busy", "conflict", "unreadable"];

/// Label value for the reason of a retry.
fn why(reason: &RetryReason) -> &'static str {
    match reason {
        RetryReason::Failed { .. } => "failed",
        RetryReason::Busy(..) => "busy",
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
            RetryReason::Conflict(text()),
            RetryReason::Unreadable(text()),
        ];
        reasons.iter().for_each(|reason| metrics.retry(reason));
        assert_eq!(count(), REASONS.len(), "no other came along");
        assert!(REASONS.iter().all(|why| metrics.retries.with_label_values(&[why]).get() == 1));
    }
}
