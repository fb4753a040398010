//! What clients do with a scripted service: requests in flight, work of the trainer, and samples that are trained.

use super::figures::TrafficFigures;
use super::summary::{SteadySteps, TrafficSummary};
use crate::simulate::EventLog;
use minds_server::InjectedFault;
use minds_simulation::{AdapterRequest, RequestProgress, ServiceRequest, TrainedData};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Measures the traffic of a service, and writes every event to a log.
pub struct Traffic {
    log: EventLog,
    steady: SteadySteps,
    figures: Mutex<TrafficFigures>,
}

impl Traffic {
    /// Nothing has been measured yet.
    #[must_use]
    pub fn new(log: EventLog, steady: SteadySteps) -> Self {
        Self { log, steady, figures: Mutex::default() }
    }

    /// Seconds since the start of the service.
    #[must_use]
    pub fn elapsed(&self) -> f64 {
        self.log.elapsed()
    }

    /// Records the progress of a request.
    pub fn observe(&self, request: ServiceRequest<'_>, progress: RequestProgress) {
        match request {
            ServiceRequest::Sample(version, sample) => match progress {
                RequestProgress::NotFinite(bad) => self.not_finite(version, bad),
                _ => self.sample(version, sample.num_samples, progress),
            },
            ServiceRequest::Logprobs(..) => self.query(progress),
            ServiceRequest::Adapter(_, adapter_request) => {
                self.training(request.name(), adapter_request, progress);
            }
        }
    }

    fn sample(&self, version: u64, samples: usize, progress: RequestProgress) {
        let at = self.elapsed();
        let mut figures = self.figures.lock();
        let (event, change) = match progress {
            RequestProgress::Arrived => ("sample", samples as isize),
            RequestProgress::Answered(_) => ("sampled", -(samples as isize)),
            RequestProgress::Failed => ("failed", -(samples as isize)),
            RequestProgress::Cancelled => ("cancelled", -(samples as isize)),
            RequestProgress::Hung => ("hung", 0),
            RequestProgress::NotFinite(_) | RequestProgress::Begun => return,
        };
        figures.change_in_flight(at, change);
        match progress {
            RequestProgress::Arrived => {
                figures.first_sample.get_or_insert(at);
            }
            RequestProgress::Answered(_) => figures.now.sampled += samples as u64,
            _ => *figures.faults.entry(event).or_default() += 1,
        }
        let in_flight = figures.in_flight;
        drop(figures);
        self.log.record(
            event,
            [("version", version.into()), ("samples", samples.into()), ("in_flight", in_flight.into())],
        );
    }

    /// Records samples with a logprob that is not a number.
    fn not_finite(&self, version: u64, samples: u64) {
        *self.figures.lock().faults.entry("not_finite").or_default() += samples;
        self.log.record("not_finite", [("version", version.into()), ("samples", samples.into())]);
    }

    fn query(&self, progress: RequestProgress) {
        match progress {
            RequestProgress::Arrived => {
                self.figures.lock().now.queries += 1;
                self.log.record("query", []);
            }
            RequestProgress::Failed => {
                *self.figures.lock().faults.entry("failed").or_default() += 1;
                self.log.record("query_failed", []);
            }
            _ => {}
        }
    }

    fn training(&self, name: &'static str, request: &AdapterRequest, progress: RequestProgress) {
        match progress {
            RequestProgress::Begun => {
                let data = request.data().len();
                self.log.record("begun", [("request", name.into()), ("data", data.into())]);
            }
            RequestProgress::Answered(seconds) => {
                let at = self.elapsed();
                let mut figures = self.figures.lock();
                let totals = &mut figures.now;
                match request {
                    AdapterRequest::Forward(_)
                    | AdapterRequest::ForwardBackward(_)
                    | AdapterRequest::OptimStep(_) => totals.training_s += seconds,
                    _ => totals.publishing_s += seconds,
                }
                if let AdapterRequest::OptimStep(_) = request {
                    figures.change_in_flight(at, 0);
                    figures.now.at = at;
                    let mark = figures.now.clone();
                    figures.steps.push(mark);
                }
                drop(figures);
                self.log.record("ended", [("request", name.into()), ("seconds", seconds.into())]);
            }
            _ => {}
        }
    }

    /// Records what a pass with gradients trained.
    pub fn record_trained(&self, trained: &TrainedData) {
        let mut figures = self.figures.lock();
        figures.unknown += trained.unknown as u64;
        for sample in &trained.samples {
            figures.again += u64::from(sample.again);
            figures.now.trained += u64::from(!sample.again);
            figures.now.trained_tokens += u64::from(sample.tokens);
            figures.staleness.record(sample.staleness);
            figures.staleness_of_tokens += sample.token_staleness;
            figures.stale_tokens += u64::from(sample.tokens);
        }
        drop(figures);
        let samples: Vec<Value> = trained
            .samples
            .iter()
            .map(|sample| json!([sample.number, sample.tokens, sample.staleness, sample.token_staleness]))
            .collect();
        self.log.record(
            "trained",
            [
                ("data", trained.data.into()),
                ("tokens", trained.tokens.into()),
                ("unknown", trained.unknown.into()),
                ("samples", samples.into()),
            ],
        );
    }

    /// Records a fault that a request met before it reached the service.
    pub fn record_fault(&self, fault: InjectedFault, path: &str) {
        let what = match fault {
            InjectedFault::TooManyRequests => "too_many_requests",
            InjectedFault::Unavailable => "unavailable",
            InjectedFault::Reset => "reset",
            InjectedFault::Gone => "gone",
            InjectedFault::Hang => "hang",
        };
        *self.figures.lock().faults.entry(what).or_default() += 1;
        self.log.record("fault", [("what", what.into()), ("path", path.into())]);
    }

    /// Sums up what was measured so far.
    #[must_use]
    pub fn summary(&self) -> TrafficSummary {
        TrafficSummary::of(&self.figures.lock(), self.steady)
    }
}
