//! What the pipeline counts while it runs, for Prometheus.
//!
//! Only events that leave no trace are counted here; what can be read from the pipeline at any moment is read from
//! its [`Observer`](crate::pipeline::Observer). Names, labels and help texts are in [`minds_core::telemetry`]. Counters
//! start at 0 for each value of their labels, so that `rate` sees the first event, too.

use super::sample_waits::{SampleWait, SampleWaits};
use crate::messages::{TrainingGroup, TrainingRollout};
use crate::usage::usage_meter::UsageMeter;
use minds_core::record::StepRecord;
use minds_core::reward::RewardError;
use minds_core::rollout::Rollout;
use minds_core::sampling::SampleResponse;
use minds_core::service::BackendError;
use minds_core::telemetry::{self, MetricKind, MetricSpec};
use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts};
use std::time::Duration;
use tokio::sync::watch;

/// Outcomes of a rollout, as label values.
const SAMPLED: &str = "sampled";
const FAILED: &str = "failed";

/// A collector that is made of a row of the table.
trait Instrument {
    fn of(spec: &MetricSpec) -> Self;
}

impl Instrument for IntCounterVec {
    fn of(spec: &MetricSpec) -> Self {
        started(spec, Self::new(Opts::new(spec.name, spec.help), spec.labels))
    }
}

impl Instrument for GaugeVec {
    fn of(spec: &MetricSpec) -> Self {
        started(spec, Self::new(Opts::new(spec.name, spec.help), spec.labels))
    }
}

impl Instrument for HistogramVec {
    fn of(spec: &MetricSpec) -> Self {
        let MetricKind::Histogram(buckets) = spec.kind else { panic!("{} is no histogram", spec.name) };
        let options = HistogramOpts::new(spec.name, spec.help).buckets(buckets.to_vec());
        started(spec, Self::new(options, spec.labels))
    }
}

/// Starts the one value of a metric without labels.
fn started<T: MetricVecBuilder>(spec: &MetricSpec, made: prometheus::Result<MetricVec<T>>) -> MetricVec<T> {
    let values = made.expect("names, labels and buckets of the table are valid: a test makes them all");
    if spec.labels.is_empty() {
        values.with_label_values(ALONE);
    }
    values
}

/// Declares a set of instruments, each with its row of the table. Cheap to clone; all clones share the values.
macro_rules! instruments {
    (
        $(#[$about:meta])*
        $name:ident { $( $(#[$extra_about:meta])* $vis:vis $extra:ident: $type:ty = $begin:expr, )* }
        $( $field:ident: $instrument:ty = $spec:ident, )+
    ) => {
        $(#[$about])*
        #[derive(Clone)]
        pub struct $name {
            $( $(#[$extra_about])* $vis $extra: $type, )*
            $( $field: $instrument, )+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $extra: $begin, )* $( $field: Instrument::of(&telemetry::$spec), )+ }
            }
        }

        impl $name {
            fn instruments(&self) -> Vec<Box<dyn Collector>> {
                vec![$( Box::new(self.$field.clone()) ),+]
            }
        }
    };
}

instruments! {
    /// The counters, gauges and histograms of a pipeline.
    PipelineMeters {
        /// Those of requests to the service.
        pub service: ServiceMeters = ServiceMeters::default(),
        /// Tokens that the service bills, and the cap on their price.
        pub usage: UsageMeter = UsageMeter::default(),
    }
    rollouts: IntCounterVec = SAMPLER_ROLLOUTS,
    tokens: IntCounterVec = SAMPLER_TOKENS,
    rollout_seconds: HistogramVec = SAMPLER_ROLLOUT_SECONDS,
    scored: IntCounterVec = SCORER_SCORED,
    reward_errors: IntCounterVec = SCORER_REWARD_ERRORS,
    lost_tokens: IntCounterVec = SCORER_TOKENS_DISCARDED,
    quarantined: IntCounterVec = SCORER_QUARANTINED,
    reward: HistogramVec = SCORER_REWARD,
    score_seconds: HistogramVec = SCORER_SCORE_SECONDS,
    trained_tokens: IntCounterVec = TRAINER_TOKENS,
    staleness: HistogramVec = TRAINER_STALENESS_STEPS,
    staleness_newest: GaugeVec = TRAINER_STALENESS_NEWEST_STEPS,
    train_seconds: HistogramVec = TRAINER_TRAIN_SECONDS,
    export_seconds: HistogramVec = TRAINER_EXPORT_SECONDS,
    mean_reward: GaugeVec = TRAINER_REWARD,
    mixed: GaugeVec = TRAINER_MIXED_GROUPS_RATIO,
    kl: GaugeVec = TRAINER_KL_NATS,
    entropy: GaugeVec = TRAINER_ENTROPY_NATS,
    learning_rate: GaugeVec = TRAINER_LEARNING_RATE,
    kl_alarms: IntCounterVec = TRAINER_KL_ALARMS,
    clipped: IntCounterVec = TRAINER_CLIPPED_STEPS,
    masked: IntCounterVec = TRAINER_MASKED_TOKENS,
    unchanged: IntCounterVec = TRAINER_UNCHANGED_STEPS,
}

instruments! {
    /// Counters of each request to the service, failed tries included.
    ServiceMeters {
        /// Why the run stopped waiting for the service, if it did.
        away: watch::Sender<Option<String>> = watch::Sender::new(None),
        /// The sample requests that wait for their responses.
        pub waits: SampleWaits = SampleWaits::default(),
    }
    seconds: HistogramVec = SERVICE_REQUEST_SECONDS,
    failures: IntCounterVec = SERVICE_FAILURES,
    in_flight: GaugeVec = SERVICE_REQUESTS_IN_FLIGHT,
    empty: IntCounterVec = SERVICE_EMPTY_SAMPLES,
}

/// Labels of a metric that has none.
const ALONE: &[&str] = &[];

impl PipelineMeters {
    /// All collectors, to be registered.
    #[must_use]
    pub fn collectors(&self) -> Vec<Box<dyn Collector>> {
        self.instruments().into_iter().chain(self.service.instruments()).collect()
    }

    /// Starts the counters of these environments at 0.
    pub(crate) fn begin<'a>(&self, environments: impl IntoIterator<Item = &'a str>) {
        for environment in environments {
            for outcome in [SAMPLED, FAILED] {
                self.rollouts.with_label_values(&[environment, outcome]);
            }
            self.scored.with_label_values(&[environment]);
            for cause in RewardError::NAMES {
                self.reward_errors.with_label_values(&[environment, cause]);
            }
        }
        for kind in ["prompt", "sampled"] {
            self.tokens.with_label_values(&[kind]);
        }
        for operation in ServiceOperation::ALL {
            for kind in KINDS {
                self.service.failures.with_label_values(&[operation.name(), kind]);
            }
        }
    }

    /// Tokens of the completions of all rollouts.
    #[must_use]
    pub fn sampled_tokens(&self) -> u64 {
        self.tokens.with_label_values(&["sampled"]).get()
    }

    /// Sampled tokens that were trained.
    #[must_use]
    pub fn trained_tokens(&self) -> u64 {
        self.trained_tokens.with_label_values(ALONE).get()
    }

    /// Records that a rollout has ended.
    pub fn rollout(&self, environment: &str, sampled: Option<&Rollout>, took: Duration) {
        let word = if sampled.is_some() { SAMPLED } else { FAILED };
        self.rollouts.with_label_values(&[environment, word]).inc();
        self.rollout_seconds.with_label_values(&[environment]).observe(took.as_secs_f64());
        if let Some(rollout) = sampled {
            self.tokens.with_label_values(&["prompt"]).inc_by(rollout.prompt_tokens() as u64);
            self.tokens.with_label_values(&["sampled"]).inc_by(rollout.sampled_tokens() as u64);
        }
    }

    /// Records that a rollout has its reward.
    pub fn scored(&self, environment: &str, reward: f64, took: Duration) {
        self.scored.with_label_values(&[environment]).inc();
        self.reward.with_label_values(&[environment]).observe(reward);
        self.score_seconds.with_label_values(&[environment]).observe(took.as_secs_f64());
    }

    /// Records that a rollout has no reward, and that its `sampled` tokens are lost.
    pub(crate) fn missing(&self, environment: &str, cause: &RewardError, sampled: usize) {
        self.reward_errors.with_label_values(&[environment, cause.name()]).inc();
        self.lost_tokens.with_label_values(ALONE).inc_by(sampled as u64);
        self.quarantined.with_label_values(ALONE).inc_by(u64::from(cause.needs_quarantine()));
    }

    /// Records a committed step.
    pub(crate) fn step(&self, record: &StepRecord, groups: &[TrainingGroup]) {
        self.train_seconds.with_label_values(ALONE).observe(record.time_train.unwrap_or(0.0));
        if let Some(took) = record.time_export {
            self.export_seconds.with_label_values(ALONE).observe(took);
        }
        let staleness = self.staleness.with_label_values(ALONE);
        groups.iter().for_each(|group| staleness.observe(record.step as f64 - 1.0 - group.oldest.0 as f64));
        let trained = groups.iter().filter(|group| !group.filtered).flat_map(|group| group.members.iter());
        let tokens = trained.map(|TrainingRollout { rollout, .. }| rollout.sampled_tokens() as u64).sum();
        self.trained_tokens.with_label_values(ALONE).inc_by(tokens);
        for (name, environment) in &record.environments {
            set(&self.mean_reward, name, environment.reward);
            set(&self.mixed, name, environment.mixed_share);
        }
        set(&self.kl, "v1", record.kl_v1);
        set(&self.kl, "v2", record.kl_v2);
        if let Some(newest) = record.staleness_newest {
            self.staleness_newest.with_label_values(ALONE).set(newest);
            // The gauge is there from the first step on, so that no alarm falls back on `v2`.
            self.kl.with_label_values(&["one_version"]);
            set(&self.kl, "one_version", record.kl_one_version);
        }
        self.entropy.with_label_values(ALONE).set(record.entropy.unwrap_or(0.0));
        self.learning_rate.with_label_values(ALONE).set(record.learning_rate.unwrap_or(0.0));
        self.kl_alarms.with_label_values(ALONE).inc_by(u64::from(record.kl_alarm == Some(1.0)));
        self.clipped.with_label_values(ALONE).inc_by(record.clipped.unwrap_or(0.0) as u64);
        self.masked.with_label_values(ALONE).inc_by(record.tokens_masked.unwrap_or(0.0) as u64);
        self.unchanged.with_label_values(ALONE).inc_by(u64::from(record.stepped == Some(0.0)));
    }
}

/// Sets a gauge, if the step has the number.
fn set(gauges: &GaugeVec, label: &str, value: Option<f64>) {
    if let Some(value) = value {
        gauges.with_label_values(&[label]).set(value);
    }
}

/// Declares the kinds of requests, each with the name of its method in core's traits.
macro_rules! operations {
    ($( $operation:ident: $name:literal, )+) => {
        /// Kinds of requests to a service.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum ServiceOperation { $( $operation ),+ }

        impl ServiceOperation {
            const ALL: &[Self] = &[$( Self::$operation ),+];

            /// Name of the method in core's traits.
            pub(crate) fn name(self) -> &'static str {
                match self { $( Self::$operation => $name ),+ }
            }
        }
    };
}

operations! {
    Sample: "sample",
    Logprobs: "logprobs",
    Forward: "forward",
    ForwardBackward: "forward_backward",
    OptimStep: "optim_step",
    SaveState: "save_state",
    LoadState: "load_state",
    ExportSampler: "export_sampler",
    PublishInFlight: "publish_in_flight",
    Release: "release",
    CreateTraining: "create_training",
    BaseSampler: "base_sampler",
    SamplerFrom: "sampler_from",
    Delete: "delete",
    Expire: "expire",
}

/// All values of [`kind`].
const KINDS: [&str; 7] = ["rejected", "unsupported", "unavailable", "timed_out", "away", "lost", "denied"];

/// The kind of a failure, as a label value.
fn kind(error: &BackendError) -> &'static str {
    match error {
        BackendError::Rejected(_) => "rejected",
        BackendError::Unsupported(_) => "unsupported",
        BackendError::Unavailable(_) => "unavailable",
        BackendError::TimedOut(_) => "timed_out",
        BackendError::Away(_) => "away",
        BackendError::Lost(_) => "lost",
        BackendError::Denied { .. } => "denied",
    }
}

impl ServiceMeters {
    /// Turns to the cause when the service has been away for the longest that a request waits for it. All other
    /// requests wait for the same service.
    pub(crate) fn away(&self) -> watch::Receiver<Option<String>> {
        self.away.subscribe()
    }

    /// Records a request; it ends when the guard records its result or is dropped.
    pub(crate) fn enter(&self, operation: ServiceOperation) -> InFlightRequest {
        self.in_flight.with_label_values(&[operation.name()]).inc();
        let wait = (operation == ServiceOperation::Sample).then(|| self.waits.enter());
        InFlightRequest { meters: self.clone(), operation, wait }
    }

    /// Records the samples of a response that have no tokens.
    pub(crate) fn sampled(&self, response: &SampleResponse) {
        let empty = response.sequences.iter().filter(|sampled| sampled.tokens.is_empty());
        self.empty.with_label_values(ALONE).inc_by(empty.count() as u64);
    }
}

/// A request that waits for its response.
pub(crate) struct InFlightRequest {
    meters: ServiceMeters,
    operation: ServiceOperation,
    wait: Option<SampleWait>,
}

impl InFlightRequest {
    /// Records how the request ended, and after how long.
    pub(crate) fn ended<T>(&self, result: &Result<T, BackendError>, took: Duration) {
        let operation = self.operation.name();
        self.meters.seconds.with_label_values(&[operation]).observe(took.as_secs_f64());
        if let (Some(wait), Ok(_)) = (&self.wait, result) {
            wait.answered(took);
        }
        if let Err(BackendError::Away(why)) = result {
            self.meters.away.send_if_modified(|away| {
                let first = away.is_none();
                away.get_or_insert_with(|| why.clone());
                first
            });
        }
        if let Err(error) = result {
            self.meters.failures.with_label_values(&[operation, kind(error)]).inc();
        }
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.meters.in_flight.with_label_values(&[self.operation.name()]).dec();
    }
}
