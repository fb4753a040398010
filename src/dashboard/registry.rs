//! All metrics: what stages and the client count, and what is read off the run when somebody asks.
//!
//! What is read here costs the run nothing between two scrapes. Names and help texts of these stand in [`READ`] alone;
//! `docs/metrics.md` explains all of them.

use super::hub::Hub;
use minds_stages::ledger::Tokens;
use minds_stages::names;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{Error, Registry};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A registry of a run's metrics, and of the process's.
///
/// # Errors
/// Two have one name.
pub(super) fn registry(hub: Arc<Hub>) -> Result<Registry, Error> {
    let registry = Registry::new();
    let read = Read::new(hub.clone())?;
    let counted = hub.meters.collectors().into_iter().chain(hub.client.collectors());
    for collector in counted.chain([Box::new(read) as Box<dyn Collector>]) {
        registry.register(collector)?;
    }
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    Ok(registry)
}

/// A value for each set of labels.
type Values = Vec<(Vec<String>, f64)>;

/// A metric that is read.
struct Metered {
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    read: fn(&Hub) -> Values,
}

fn one(value: f64) -> Values {
    vec![(vec![], value)]
}

fn each<const N: usize>(values: [(&str, f64); N]) -> Values {
    values.into_iter().map(|(label, value)| (vec![label.to_owned()], value)).collect()
}

fn lanes(hub: &Hub, value: impl Fn(&minds_stages::kit::LaneStats) -> f64) -> Values {
    hub.line.lanes().iter().map(|lane| (vec![lane.name.to_owned()], value(lane))).collect()
}

fn stages(hub: &Hub, value: impl Fn(&minds_stages::kit::StageSnapshot) -> u64) -> Values {
    let stages = hub.line.board.read();
    stages.iter().map(|(name, stage)| (vec![(*name).to_owned()], value(stage) as f64)).collect()
}

/// A number of the last evaluation, of each environment that was measured.
fn measured(hub: &Hub, number: &str) -> Values {
    let told = hub.told();
    let Some(last) = told.evaluations.all().last() else { return Vec::new() };
    let environments = hub.facts.environments.iter().map(|share| share.name.clone());
    let found = environments.filter_map(|name| {
        let value = *last.get(&format!("eval/{name}/{number}"))?;
        value.is_finite().then(|| (vec![name], value))
    });
    found.collect()
}

/// Rollouts that are played and not yet judged.
fn backlog(hub: &Hub) -> f64 {
    let [played, judged] = ["sampler", "scorer"].map(|name| hub.line.board.stage(name));
    (played.done + played.failed).saturating_sub(judged.done + judged.failed) as f64
}

/// What is read. A name that ends in `_total` is a counter, any other a gauge.
const READ: &[Metered] = &[
    Metered {
        name: "minds_build_info",
        help: "Always 1: the program's version and commit.",
        labels: &["version", "commit"],
        read: |hub| vec![(vec![hub.facts.version.into(), hub.facts.commit.unwrap_or("unknown").into()], 1.0)],
    },
    Metered {
        name: "minds_run_info",
        help: "Always 1: what is trained where.",
        labels: &["run", "base_model", "service", "loss"],
        read: |hub| {
            let facts = &hub.facts;
            let loss = facts.loss.to_owned();
            vec![(vec![facts.name.clone(), facts.base_model.clone(), facts.service.clone(), loss], 1.0)]
        },
    },
    Metered {
        name: "minds_run_start_timestamp_seconds",
        help: "When this life of the run began.",
        labels: &[],
        read: |hub| one(hub.facts.started),
    },
    Metered {
        name: "minds_run_step",
        help: "Optimizer steps done.",
        labels: &[],
        read: |hub| one(hub.told().step as f64),
    },
    Metered {
        name: "minds_run_step_timestamp_seconds",
        help: "When the last optimizer step was done; before the first one, when this life of the run began.",
        labels: &[],
        read: |hub| one(hub.told().stepped),
    },
    Metered {
        name: "minds_run_steps",
        help: "Optimizer steps in all.",
        labels: &[],
        read: |hub| one(hub.facts.steps as f64),
    },
    Metered {
        name: "minds_run_max_staleness_steps",
        help: "Most steps by which rollouts may lie behind the weights that they train.",
        labels: &[],
        read: |hub| one(hub.facts.max_staleness as f64),
    },
    Metered {
        name: "minds_run_checkpoint_step",
        help: "Steps done at the last saved state.",
        labels: &[],
        read: |hub| one(hub.told().checkpoint.map_or(hub.facts.first_step, |(step, _)| step) as f64),
    },
    Metered {
        name: "minds_run_checkpoint_timestamp_seconds",
        help: "When the last state was saved; before the first one, when this life of the run began.",
        labels: &[],
        read: |hub| one(hub.told().checkpoint.map_or(hub.facts.started, |(_, at)| at)),
    },
    Metered {
        name: "minds_eval_step",
        help: "Steps that the weights of the last evaluation had behind them.",
        labels: &[],
        read: |hub| {
            let step = hub.told().evaluations.all().last().and_then(|last| last.get(names::STEP).copied());
            step.map(one).unwrap_or_default()
        },
    },
    Metered {
        name: "minds_eval_reward",
        help: "Mean reward of the last evaluation.",
        labels: &["environment"],
        read: |hub| measured(hub, names::EVAL_REWARD),
    },
    Metered {
        name: "minds_eval_reward_low",
        help: "Lower end of its 95 % interval.",
        labels: &["environment"],
        read: |hub| measured(hub, names::EVAL_REWARD_LOW),
    },
    Metered {
        name: "minds_eval_reward_high",
        help: "Upper end of its 95 % interval.",
        labels: &["environment"],
        read: |hub| measured(hub, names::EVAL_REWARD_HIGH),
    },
    Metered {
        name: "minds_line_credits",
        help: "Rights to have a group under way, by state: `used` or `free`.",
        labels: &["state"],
        read: |hub| {
            let used = hub.line.ledger.counts().in_flight();
            each([("used", used as f64), ("free", hub.line.credits.saturating_sub(used) as f64)])
        },
    },
    Metered {
        name: "minds_line_groups_opened_total",
        help: "Groups opened.",
        labels: &[],
        read: |hub| one(hub.line.ledger.counts().opened as f64),
    },
    Metered {
        name: "minds_line_groups_settled_total",
        help: "Groups that have left the line, by their verdict.",
        labels: &["verdict"],
        read: |hub| {
            let counts = hub.line.ledger.counts();
            each([
                ("trained", counts.trained as f64),
                ("filtered", counts.filtered as f64),
                ("dropped", counts.dropped as f64),
                ("failed", counts.failed as f64),
            ])
        },
    },
    Metered {
        name: "minds_line_tokens_discarded_total",
        help: "Sampled tokens of rollouts that had their reward and were not trained, by the verdict on their group.",
        labels: &["verdict"],
        read: |hub| {
            let Tokens { filtered, dropped, failed } = hub.line.ledger.discarded();
            each([("filtered", filtered as f64), ("dropped", dropped as f64), ("failed", failed as f64)])
        },
    },
    Metered {
        name: "minds_line_seconds_total",
        help: "Time that the line has been at work.",
        labels: &[],
        read: |hub| one(hub.line.activity.shares().wall),
    },
    Metered {
        name: "minds_line_busy_seconds_total",
        help: "Time in which at least one piece of this work was under way.",
        labels: &["work"],
        read: |hub| {
            let shares = hub.line.activity.shares();
            each([
                ("sampling", shares.sampling),
                ("scoring", shares.scoring),
                ("training", shares.training),
                ("shadow", shares.shadow),
                ("any", shares.any),
            ])
        },
    },
    Metered {
        name: "minds_line_overlap_seconds_total",
        help: "Time in which the trainer was busy while sampling or scoring went on.",
        labels: &[],
        read: |hub| one(hub.line.activity.shares().overlap),
    },
    Metered {
        name: "minds_lane_depth",
        help: "Parcels queued or in work.",
        labels: &["lane"],
        read: |hub| lanes(hub, |lane| lane.depth as f64),
    },
    Metered {
        name: "minds_lane_capacity",
        help: "Most parcels that a lane holds.",
        labels: &["lane"],
        read: |hub| lanes(hub, |lane| lane.capacity as f64),
    },
    Metered {
        name: "minds_lane_sent_total",
        help: "Parcels sent.",
        labels: &["lane"],
        read: |hub| lanes(hub, |lane| lane.sent as f64),
    },
    Metered {
        name: "minds_lane_lost_total",
        help: "Parcels dropped unopened. Anything but 0 before a run's end is a fault.",
        labels: &["lane"],
        read: |hub| lanes(hub, |lane| lane.lost as f64),
    },
    Metered {
        name: "minds_lane_wait_seconds_total",
        help: "Time that senders have waited for room, summed over the senders.",
        labels: &["lane"],
        read: |hub| lanes(hub, |lane| lane.waited_s),
    },
    Metered {
        name: "minds_stage_busy",
        help: "Pieces of work in progress.",
        labels: &["stage"],
        read: |hub| stages(hub, |stage| stage.busy),
    },
    Metered {
        name: "minds_stage_done_total",
        help: "Pieces of work done.",
        labels: &["stage"],
        read: |hub| stages(hub, |stage| stage.done),
    },
    Metered {
        name: "minds_stage_failed_total",
        help: "Pieces of work that failed.",
        labels: &["stage"],
        read: |hub| stages(hub, |stage| stage.failed),
    },
    Metered {
        name: "minds_trainer_idle_seconds_total",
        help: "Time in which the trainer had nothing to do, by what went on meanwhile: what it was waiting for.",
        labels: &["reason"],
        read: |hub| {
            let idle = hub.line.activity.shares().idle;
            each([
                ("sampling", idle.sampling),
                ("scoring", idle.scoring),
                ("sampling_and_scoring", idle.both),
                ("export", idle.exporting),
                ("nothing", idle.nothing),
            ])
        },
    },
    Metered {
        name: "minds_trainer_refused_batches_total",
        help: "Batches that the service refused: no optimizer step was made of them.",
        labels: &[],
        read: |hub| one(hub.line.ledger.refused_batches() as f64),
    },
    Metered {
        name: "minds_scorer_backlog",
        help: "Rollouts that are played and not yet judged.",
        labels: &[],
        read: |hub| one(backlog(hub)),
    },
    Metered {
        name: "minds_scorer_queries_total",
        help: "Log-prob queries of rewards, by who answered: the `service`, or the `memory` of an equal one.",
        labels: &["answer"],
        read: |hub| {
            let asked = hub.line.queries.read();
            each([("service", asked.sent as f64), ("memory", asked.remembered as f64)])
        },
    },
    Metered {
        name: "minds_scorer_query_wait_seconds_total",
        help: "Time that log-prob queries have waited for room or for the next step, summed over the queries.",
        labels: &[],
        read: |hub| one(hub.line.queries.read().waited_s),
    },
    Metered {
        name: "minds_shadow_steps_total",
        help: "Gradient steps measured by shadow adapters.",
        labels: &[],
        read: |hub| one(hub.line.queries.read().shifts.done as f64),
    },
    Metered {
        name: "minds_shadow_wait_seconds_total",
        help: "Time that these waited for an adapter.",
        labels: &[],
        read: |hub| one(hub.line.queries.read().shifts.waited_s),
    },
    Metered {
        name: "minds_shadow_service_seconds_total",
        help: "Time that these took.",
        labels: &[],
        read: |hub| one(hub.line.queries.read().shifts.worked_s),
    },
    Metered {
        name: "minds_python_process_ends_total",
        help: "Processes of a Python environment that ended unasked, or did not start, and were replaced.",
        labels: &["environment"],
        read: |hub| {
            hub.ends.iter().map(|(name, ends)| (vec![name.clone()], ends.load(Relaxed) as f64)).collect()
        },
    },
];

/// Reads the metrics of [`READ`] off a run.
struct Read {
    hub: Arc<Hub>,
    descs: Vec<Desc>,
}

impl Read {
    fn new(hub: Arc<Hub>) -> Result<Self, Error> {
        let descs = READ.iter().map(|metric| {
            let labels = metric.labels.iter().map(|label| (*label).to_owned()).collect();
            Desc::new(metric.name.into(), metric.help.into(), labels, HashMap::new())
        });
        Ok(Self { hub, descs: descs.collect::<Result<_, _>>()? })
    }
}

impl Collector for Read {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let families = READ.iter().map(|metric| {
            let is_counter = metric.name.ends_with("_total");
            let values = (metric.read)(&self.hub).into_iter().map(|(labels, value)| {
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
        // A family without a value is not told: it may get one later.
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
        let stages = minds_stages::meters::Meters::default();
        let client = minds_tinker::client::Meters::default();
        let counted = stages.collectors().into_iter().chain(client.collectors());
        let counted: Vec<String> = counted
            .flat_map(|c| c.desc().into_iter().map(|desc| desc.fq_name.clone()).collect::<Vec<_>>())
            .collect();
        let read = READ.iter().map(|metric| metric.name.to_owned());
        let known: BTreeSet<String> = read.chain(counted.iter().cloned()).collect();
        assert_eq!(known.len(), READ.len() + counted.len(), "two have one name");

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
