//! Summary of the traffic of a scripted service.

use super::figures::{StepMark, TrafficFigures};
use crate::terminal::number_or_dash;
use serde::Serialize;
use std::collections::BTreeMap;

/// The steps at both ends that rates, shares and means leave out.
#[derive(Clone, Copy, Debug)]
pub struct SteadySteps {
    /// Steps at the beginning.
    pub warm_up_steps: usize,
    /// Steps at the end.
    pub cool_down_steps: usize,
}

/// What a service measured of its clients. Rates and shares of the time are of the steps in between, counts and staleness
/// of the whole time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrafficSummary {
    /// Number of optimizer steps.
    pub steps: usize,
    /// Steps at the beginning that rates, shares and means leave out.
    pub warm_up_steps: usize,
    /// Steps at the end that they leave out: a client starts no new samples then.
    pub cool_down_steps: usize,
    /// Seconds from the start of the service to the first sample request.
    pub first_sample_s: Option<f64>,
    /// Seconds from the first sample request to the end of the last step.
    pub seconds: f64,
    /// Mean seconds of a step.
    pub step_s: Option<f64>,
    /// Share of the time in passes and optimizer steps.
    pub training_share: Option<f64>,
    /// The same, with exports, saves and loads.
    pub busy_share: Option<f64>,
    /// Mean samples in flight.
    pub in_flight_mean: Option<f64>,
    /// Most samples in flight.
    pub in_flight_max: usize,
    /// Share of the time without a sample in flight.
    pub idle_share: Option<f64>,
    /// Samples that clients got.
    pub sampled: u64,
    /// Samples trained, each counted once.
    pub trained: u64,
    /// Tokens of trained samples.
    pub trained_tokens: u64,
    /// Samples answered that were not trained; among them those that the last steps left over.
    pub not_trained: u64,
    /// Samples that were trained more than once.
    pub trained_again: u64,
    /// Trained spans that no sample had, or with logprobs that it did not have.
    pub unknown_spans: u64,
    /// Logprob queries that arrived.
    pub queries: u64,
    /// Mean staleness of trained samples, in optimizer steps.
    pub staleness_mean: Option<f64>,
    /// Staleness that 99 of 100 trained samples do not exceed.
    pub staleness_p99: Option<u64>,
    /// Largest staleness of a trained sample.
    pub staleness_max: Option<u64>,
    /// Mean staleness of their tokens, in optimizer steps: each counts from the weights that drew it.
    pub staleness_token_mean: Option<f64>,
    /// Requests that failed and samples with a logprob that is not a number, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Why events are missing in the file of events, if some are.
    pub events_error: Option<String>,
}

impl TrafficSummary {
    /// The summary of some figures.
    #[must_use]
    pub fn of(figures: &TrafficFigures, steady: SteadySteps) -> Self {
        let TrafficFigures { now, steps, staleness, .. } = figures;
        let SteadySteps { warm_up_steps, cool_down_steps } = steady;
        let start = StepMark::default();
        let marks: Vec<&StepMark> = std::iter::once(&start).chain(steps).collect();
        let counted = steps.len().saturating_sub(warm_up_steps + cool_down_steps);
        let steady = (counted > 0).then(|| (marks[warm_up_steps], marks[warm_up_steps + counted]));
        let time = |(from, to): (&StepMark, &StepMark)| (to.at - from.at).max(f64::MIN_POSITIVE);
        let share =
            |total: fn(&StepMark) -> f64| steady.map(|span| (total(span.1) - total(span.0)) / time(span));
        let measured = staleness.count() > 0;
        let percentile = |share| measured.then(|| staleness.percentile(share));
        let last = steps.last().map_or(0.0, |mark| mark.at);
        Self {
            steps: steps.len(),
            warm_up_steps,
            cool_down_steps,
            first_sample_s: figures.first_sample,
            seconds: (last - figures.first_sample.unwrap_or(0.0)).max(0.0),
            step_s: steady.map(|span| time(span) / counted as f64),
            training_share: share(|mark| mark.training_s),
            busy_share: share(|mark| mark.training_s + mark.publishing_s),
            in_flight_mean: share(|mark| mark.sample_s),
            in_flight_max: figures.most_in_flight,
            idle_share: share(|mark| mark.idle_s),
            sampled: now.sampled,
            trained: now.trained,
            trained_tokens: now.trained_tokens,
            not_trained: now.sampled.saturating_sub(now.trained),
            trained_again: figures.again,
            unknown_spans: figures.unknown,
            queries: now.queries,
            staleness_mean: measured.then(|| staleness.mean()),
            staleness_p99: percentile(0.99),
            staleness_max: percentile(1.0),
            staleness_token_mean: (figures.stale_tokens > 0)
                .then(|| figures.staleness_of_tokens as f64 / figures.stale_tokens as f64),
            faults: figures.faults.clone(),
            events_error: None,
        }
    }

    /// The summary as a JSON object.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and names can be written")
    }

    /// The summary as lines of text.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let percent = |share: Option<f64>| number_or_dash(share.map(|share| 100.0 * share), 1);
        let count = |count: Option<u64>| number_or_dash(count.map(|count| count as f64), 0);
        let faults: Vec<String> =
            self.faults.iter().map(|(kind, requests)| format!("{requests} {kind}")).collect();
        let mut lines = vec![
            format!("steps        {} in {:.1} s", self.steps, self.seconds),
            format!(
                "step         {} s, without the first {} and the last {}",
                number_or_dash(self.step_s, 3),
                self.warm_up_steps,
                self.cool_down_steps
            ),
            format!(
                "training     {}% of the time; {}% with exports and saves",
                percent(self.training_share),
                percent(self.busy_share)
            ),
            format!(
                "in flight    {} samples on average, {} at most; none for {}% of the time",
                number_or_dash(self.in_flight_mean, 1),
                self.in_flight_max,
                percent(self.idle_share)
            ),
            format!(
                "samples      {} answered, {} trained, {} not trained; {} queries",
                self.sampled, self.trained, self.not_trained, self.queries
            ),
            format!(
                "checked      {} samples were trained again, {} trained spans are not of this service",
                self.trained_again, self.unknown_spans
            ),
            format!(
                "staleness    {} steps on average, {} for 99 of 100, {} at most; tokens {} steps on average",
                number_or_dash(self.staleness_mean, 2),
                count(self.staleness_p99),
                count(self.staleness_max),
                number_or_dash(self.staleness_token_mean, 2)
            ),
            format!("faults       {}", if faults.is_empty() { "none".into() } else { faults.join(", ") }),
        ];
        lines.extend(self.events_error.as_ref().map(|error| format!("events       {error}")));
        lines
    }
}
