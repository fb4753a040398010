//! All Prometheus metrics: counters of the stages and of the service's client, and values read from the run at each
//! scrape.
//!
//! Values read here cost the run nothing between two scrapes. Their names and help texts are in
//! [`minds_core::telemetry`].

use super::view::RunView;
use minds_core::record::EvaluatedEnvironment;
use minds_core::telemetry::{self, MetricKind, MetricSpec};
use minds_stages::ledger::DiscardedTokens;
use minds_stages::remote::{Dispatcher, JobCounts, SeenWorker};
use prometheus::core::{Collector, Desc};
use prometheus::process_collector::ProcessCollector;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Error, Registry};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Registry of the metrics of a run, of the process, and of these collectors.
///
/// # Errors
/// Two metrics have the same name.
pub(super) fn registry(view: Arc<RunView>, collectors: Vec<Box<dyn Collector>>) -> Result<Registry, Error> {
    let registry = Registry::new();
    for collector in view.pipeline.meters.collectors().into_iter().chain(collectors) {
        registry.register(collector)?;
    }
    registry.register(Box::new(RunCollector::new(view)?))?;
    registry.register(Box::new(ProcessCollector::for_self()))?;
    Ok(registry)
}

/// A value for each set of labels.
type LabeledValues = Vec<(Vec<String>, f64)>;

/// A metric and the function that reads it at each scrape.
type RunMetric = (MetricSpec, fn(&RunView) -> LabeledValues);

fn one(value: f64) -> LabeledValues {
    vec![(vec![], value)]
}

fn each<const N: usize>(values: [(&str, f64); N]) -> LabeledValues {
    values.into_iter().map(|(label, value)| (vec![label.to_owned()], value)).collect()
}

fn mailboxes(view: &RunView, value: impl Fn(&minds_stages::mailbox::MailboxStats) -> f64) -> LabeledValues {
    view.pipeline.mailboxes().iter().map(|mailbox| (vec![mailbox.name.to_owned()], value(mailbox))).collect()
}

fn stages(view: &RunView, value: impl Fn(&minds_stages::telemetry::StageSnapshot) -> u64) -> LabeledValues {
    let stages = view.pipeline.board.read();
    stages.iter().map(|(name, stage)| (vec![(*name).to_owned()], value(stage) as f64)).collect()
}

/// A number of the last evaluation, for each environment that was evaluated.
fn measured(view: &RunView, number: fn(&EvaluatedEnvironment) -> Option<f64>) -> LabeledValues {
    let history = view.history();
    let Some(last) = history.evaluations.all().last() else { return Vec::new() };
    let environments = view.run_info.environments.iter();
    let found = environments.filter_map(|share| {
        let value = number(last.environments.get(&share.name)?).filter(|value| value.is_finite())?;
        Some((vec![share.name.clone()], value))
    });
    found.collect()
}

/// Number of rollouts that are sampled and not yet scored.
fn backlog(view: &RunView) -> f64 {
    let [sampled, scored] = ["sampler", "scorer"].map(|name| view.pipeline.board.stage(name));
    (sampled.done + sampled.failed).saturating_sub(scored.done + scored.failed) as f64
}

/// A number of the run's jobs; none without a broker.
fn jobs(view: &RunView, number: fn(JobCounts) -> u64) -> LabeledValues {
    view.workers.iter().map(|workers| (vec![], number(workers.counts()) as f64)).collect()
}

/// A number of each worker.
fn each_worker(view: &RunView, number: fn(&SeenWorker) -> f64) -> LabeledValues {
    let workers = view.workers.iter().flat_map(Dispatcher::workers);
    workers.map(|worker| (vec![worker.report.worker.clone()], number(&worker))).collect()
}

/// How many workers serve each environment.
fn serving(view: &RunView) -> LabeledValues {
    let Some(dispatcher) = &view.workers else { return Vec::new() };
    let workers = dispatcher.workers();
    let serve = |name: &String| workers.iter().filter(|worker| worker.report.serves.contains(name)).count();
    dispatcher.environments().map(|name| (vec![name.clone()], serve(name) as f64)).collect()
}

/// Metrics read at each scrape.
const RUN_METRICS: &[RunMetric] = &[
    (telemetry::BUILD_INFO, |view| {
        vec![(vec![view.run_info.version.into(), view.run_info.commit.unwrap_or("unknown").into()], 1.0)]
    }),
    (telemetry::RUN_INFO, |view| {
        let run_info = &view.run_info;
        let loss = run_info.loss.to_owned();
        vec![(vec![run_info.name.clone(), run_info.base_model.clone(), run_info.service.clone(), loss], 1.0)]
    }),
    (telemetry::RUN_START_TIMESTAMP_SECONDS, |view| one(view.run_info.started)),
    (telemetry::RUN_STEP, |view| one(view.history().step as f64)),
    (telemetry::RUN_STEP_TIMESTAMP_SECONDS, |view| one(view.history().step_at)),
    (telemetry::RUN_STEPS, |view| one(view.run_info.steps as f64)),
    (telemetry::RUN_MAX_STALENESS_STEPS, |view| one(view.run_info.max_staleness as f64)),
    (telemetry::RUN_CHECKPOINT_STEP, |view| {
        one(view.history().checkpoint.map_or(view.run_info.first_step, |(step, _)| step) as f64)
    }),
    (telemetry::RUN_CHECKPOINT_TIMESTAMP_SECONDS, |view| {
        one(view.history().checkpoint.map_or(view.run_info.started, |(_, at)| at))
    }),
    (telemetry::EVAL_STEP, |view| {
        let history = view.history();
        history.evaluations.all().last().map(|last| one(last.step as f64)).unwrap_or_default()
    }),
    (telemetry::EVAL_REWARD, |view| measured(view, |found| found.reward)),
    (telemetry::EVAL_REWARD_LOW, |view| measured(view, |found| found.reward_low)),
    (telemetry::EVAL_REWARD_HIGH, |view| measured(view, |found| found.reward_high)),
    (telemetry::PIPELINE_CREDITS, |view| {
        let used = view.pipeline.ledger.counts().in_flight();
        each([("used", used as f64), ("free", view.pipeline.credits.saturating_sub(used) as f64)])
    }),
    (telemetry::PIPELINE_GROUPS_OPENED, |view| one(view.pipeline.ledger.counts().opened as f64)),
    (telemetry::PIPELINE_GROUPS_SETTLED, |view| {
        let counts = view.pipeline.ledger.counts();
        each([
            ("trained", counts.trained as f64),
            ("filtered", counts.filtered as f64),
            ("dropped", counts.dropped as f64),
            ("failed", counts.failed as f64),
        ])
    }),
    (telemetry::PIPELINE_TOKENS_DISCARDED, |view| {
        let DiscardedTokens { filtered, dropped, failed } = view.pipeline.ledger.discarded();
        each([("filtered", filtered as f64), ("dropped", dropped as f64), ("failed", failed as f64)])
    }),
    (telemetry::PIPELINE_SECONDS, |view| one(view.pipeline.activity.shares().wall)),
    (telemetry::PIPELINE_BUSY_SECONDS, |view| {
        let shares = view.pipeline.activity.shares();
        each([
            ("sampling", shares.sampling),
            ("scoring", shares.scoring),
            ("training", shares.training),
            ("shadow", shares.shadow),
            ("any", shares.any),
        ])
    }),
    (telemetry::PIPELINE_OVERLAP_SECONDS, |view| one(view.pipeline.activity.shares().overlap)),
    (telemetry::MAILBOX_DEPTH, |view| mailboxes(view, |mailbox| mailbox.depth as f64)),
    (telemetry::MAILBOX_CAPACITY, |view| mailboxes(view, |mailbox| mailbox.capacity as f64)),
    (telemetry::MAILBOX_SENT, |view| mailboxes(view, |mailbox| mailbox.sent as f64)),
    (telemetry::MAILBOX_LOST, |view| mailboxes(view, |mailbox| mailbox.lost as f64)),
    (telemetry::MAILBOX_WAIT_SECONDS, |view| mailboxes(view, |mailbox| mailbox.waited_s)),
    (telemetry::STAGE_BUSY, |view| stages(view, |stage| stage.busy)),
    (telemetry::STAGE_DONE, |view| stages(view, |stage| stage.done)),
    (telemetry::STAGE_FAILED, |view| stages(view, |stage| stage.failed)),
    (telemetry::TRAINER_IDLE_SECONDS, |view| {
        let idle = view.pipeline.activity.shares().idle;
        each([
            ("sampling", idle.sampling),
            ("scoring", idle.scoring),
            ("sampling_and_scoring", idle.both),
            ("export", idle.exporting),
            ("nothing", idle.nothing),
        ])
    }),
    (telemetry::TRAINER_REFUSED_BATCHES, |view| one(view.pipeline.ledger.refused_batches() as f64)),
    (telemetry::SCORER_BACKLOG, |view| one(backlog(view))),
    (telemetry::SCORER_QUERIES, |view| {
        let asked = view.pipeline.queries.read();
        each([("service", asked.sent as f64), ("memory", asked.remembered as f64)])
    }),
    (telemetry::SCORER_QUERY_WAIT_SECONDS, |view| one(view.pipeline.queries.read().waited_s)),
    (telemetry::SHADOW_STEPS, |view| one(view.pipeline.queries.read().deltas.done as f64)),
    (telemetry::SHADOW_WAIT_SECONDS, |view| one(view.pipeline.queries.read().deltas.waited_s)),
    (telemetry::SHADOW_SERVICE_SECONDS, |view| one(view.pipeline.queries.read().deltas.worked_s)),
    (telemetry::PYTHON_PROCESS_ENDS, |view| {
        view.python_exits.iter().map(|(name, ends)| (vec![name.clone()], ends.load(Relaxed) as f64)).collect()
    }),
    (telemetry::WORKERS, serving),
    (telemetry::JOBS_QUEUED, |view| jobs(view, |jobs| jobs.queued)),
    (telemetry::JOBS_RUNNING, |view| jobs(view, |jobs| jobs.running)),
    (telemetry::JOBS_DONE, |view| jobs(view, |jobs| jobs.done)),
    (telemetry::JOBS_TAKEN_UP, |view| jobs(view, |jobs| jobs.taken_up)),
    (telemetry::JOB_REDELIVERIES, |view| jobs(view, |jobs| jobs.redelivered)),
    (telemetry::JOB_RESULTS_DROPPED, |view| {
        let Some(workers) = &view.workers else { return Vec::new() };
        let JobCounts { late, duplicate, foreign, .. } = workers.counts();
        each([("late", late as f64), ("duplicate", duplicate as f64), ("foreign", foreign as f64)])
    }),
    (telemetry::DEAD_LETTERS, |view| jobs(view, |jobs| jobs.dead)),
    (telemetry::WORKER_JOBS, |view| each_worker(view, |worker| worker.results as f64)),
    (telemetry::WORKER_JOB_SECONDS, |view| each_worker(view, |worker| worker.took.as_secs_f64())),
    (telemetry::WORKER_RUNNING, |view| each_worker(view, |worker| worker.report.running as f64)),
    (telemetry::WORKER_IDLE_RATIO, |view| each_worker(view, |worker| worker.report.idle)),
    (telemetry::BROKER_CONNECTED, |view| {
        let connected = view.workers.iter().map(|workers| workers.broker().state().is_connected());
        connected.map(|connected| (vec![], f64::from(u8::from(connected)))).collect()
    }),
    (telemetry::BROKER_RECONNECTS, |view| {
        let reconnects = view.workers.iter().map(|workers| workers.broker().state().reconnects());
        reconnects.map(|reconnects| (vec![], reconnects as f64)).collect()
    }),
];

/// Collects the metrics of [`RUN_METRICS`] from a run.
struct RunCollector {
    view: Arc<RunView>,
    descs: Vec<Desc>,
}

impl RunCollector {
    fn new(view: Arc<RunView>) -> Result<Self, Error> {
        let descs = RUN_METRICS.iter().map(|(spec, _)| {
            let labels = spec.labels.iter().map(|label| (*label).to_owned()).collect();
            Desc::new(spec.name.into(), spec.help.into(), labels, HashMap::new())
        });
        Ok(Self { view, descs: descs.collect::<Result<_, _>>()? })
    }
}

impl Collector for RunCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let families = RUN_METRICS.iter().map(|(spec, read)| {
            let is_counter = spec.kind == MetricKind::Counter;
            let values = read(&self.view).into_iter().map(|(labels, value)| {
                let pairs = spec.labels.iter().zip(labels).map(|(name, label)| {
                    let mut pair = LabelPair::default();
                    pair.set_name((*name).to_owned());
                    pair.set_value(label);
                    pair
                });
                let mut out = Metric::from_label(pairs.collect());
                if is_counter {
                    let mut counter = Counter::default();
                    counter.set_value(value);
                    out.set_counter(counter);
                } else {
                    let mut gauge = Gauge::default();
                    gauge.set_value(value);
                    out.set_gauge(gauge);
                }
                out
            });
            let mut family = MetricFamily::default();
            family.set_name(spec.name.into());
            family.set_help(spec.help.into());
            family.set_field_type(if is_counter { MetricType::COUNTER } else { MetricType::GAUGE });
            family.set_metric(values.collect());
            family
        });
        // A family without a value is left out: it may get one later.
        families.filter(|family| !family.get_metric().is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Name, labels and kind of all metrics that are counted or read.
    #[test]
    fn the_table_has_every_metric_and_nothing_else() {
        let stages = minds_stages::telemetry::meters::PipelineMeters::default();
        let client = minds_tinker::client::ClientMetrics::default();
        let collectors = || stages.collectors().into_iter().chain(client.collectors());
        let described = |desc: &Desc| (desc.fq_name.clone(), desc.help.clone(), desc.variable_labels.clone());
        let counted = collectors().flat_map(|all| all.desc().into_iter().map(described).collect::<Vec<_>>());
        let read = RUN_METRICS.iter().map(|(spec, _)| row(spec));
        let known: Vec<_> = read.chain(counted).collect();
        let table: BTreeSet<_> =
            telemetry::SECTIONS.iter().flat_map(|(_, specs)| specs.iter()).map(row).collect();
        assert_eq!(known.iter().cloned().collect::<BTreeSet<_>>(), table);
        assert_eq!(known.len(), table.len(), "two have one name");
        for family in collectors().flat_map(|all| all.collect()) {
            let is_counter = family.get_field_type() == MetricType::COUNTER;
            assert_eq!(is_counter, family.name().ends_with("_total"), "{}", family.name());
        }
        for spec in telemetry::SECTIONS.iter().flat_map(|(_, specs)| specs.iter()) {
            assert_eq!(spec.kind == MetricKind::Counter, spec.name.ends_with("_total"), "{}", spec.name);
        }
    }

    fn row(spec: &MetricSpec) -> (String, String, Vec<String>) {
        let labels = spec.labels.iter().map(|label| (*label).to_owned()).collect();
        (spec.name.to_owned(), spec.help.to_owned(), labels)
    }
}
