//! What came of a simulation.

use super::bound::Bound;
use super::service::{Done, Faults, ScriptedService};
use crate::config::RunPlan;
use minds_stages::kit::LaneStats;
use minds_stages::ledger::Counts;
use minds_stages::line::{Event, Line};
use minds_stages::names;
use minds_stages::trainer::StalenessHistogram;
use serde_json::json;
use std::sync::Arc;

/// The numbers of a simulated run. Rates and shares leave out the first and the last `K + 1` steps, in which the line
/// fills and empties, where there are enough others. Where these steps took no time, there are none.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Optimizer steps.
    pub steps: u64,
    /// Virtual seconds, all in all.
    pub seconds: f64,
    /// Seconds per step.
    pub step_s: f64,
    /// Samples per second.
    pub samples_per_s: Option<f64>,
    /// Share of the time in which the adapter was at work.
    pub training_share: Option<f64>,
    /// Staleness of all groups.
    pub staleness: StalenessHistogram,
    /// Share of the time in which a batch was ready and was held back for stragglers.
    pub held_share: Option<f64>,
    /// The least seconds per step.
    pub bound: Bound,
    /// What lay in each lane.
    pub lanes: Vec<LaneUse>,
    /// What became of the groups.
    pub groups: Counts,
    /// What went wrong.
    pub faults: Faults,
}

/// What lay in a lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneUse {
    /// Its name.
    pub name: &'static str,
    /// Most parcels at once.
    pub capacity: usize,
    /// Parcels in it, on average over time.
    pub mean: f64,
    /// Most parcels in it when it was looked at.
    pub most: usize,
}

impl Outcome {
    /// The bound as a share of the time that steps took.
    #[must_use]
    pub fn efficiency(&self) -> Option<f64> {
        (self.step_s > 0.0).then(|| self.bound.step() / self.step_s)
    }

    /// Every number, by name.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let lanes = self.lanes.iter().map(|lane| {
            let use_ = json!({ "capacity": lane.capacity, "mean": lane.mean, "most": lane.most });
            (lane.name.to_owned(), use_)
        });
        let (groups, faults) = (&self.groups, &self.faults);
        json!({
            "steps": self.steps,
            "virtual_s": self.seconds,
            "step_s": self.step_s,
            "samples_per_s": self.samples_per_s,
            "training_share": self.training_share,
            "staleness_mean": self.staleness.mean(),
            "staleness_p50": self.staleness.percentile(0.5),
            "staleness_p99": self.staleness.percentile(0.99),
            "staleness_max": self.staleness.percentile(1.0),
            "held_share": self.held_share,
            "bound_s": self.bound.step(),
            "bound_cause": self.bound.cause(),
            "bounds_s": self.bound.named().into_iter().map(|(name, s)| (name.to_owned(), s.into())).collect::<serde_json::Map<_, _>>(),
            "efficiency": self.efficiency(),
            "lanes": lanes.collect::<serde_json::Map<_, _>>(),
            "groups": {
                "opened": groups.opened, "trained": groups.trained, "filtered": groups.filtered,
                "dropped": groups.dropped, "failed": groups.failed,
            },
            "faults": {
                "failed": faults.failed, "hung": faults.hung, "not_finite": faults.not_finite,
                "missing": faults.missing,
            },
        })
    }
}

/// Follows a simulation.
pub struct Watcher {
    service: Arc<ScriptedService>,
    /// Steps at both ends in which the line fills or empties.
    ends: usize,
    /// When each step was done, and what had been done by then.
    marks: Vec<(f64, Done)>,
    staleness: StalenessHistogram,
    /// Seconds in which a batch was held back, of each step.
    held: Vec<f64>,
    lanes: Vec<LaneUse>,
    readings: u64,
}

impl Watcher {
    /// Of the service of a plan.
    pub fn new(service: Arc<ScriptedService>, plan: &RunPlan) -> Self {
        let ends = plan.pace.max_steps_off_policy as usize + 1;
        let (marks, staleness, held, lanes) = Default::default();
        Self { service, ends, marks, staleness, held, lanes, readings: 0 }
    }

    /// Virtual seconds since the start.
    pub fn elapsed(&self) -> f64 {
        self.service.log().elapsed()
    }

    /// Looks at the lanes.
    pub fn read(&mut self, lanes: &[LaneStats]) {
        self.readings += 1;
        if self.lanes.is_empty() {
            let empty =
                |lane: &LaneStats| LaneUse { name: lane.name, capacity: lane.capacity, mean: 0.0, most: 0 };
            self.lanes = lanes.iter().map(empty).collect();
        }
        for (seen, now) in self.lanes.iter_mut().zip(lanes) {
            seen.mean += (now.depth as f64 - seen.mean) / self.readings as f64;
            seen.most = seen.most.max(now.depth);
        }
    }

    /// Enters an event.
    pub fn take(&mut self, event: &Event) {
        let log = self.service.log();
        match event {
            Event::Step(step) => {
                let number = |key: &str| step.metrics.get(key).copied().unwrap_or(0.0);
                self.marks.push((log.elapsed(), self.service.done()));
                self.staleness.add(step.step, &step.groups);
                self.held.push(number(names::TIME_WAITS_FOR_STRAGGLERS));
                let groups: Vec<u64> = step.groups.iter().map(|group| group.group.id.0).collect();
                log.tell("step", [("step", step.step.into()), ("groups", json!(groups))]);
            }
            Event::Saved(saved) => log.tell("saved", [("step", saved.step.into())]),
            Event::Poisoned(_) => log.tell("poisoned", []),
            Event::Evaluated(evaluation) => log.tell("evaluated", [("step", evaluation.step.into())]),
            Event::Ended { step } => log.tell("ended", [("step", (*step).into())]),
            Event::Failed(why) => log.tell("failed_run", [("why", why.as_str().into())]),
        }
    }

    /// What came of it.
    pub fn outcome(self, line: &Line, bound: Bound) -> Outcome {
        let marks = &self.marks;
        let steps = marks.len();
        let ends = if steps > 4 * self.ends { self.ends } else { 0 };
        let zero = (0.0, Done::default());
        let first = ends.checked_sub(1).and_then(|at| marks.get(at)).unwrap_or(&zero);
        let last = marks.get(steps.saturating_sub(1 + ends)).unwrap_or(&zero);
        let (counted, time) = ((steps - 2 * ends) as f64, last.0 - first.0);
        let per_second = |amount: f64| (time > 0.0).then(|| amount / time);
        Outcome {
            steps: steps as u64,
            seconds: self.elapsed(),
            step_s: time / counted,
            samples_per_s: per_second((last.1.samples - first.1.samples) as f64),
            training_share: per_second(last.1.training_s - first.1.training_s),
            held_share: per_second(self.held[ends..steps - ends].iter().sum()),
            staleness: self.staleness,
            bound,
            lanes: self.lanes,
            groups: line.ledger().counts(),
            faults: self.service.done().faults,
        }
    }
}
