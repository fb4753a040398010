//! All Prometheus metrics: counters of the stages and the client, and values read from the run at each scrape.
//!
//! Values read here cost the run nothing between two scrapes. Their names and help texts are in [`RUN_METRICS`] alone;
//! `docs/metrics.md` explains all metrics.

use super::view::RunView;
use minds_stages::ledger::DiscardedTokens;
use minds_stages::telemetry::names;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Error, Registry};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Registry of the metrics of a run and of the process.
///
/// # Errors
/// Two metrics have the same name.
pub(super) fn registry(view: Arc<RunView>) -> Result<Registry, Error> {
    let registry = Registry::new();
    let read = RunCollector::new(view.clone())?;
    let counted = view.meters.collectors().into_iter().chain(view.client.collectors());
    for collector in counted.chain([Box::new(read) as Box<dyn Collector>]) {
        registry.register(collector)?;
    }
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    Ok(registry)
}

/// A value for each set of labels.
type LabeledValues = Vec<(Vec<String>, f64)>;

/// A metric that is read at each scrape.
struct RunMetric {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    read: fn(&RunView) -> LabeledValues,
}

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

/// One metric of the last evaluation, for each environment that was evaluated.
fn measured(view: &RunView, number: &str) -> LabeledValues {
    let history = view.history();
    let Some(last) = history.evaluations.all().last() else { return Vec::new() };
    let environments = view.run_info.environments.iter().map(|share| share.name.clone());
    let found = environments.filter_map(|name| {
        let value = *last.get(&format!("eval/{name}/{number}"))?;
        value.is_finite().then(|| (vec![name], value))
    });
    found.collect()
}

/// Number of rollouts that are sampled and not yet scored.
fn backlog(view: &RunView) -> f64 {
    let [sampled, scored] = ["sampler", "scorer"].map(|name| view.pipeline.board.stage(name));
    (sampled.done + sampled.failed).saturating_sub(scored.done + scored.failed) as f64
}

/// Metrics read at each scrape. A name that ends in `_total` is a counter, any other a gauge.
const RUN_METRICS: &[RunMetric] = &[
    RunMetric {
        name: "minds_build_info",
        help: "Always 1: the program's version and commit.",
        labels: &["version", "commit"],
        read: |view| {
            vec![(vec![view.run_info.version.into(), view.run_info.commit.unwrap_or("unknown").into()], 1.0)]
        },
    },
    RunMetric {
        name: "minds_run_info",
        help: "Always 1: run, base model, service and loss.",
        labels: &["run", "base_model", "service", "loss"],
        read: |view| {
            let run_info = &view.run_info;
            let loss = run_info.loss.to_owned();
            vec![(
                vec![run_info.name.clone(), run_info.base_model.clone(), run_info.service.clone(), loss],
                1.0,
            )]
        },
    },
    RunMetric {
        name: "minds_run_start_timestamp_seconds",
        help: "Start time of this process.",
        labels: &[],
        read: |view| one(view.run_info.started),
    },
    RunMetric {
        name: "minds_run_step",
        help: "Optimizer steps done.",
        labels: &[],
        read: |view| one(view.history().step as f64),
    },
    RunMetric {
        name: "minds_run_step_timestamp_seconds",
        help: "When the last optimizer step was done; before the first one, the start time of this process.",
        labels: &[],
        read: |view| one(view.history().step_at),
    },
    RunMetric {
        name: "minds_run_steps",
        help: "Optimizer steps in all.",
        labels: &[],
        read: |view| one(view.run_info.steps as f64),
    },
    RunMetric {
        name: "minds_run_max_staleness_steps",
        help: "Bound on the staleness of rollouts, in steps.",
        labels: &[],
        read: |view| one(view.run_info.max_staleness as f64),
    },
    RunMetric {
        name: "minds_run_checkpoint_step",
        help: "Steps done at the last checkpoint.",
        labels: &[],
        read: |view| one(view.history().checkpoint.map_or(view.run_info.first_step, |(step, _)| step) as f64),
    },
    RunMetric {
        name: "minds_run_checkpoint_timestamp_seconds",
        help: "When the last checkpoint was saved; before the first one, the start time of this process.",
        labels: &[],
        read: |view| one(view.history().checkpoint.map_or(view.run_info.started, |(_, at)| at)),
    },
    RunMetric {
        name: "minds_eval_step",
        help: "Optimizer steps of the weights of the last evaluation.",
        labels: &[],
        read: |view| {
            let step =
                view.history().evaluations.all().last().and_then(|last| last.get(names::STEP).copied());
            step.map(one).unwrap_or_default()
        },
    },
    RunMetric {
        name: "minds_eval_reward",
        help: "Mean reward of the last evaluation.",
        labels: &["environment"],
        read: |view| measured(view, names::EVAL_REWARD),
    },
    RunMetric {
        name: "minds_eval_reward_low",
        help: "Lower end of its 95 % interval.",
        labels: &["environment"],
        read: |view| measured(view, names::EVAL_REWARD_LOW),
    },
    RunMetric {
        name: "minds_eval_reward_high",
        help: "Upper end of its 95 % interval.",
        labels: &["environment"],
        read: |view| measured(view, names::EVAL_REWARD_HIGH),
    },
    RunMetric {
        name: "minds_pipeline_credits",
        help: "Credits, each the right to have a group in flight, by state: `used` or `free`.",
        labels: &["state"],
        read: |view| {
            let used = view.pipeline.ledger.counts().in_flight();
            each([("used", used as f64), ("free", view.pipeline.credits.saturating_sub(used) as f64)])
        },
    },
    RunMetric {
        name: "minds_pipeline_groups_opened_total",
        help: "Groups opened.",
        labels: &[],
        read: |view| one(view.pipeline.ledger.counts().opened as f64),
    },
    RunMetric {
        name: "minds_pipeline_groups_settled_total",
        help: "Finished groups by outcome.",
        labels: &["outcome"],
        read: |view| {
            let counts = view.pipeline.ledger.counts();
            each([
                ("trained", counts.trained as f64),
                ("filtered", counts.filtered as f64),
                ("dropped", counts.dropped as f64),
                ("failed", counts.failed as f64),
            ])
        },
    },
    RunMetric {
        name: "minds_pipeline_tokens_discarded_total",
        help: "Sampled tokens of rollouts that had a reward and were not trained, by the outcome of their group.",
        labels: &["outcome"],
        read: |view| {
            let DiscardedTokens { filtered, dropped, failed } = view.pipeline.ledger.discarded();
            each([("filtered", filtered as f64), ("dropped", dropped as f64), ("failed", failed as f64)])
        },
    },
    RunMetric {
        name: "minds_pipeline_seconds_total",
        help: "Run time of the pipeline.",
        labels: &[],
        read: |view| one(view.pipeline.activity.shares().wall),
    },
    RunMetric {
        name: "minds_pipeline_busy_seconds_total",
        help: "Time in which at least one piece of this work was in progress.",
        labels: &["work"],
        read: |view| {
            let shares = view.pipeline.activity.shares();
            each([
                ("sampling", shares.sampling),
                ("scoring", shares.scoring),
                ("training", shares.training),
                ("shadow", shares.shadow),
                ("any", shares.any),
            ])
        },
    },
    RunMetric {
        name: "minds_pipeline_overlap_seconds_total",
        help: "Time in which the trainer was busy during sampling or scoring.",
        labels: &[],
        read: |view| one(view.pipeline.activity.shares().overlap),
    },
    RunMetric {
        name: "minds_mailbox_depth",
        help: "Messages queued or being processed.",
        labels: &["mailbox"],
        read: |view| mailboxes(view, |mailbox| mailbox.depth as f64),
    },
    RunMetric {
        name: "minds_mailbox_capacity",
        help: "Capacity of the mailbox in messages.",
        labels: &["mailbox"],
        read: |view| mailboxes(view, |mailbox| mailbox.capacity as f64),
    },
    RunMetric {
        name: "minds_mailbox_sent_total",
        help: "Messages sent.",
        labels: &["mailbox"],
        read: |view| mailboxes(view, |mailbox| mailbox.sent as f64),
    },
    RunMetric {
        name: "minds_mailbox_lost_total",
        help: "Messages dropped unopened. Anything but 0 before a run's end is a fault.",
        labels: &["mailbox"],
        read: |view| mailboxes(view, |mailbox| mailbox.lost as f64),
    },
    RunMetric {
        name: "minds_mailbox_wait_seconds_total",
        help: "Time that senders waited for a permit, summed over senders.",
        labels: &["mailbox"],
        read: |view| mailboxes(view, |mailbox| mailbox.waited_s),
    },
    RunMetric {
        name: "minds_stage_busy",
        help: "Pieces of work in progress.",
        labels: &["stage"],
        read: |view| stages(view, |stage| stage.busy),
    },
    RunMetric {
        name: "minds_stage_done_total",
        help: "Pieces of work done.",
        labels: &["stage"],
        read: |view| stages(view, |stage| stage.done),
    },
    RunMetric {
        name: "minds_stage_failed_total",
        help: "Pieces of work that failed.",
        labels: &["stage"],
        read: |view| stages(view, |stage| stage.failed),
    },
    RunMetric {
        name: "minds_trainer_idle_seconds_total",
        help: "Time in which the trainer was idle, by what it was waiting for.",
        labels: &["reason"],
        read: |view| {
            let idle = view.pipeline.activity.shares().idle;
            each([
                ("sampling", idle.sampling),
                ("scoring", idle.scoring),
                ("sampling_and_scoring", idle.both),
                ("export", idle.exporting),
                ("nothing", idle.nothing),
            ])
        },
    },
    RunMetric {
        name: "minds_trainer_refused_batches_total",
        help: "Batches that the service refused: no optimizer step was made of them.",
        labels: &[],
        read: |view| one(view.pipeline.ledger.refused_batches() as f64),
    },
    RunMetric {
        name: "minds_scorer_backlog",
        help: "Rollouts sampled but not yet scored.",
        labels: &[],
        read: |view| one(backlog(view)),
    },
    RunMetric {
        name: "minds_scorer_queries_total",
        help: "Logprob queries of rewards, answered by the `service` or from the `memory` of an equal query.",
        labels: &["answer"],
        read: |view| {
            let asked = view.pipeline.queries.read();
            each([("service", asked.sent as f64), ("memory", asked.remembered as f64)])
        },
    },
    RunMetric {
        name: "minds_scorer_query_wait_seconds_total",
        help: "Time that logprob queries waited for a slot or for the next step, summed over queries.",
        labels: &[],
        read: |view| one(view.pipeline.queries.read().waited_s),
    },
    RunMetric {
        name: "minds_shadow_steps_total",
        help: "Gradient steps measured by shadow adapters.",
        labels: &[],
        read: |view| one(view.pipeline.queries.read().deltas.done as f64),
    },
    RunMetric {
        name: "minds_shadow_wait_seconds_total",
        help: "Time that these steps waited for an adapter.",
        labels: &[],
        read: |view| one(view.pipeline.queries.read().deltas.waited_s),
    },
    RunMetric {
        name: "minds_shadow_service_seconds_total",
        help: "Time that these took.",
        labels: &[],
        read: |view| one(view.pipeline.queries.read().deltas.worked_s),
    },
    RunMetric {
        name: "minds_python_process_ends_total",
        help: "Processes of a Python environment that ended unexpectedly or did not start, and were replaced.",
        labels: &["environment"],
        read: |view| {
            view.ends.iter().map(|(name, ends)| (vec![name.clone()], ends.load(Relaxed) as f64)).collect()
        },
    },
];

/// Collects the metrics of [`RUN_METRICS`] from a run.
struct RunCollector {
    view: Arc<RunView>,
    descs: Vec<Desc>,
}

impl RunCollector {
    fn new(view: Arc<RunView>) -> Result<Self, Error> {
        let descs = RUN_METRICS.iter().map(|metric| {
            let labels = metric.labels.iter().map(|label| (*label).to_owned()).collect();
            Desc::new(metric.name.into(), metric.help.into(), labels, HashMap::new())
        });
        Ok(Self { view, descs: descs.collect::<Result<_, _>>()? })
    }
}

impl Collector for RunCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let families = RUN_METRICS.iter().map(|metric| {
            let is_counter = metric.name.ends_with("_total");
            let values = (metric.read)(&self.view).into_iter().map(|(labels, value)| {
                let pairs = metric.labels.iter().zip(labels).map(|(name, label)| {
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
            family.set_name(metric.name.into());
            family.set_help(metric.help.into());
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

    /// The rows of the tables in `docs/metrics.md`: a name, its labels, its meaning, and what to do.
    #[test]
    fn every_metric_is_explained_and_nothing_else() {
        let stages = minds_stages::telemetry::meters::PipelineMeters::default();
        let client = minds_tinker::client::ClientMetrics::default();
        let counted = stages.collectors().into_iter().chain(client.collectors());
        let counted: Vec<String> = counted
            .flat_map(|c| c.desc().into_iter().map(|desc| desc.fq_name.clone()).collect::<Vec<_>>())
            .collect();
        let read = RUN_METRICS.iter().map(|metric| metric.name.to_owned());
        let known: BTreeSet<String> = read.chain(counted.iter().cloned()).collect();
        assert_eq!(known.len(), RUN_METRICS.len() + counted.len(), "two have one name");

        let docs = include_str!("../../docs/metrics.md");
        let rows = docs.lines().filter_map(|line| line.strip_prefix("| `minds_"));
        let rows = rows.filter_map(|row| row.strip_suffix('|'));
        let rows: Vec<Vec<&str>> = rows.map(|row| row.split('|').map(str::trim).collect()).collect();
        assert!(rows.iter().all(|row| row.len() == 4), "name, labels, meaning, when it is bad");
        let told: BTreeSet<String> =
            rows.iter().map(|row| format!("minds_{}", row[0].trim_end_matches('`'))).collect();
        assert_eq!(told.difference(&known).collect::<Vec<_>>(), Vec::<&String>::new(), "told, and not there");
        assert_eq!(known.difference(&told).collect::<Vec<_>>(), Vec::<&String>::new(), "there, and not told");
    }
}
