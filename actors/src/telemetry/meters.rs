//! What the pipeline counts while it runs, for Prometheus.
//!
//! Only events that leave no trace are counted here; what can be read from the pipeline at any moment is read from
//! its [`Observer`](crate::pipeline::Observer). Names and help texts stand in this file alone. Labels are bounded: the
//! config's environments, and fixed values of the program. Counters start at 0 for each of them, so that `rate`
//! sees the first event, too.

use crate::messages::{TrainingGroup, TrainingRollout};
use crate::telemetry::names;
use minds_core::reward::{Metrics, RewardError};
use minds_core::rollout::Rollout;
use minds_core::sampling::SampleResponse;
use minds_core::service::BackendError;
use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts,
    exponential_buckets,
};
use std::time::Duration;
use tokio::sync::watch;

/// Outcomes of a rollout, as label values.
const SAMPLED: &str = "sampled";
const FAILED: &str = "failed";

/// The counters, gauges and histograms of a pipeline. Cheap to clone; all clones share them.
#[derive(Clone)]
pub struct PipelineMeters {
    rollouts: IntCounterVec,
    tokens: IntCounterVec,
    rollout_seconds: HistogramVec,
    scored: IntCounterVec,
    missing: IntCounterVec,
    lost_tokens: IntCounter,
    reward: HistogramVec,
    score_seconds: HistogramVec,
    quarantined: IntCounter,
    trained_tokens: IntCounter,
    staleness: Histogram,
    train_seconds: Histogram,
    export_seconds: Histogram,
    mean_reward: GaugeVec,
    mixed: GaugeVec,
    kl: GaugeVec,
    entropy: Gauge,
    learning_rate: Gauge,
    kl_alarms: IntCounter,
    clipped: IntCounter,
    masked: IntCounter,
    unchanged: IntCounter,
    /// Counters of requests to the service.
    pub service: ServiceMeters,
}

/// Counters of each request to the service, failed tries included.
#[derive(Clone)]
pub struct ServiceMeters {
    /// Why the run stopped waiting for the service, if it did.
    away: watch::Sender<Option<String>>,
    seconds: HistogramVec,
    failures: IntCounterVec,
    in_flight: IntGaugeVec,
    empty: IntCounter,
}

impl Default for PipelineMeters {
    fn default() -> Self {
        let seconds = seconds();
        Self {
            rollouts: counters(
                "minds_sampler_rollouts_total",
                "Finished rollouts: `sampled`, or `failed` after all retries.",
                &["environment", "outcome"],
            ),
            tokens: counters(
                "minds_sampler_tokens_total",
                "Tokens of sampled rollouts: `prompt` of their last prompts, `sampled` of their completions.",
                &["kind"],
            ),
            rollout_seconds: histograms(
                "minds_sampler_rollout_seconds",
                "Time from a group's dispatch to the end of each of its rollouts.",
                &["environment"],
                &seconds,
            ),
            scored: counters("minds_scorer_scored_total", "Rollouts with a reward.", &["environment"]),
            missing: counters(
                "minds_scorer_reward_errors_total",
                "Rollouts without a reward, by the cause of the last attempt.",
                &["environment", "cause"],
            ),
            lost_tokens: counter(
                "minds_scorer_tokens_discarded_total",
                "Sampled tokens of rollouts without a reward.",
            ),
            reward: histograms(
                "minds_scorer_reward",
                "Rewards.",
                &["environment"],
                &[-2.0, -1.0, -0.5, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 5.0],
            ),
            score_seconds: histograms(
                "minds_scorer_score_seconds",
                "Time of a reward, including retries and waits.",
                &["environment"],
                &seconds,
            ),
            quarantined: counter(
                "minds_scorer_quarantined_total",
                "Rollouts written to quarantine.jsonl: their reward failed after all retries, and not because of the run's own limits.",
            ),
            trained_tokens: counter("minds_trainer_tokens_total", "Sampled tokens that were trained."),
            staleness: histogram(
                "minds_trainer_staleness_steps",
                "Steps between the weights that sampled a group and those that it trained.",
                &[0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0],
            ),
            train_seconds: histogram(
                "minds_trainer_train_seconds",
                "Time of a step's passes and its optimizer step, from submission to result.",
                &seconds,
            ),
            export_seconds: histogram(
                "minds_trainer_export_seconds",
                "Wait after a step until its weights can be sampled.",
                &seconds,
            ),
            mean_reward: gauges(
                "minds_trainer_reward",
                "Mean reward of the last step's rollouts.",
                &["environment"],
            ),
            mixed: gauges(
                "minds_trainer_mixed_groups_ratio",
                "Share of the last step's groups whose rewards differ: the others have no gradient.",
                &["environment"],
            ),
            kl: gauges(
                "minds_trainer_kl_nats",
                "Gap between the weights that sampled and those in training before the last step, per token: \
                 `v1` is the mean of q - p, `v2` half the mean of its square (logprobs q when sampled, p now).",
                &["estimator"],
            ),
            entropy: gauge("minds_trainer_entropy_nats", "Mean of -logprob over the last step's tokens."),
            learning_rate: gauge("minds_trainer_learning_rate", "Learning rate of the last optimizer step."),
            kl_alarms: counter(
                "minds_trainer_kl_alarms_total",
                "Steps whose gap was above `trainer.kl_alarm`.",
            ),
            clipped: counter(
                "minds_trainer_clipped_steps_total",
                "Optimizer steps whose gradient was clipped at the running limit.",
            ),
            masked: counter(
                "minds_trainer_masked_tokens_total",
                "Sampled tokens left out of the loss because their logprob is implausible.",
            ),
            unchanged: counter(
                "minds_trainer_unchanged_steps_total",
                "Steps that left the weights unchanged because all rewards were equal within their groups.",
            ),
            service: ServiceMeters {
                away: watch::Sender::new(None),
                seconds: histograms(
                    "minds_service_request_seconds",
                    "Time from a request's submission, or from the first wait for its answer, to its end.",
                    &["operation"],
                    &seconds,
                ),
                failures: counters(
                    "minds_service_failures_total",
                    "Failed requests by kind: `unavailable` ones are retried.",
                    &["operation", "kind"],
                ),
                in_flight: IntGaugeVec::new(
                    Opts::new("minds_service_requests_in_flight", "Requests without an answer yet."),
                    &["operation"],
                )
                .expect("the name is a name"),
                empty: counter("minds_service_empty_samples_total", "Samples without tokens."),
            },
        }
    }
}

impl PipelineMeters {
    /// All collectors, to be registered.
    #[must_use]
    pub fn collectors(&self) -> Vec<Box<dyn Collector>> {
        let Self {
            rollouts,
            tokens,
            rollout_seconds,
            scored,
            missing,
            lost_tokens,
            reward,
            score_seconds,
            quarantined,
            trained_tokens,
            staleness,
            train_seconds,
            export_seconds,
            mean_reward,
            mixed,
            kl,
            entropy,
            learning_rate,
            kl_alarms,
            clipped,
            masked,
            unchanged,
            service: ServiceMeters { seconds, failures, in_flight, empty, away: _ },
        } = self.clone();
        vec![
            Box::new(rollouts),
            Box::new(tokens),
            Box::new(rollout_seconds),
            Box::new(scored),
            Box::new(missing),
            Box::new(lost_tokens),
            Box::new(reward),
            Box::new(score_seconds),
            Box::new(quarantined),
            Box::new(trained_tokens),
            Box::new(staleness),
            Box::new(train_seconds),
            Box::new(export_seconds),
            Box::new(mean_reward),
            Box::new(mixed),
            Box::new(kl),
            Box::new(entropy),
            Box::new(learning_rate),
            Box::new(kl_alarms),
            Box::new(clipped),
            Box::new(masked),
            Box::new(unchanged),
            Box::new(seconds),
            Box::new(failures),
            Box::new(in_flight),
            Box::new(empty),
        ]
    }

    /// Starts the counters of these environments at 0.
    pub(crate) fn begin<'a>(&self, environments: impl IntoIterator<Item = &'a str>) {
        for environment in environments {
            for outcome in [SAMPLED, FAILED] {
                self.rollouts.with_label_values(&[environment, outcome]);
            }
            self.scored.with_label_values(&[environment]);
            for cause in RewardError::NAMES {
                self.missing.with_label_values(&[environment, cause]);
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
        self.trained_tokens.get()
    }

    /// Records that a rollout has ended.
    pub fn rollout<E>(&self, environment: &str, outcome: &Result<Rollout, E>, took: Duration) {
        let word = if outcome.is_ok() { SAMPLED } else { FAILED };
        self.rollouts.with_label_values(&[environment, word]).inc();
        self.rollout_seconds.with_label_values(&[environment]).observe(took.as_secs_f64());
        if let Ok(rollout) = outcome {
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
        self.missing.with_label_values(&[environment, cause.name()]).inc();
        self.lost_tokens.inc_by(sampled as u64);
        self.quarantined.inc_by(u64::from(cause.needs_quarantine()));
    }

    /// Records a committed step.
    pub(crate) fn step(&self, metrics: &Metrics, groups: &[TrainingGroup], train: Duration) {
        let get = |key: &str| metrics.get(key).copied();
        self.train_seconds.observe(train.as_secs_f64());
        let step = get(names::STEP).unwrap_or(0.0);
        for group in groups {
            self.staleness.observe(step - 1.0 - group.oldest.0 as f64);
        }
        let trained = groups.iter().filter(|group| !group.filtered).flat_map(|group| group.members.iter());
        self.trained_tokens
            .inc_by(trained.map(|TrainingRollout { rollout, .. }| rollout.sampled_tokens() as u64).sum());
        for (key, value) in metrics {
            let environment = key.strip_prefix("env/").and_then(|rest| rest.split_once('/'));
            match environment {
                Some((environment, names::REWARD)) => {
                    self.mean_reward.with_label_values(&[environment]).set(*value);
                }
                Some((environment, names::MIXED)) => {
                    self.mixed.with_label_values(&[environment]).set(*value);
                }
                _ => {}
            }
        }
        for (estimator, key) in [("v1", names::KL_V1), ("v2", names::KL_V2)] {
            if let Some(kl) = get(key) {
                self.kl.with_label_values(&[estimator]).set(kl);
            }
        }
        self.entropy.set(get(names::ENTROPY).unwrap_or(0.0));
        self.learning_rate.set(get(names::LEARNING_RATE).unwrap_or(0.0));
        self.kl_alarms.inc_by(u64::from(get(names::KL_ALARM) == Some(1.0)));
        self.clipped.inc_by(get(names::GRADIENT_CLIPPED).unwrap_or(0.0) as u64);
        self.masked.inc_by(get(names::TOKENS_MASKED).unwrap_or(0.0) as u64);
        self.unchanged.inc_by(u64::from(get(names::STEPPED) == Some(0.0)));
    }

    /// Records that new weights are ready.
    pub(crate) fn exported(&self, took: Duration) {
        self.export_seconds.observe(took.as_secs_f64());
    }
}

/// Kinds of requests to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceOperation {
    Sample,
    Logprobs,
    Forward,
    ForwardBackward,
    OptimStep,
    SaveState,
    LoadState,
    ExportSampler,
    Release,
    CreateTraining,
    BaseSampler,
    SamplerFrom,
    Delete,
    Expire,
}

impl ServiceOperation {
    const ALL: [Self; 14] = [
        Self::Sample,
        Self::Logprobs,
        Self::Forward,
        Self::ForwardBackward,
        Self::OptimStep,
        Self::SaveState,
        Self::LoadState,
        Self::ExportSampler,
        Self::Release,
        Self::CreateTraining,
        Self::BaseSampler,
        Self::SamplerFrom,
        Self::Delete,
        Self::Expire,
    ];

    /// Name of the method in core's traits.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sample => "sample",
            Self::Logprobs => "logprobs",
            Self::Forward => "forward",
            Self::ForwardBackward => "forward_backward",
            Self::OptimStep => "optim_step",
            Self::SaveState => "save_state",
            Self::LoadState => "load_state",
            Self::ExportSampler => "export_sampler",
            Self::Release => "release",
            Self::CreateTraining => "create_training",
            Self::BaseSampler => "base_sampler",
            Self::SamplerFrom => "sampler_from",
            Self::Delete => "delete",
            Self::Expire => "expire",
        }
    }
}

/// All values of [`kind`].
const KINDS: [&str; 6] = ["rejected", "unsupported", "unavailable", "timed_out", "away", "lost"];

/// The kind of a failure, as a label value.
fn kind(error: &BackendError) -> &'static str {
    match error {
        BackendError::Rejected(_) => "rejected",
        BackendError::Unsupported(_) => "unsupported",
        BackendError::Unavailable(_) => "unavailable",
        BackendError::TimedOut(_) => "timed_out",
        BackendError::Away(_) => "away",
        BackendError::Lost(_) => "lost",
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
        InFlightRequest { meters: self.clone(), operation }
    }

    /// Records the samples of a response that have no tokens.
    pub(crate) fn sampled(&self, response: &SampleResponse) {
        let empty = response.sequences.iter().filter(|sampled| sampled.tokens.is_empty());
        self.empty.inc_by(empty.count() as u64);
    }
}

/// A request that waits for its response.
pub(crate) struct InFlightRequest {
    meters: ServiceMeters,
    operation: ServiceOperation,
}

impl InFlightRequest {
    /// Records how the request ended, and after how long.
    pub(crate) fn ended<T>(&self, result: &Result<T, BackendError>, took: Duration) {
        let operation = self.operation.name();
        self.meters.seconds.with_label_values(&[operation]).observe(took.as_secs_f64());
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

/// From 5 ms to 22 min, each twice the one before.
fn seconds() -> Vec<f64> {
    exponential_buckets(0.005, 2.0, 19).expect("the numbers are positive and grow")
}

const NAMES: &str = "names, labels and buckets of this file are right: a test makes them all";

fn counter(name: &str, help: &str) -> IntCounter {
    IntCounter::new(name, help).expect(NAMES)
}

fn counters(name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    IntCounterVec::new(Opts::new(name, help), labels).expect(NAMES)
}

fn gauge(name: &str, help: &str) -> Gauge {
    Gauge::new(name, help).expect(NAMES)
}

fn gauges(name: &str, help: &str, labels: &[&str]) -> GaugeVec {
    GaugeVec::new(Opts::new(name, help), labels).expect(NAMES)
}

fn histogram(name: &str, help: &str, buckets: &[f64]) -> Histogram {
    Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())).expect(NAMES)
}

fn histograms(name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> HistogramVec {
    HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels).expect(NAMES)
}
