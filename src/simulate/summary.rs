//! Results of a simulation.

use super::bound::StepTimeBound;
use super::environment::SimulatedEnvironment;
use super::event_log::EventLog;
use crate::config::RunPlan;
use minds_simulation::{ServiceCounts, SimulatedService};
use minds_stages::ledger::GroupCounts;
use minds_stages::mailbox::MailboxStats;
use minds_stages::messages::CommittedStep;
use minds_stages::pipeline::{Pipeline, PipelineEvent};
use minds_stages::trainer::StalenessHistogram;
use serde_json::json;
use std::sync::Arc;

/// Results of a simulated run. Rates and shares leave out the first and the last `K + 1` steps, in which the pipeline
/// fills and drains, if enough others remain. They are `None` if the remaining steps took no time.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulationSummary {
    /// Number of optimizer steps done.
    pub steps: u64,
    /// Total virtual seconds of the run.
    pub seconds: f64,
    /// Mean virtual seconds per step.
    pub step_s: f64,
    /// Samples per virtual second.
    pub samples_per_s: Option<f64>,
    /// Share of the time in which the adapter was busy.
    pub training_share: Option<f64>,
    /// Staleness of all groups.
    pub staleness: StalenessHistogram,
    /// Mean staleness of the tokens, in steps.
    pub staleness_of_tokens: f64,
    /// Share of the time in which a ready batch waited for stragglers.
    pub held_share: Option<f64>,
    /// Lower bound on the seconds per step.
    pub bound: StepTimeBound,
    /// Depth of each mailbox over time.
    pub mailboxes: Vec<MailboxUsage>,
    /// Number of groups by outcome.
    pub groups: GroupCounts,
    /// What the service was asked, did and failed to do.
    pub service: ServiceCounts,
    /// Rewards that were scripted to fail.
    pub missing: u64,
    /// Job slots of all workers, if rewards are computed there.
    pub job_slots: Option<usize>,
    /// Jobs that were delivered again because their worker went.
    pub redelivered: u64,
}

/// Depth of a mailbox over time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MailboxUsage {
    /// Name of the mailbox in metrics.
    pub name: &'static str,
    /// Maximum number of messages that it holds.
    pub capacity: usize,
    /// Mean number of messages over all readings.
    pub mean: f64,
    /// Maximum number of messages in a reading.
    pub most: usize,
}

impl SimulationSummary {
    /// Ratio of the bound to the mean time of a step. Above 1 where the times that were drawn for samples and rewards were
    /// shorter than they are on average: with more steps it is nearer to 1.
    #[must_use]
    pub fn efficiency(&self) -> Option<f64> {
        (self.step_s > 0.0).then(|| self.bound.step() / self.step_s)
    }

    /// All results as JSON, by name.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let mailboxes = self.mailboxes.iter().map(|mailbox| {
            let use_ = json!({ "capacity": mailbox.capacity, "mean": mailbox.mean, "most": mailbox.most });
            (mailbox.name.to_owned(), use_)
        });
        let groups = &self.groups;
        let service = &self.service;
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
            "staleness_token_mean": self.staleness_of_tokens,
            "held_share": self.held_share,
            "bound_s": self.bound.step(),
            "bound_cause": self.bound.cause(),
            "bounds_s": self.bound.named().into_iter().map(|(name, s)| (name.to_owned(), s.into())).collect::<serde_json::Map<_, _>>(),
            "efficiency": self.efficiency(),
            "mailboxes": mailboxes.collect::<serde_json::Map<_, _>>(),
            "groups": {
                "opened": groups.opened, "trained": groups.trained, "filtered": groups.filtered,
                "dropped": groups.dropped, "failed": groups.failed,
            },
            "faults": {
                "failed": service.failed, "hung": service.hung, "not_finite": service.not_finite,
                "missing": self.missing, "redelivered": self.redelivered,
            },
            "workers": self.job_slots,
        })
    }
}

/// Collects the measurements of a simulation.
pub struct SimulationRecorder {
    service: Arc<SimulatedService>,
    environment: Arc<SimulatedEnvironment>,
    log: Arc<EventLog>,
    /// Steps at each end in which the pipeline fills or drains.
    ends: usize,
    /// Virtual time at the end of each step, and the work done until then.
    marks: Vec<(f64, ServiceCounts)>,
    staleness: StalenessHistogram,
    /// Number of trained tokens, and the sum of their staleness.
    tokens: f64,
    token_steps: f64,
    /// Seconds that a ready batch waited for stragglers, per step.
    held: Vec<f64>,
    mailboxes: Vec<MailboxUsage>,
    readings: u64,
}

impl SimulationRecorder {
    /// Creates a recorder for the service of a plan.
    pub fn new(
        service: Arc<SimulatedService>,
        environment: Arc<SimulatedEnvironment>,
        log: Arc<EventLog>,
        plan: &RunPlan,
    ) -> Self {
        let ends = plan.pipeline.batches_ahead() as usize + 1;
        let (marks, staleness, held, mailboxes) = Default::default();
        Self {
            service,
            environment,
            log,
            ends,
            marks,
            staleness,
            tokens: 0.0,
            token_steps: 0.0,
            held,
            mailboxes,
            readings: 0,
        }
    }

    /// Virtual seconds since the start.
    pub fn elapsed(&self) -> f64 {
        self.log.elapsed()
    }

    /// Records the current depth of the mailboxes.
    pub fn read(&mut self, mailboxes: &[MailboxStats]) {
        self.readings += 1;
        if self.mailboxes.is_empty() {
            let empty = |mailbox: &MailboxStats| MailboxUsage {
                name: mailbox.name,
                capacity: mailbox.capacity,
                mean: 0.0,
                most: 0,
            };
            self.mailboxes = mailboxes.iter().map(empty).collect();
        }
        for (seen, now) in self.mailboxes.iter_mut().zip(mailboxes) {
            seen.mean += (now.depth as f64 - seen.mean) / self.readings as f64;
            seen.most = seen.most.max(now.depth);
        }
    }

    /// Records an event of the pipeline.
    pub fn take(&mut self, event: &PipelineEvent) {
        let log = &self.log;
        match event {
            PipelineEvent::Step(step) => {
                let CommittedStep { record, groups } = &**step;
                self.marks.push((log.elapsed(), *self.service.counts().borrow()));
                self.staleness.add(record.step, groups);
                let tokens = record.tokens_sampled.unwrap_or(0.0);
                self.tokens += tokens;
                self.token_steps += record.staleness_token.unwrap_or(0.0) * tokens;
                self.held.push(record.time_waits_for_stragglers.unwrap_or(0.0));
                let groups: Vec<u64> = groups.iter().map(|group| group.group.id.0).collect();
                log.record("step", [("step", record.step.into()), ("groups", json!(groups))]);
            }
            PipelineEvent::CheckpointSaved(saved) => log.record("saved", [("step", saved.step.into())]),
            PipelineEvent::Quarantined(_) => log.record("quarantined", []),
            PipelineEvent::Evaluated(evaluation) => {
                log.record("evaluated", [("step", evaluation.step.into())])
            }
            PipelineEvent::Ended { step } => log.record("ended", [("step", (*step).into())]),
            PipelineEvent::Failed(why) => log.record("failed_run", [("why", why.to_string().into())]),
        }
    }

    /// Computes the results of the simulation.
    pub fn finish(self, pipeline: &Pipeline, bound: StepTimeBound) -> SimulationSummary {
        let marks = &self.marks;
        let steps = marks.len();
        let ends = if steps > 4 * self.ends { self.ends } else { 0 };
        let zero = (0.0, ServiceCounts::default());
        let first = ends.checked_sub(1).and_then(|at| marks.get(at)).unwrap_or(&zero);
        let last = marks.get(steps.saturating_sub(1 + ends)).unwrap_or(&zero);
        let counted = (steps - 2 * ends) as f64;
        let time = last.0 - first.0;
        let per_second = |amount: f64| (time > 0.0).then(|| amount / time);
        let step_s = time / counted;
        // A request that began before the first of these steps counts as a whole.
        let trained_s = (last.1.training_s - first.1.training_s).min(time);
        // What the drawn times were, and not what they are on average: passes without some of their rollouts are shorter.
        let bound = StepTimeBound { training: trained_s / counted, ..bound };
        SimulationSummary {
            steps: steps as u64,
            seconds: self.elapsed(),
            step_s,
            samples_per_s: per_second((last.1.samples - first.1.samples) as f64),
            training_share: per_second(trained_s),
            held_share: per_second(self.held[ends..steps - ends].iter().sum()),
            staleness: self.staleness,
            staleness_of_tokens: self.token_steps / self.tokens.max(1.0),
            bound,
            mailboxes: self.mailboxes,
            groups: pipeline.ledger().counts(),
            service: *self.service.counts().borrow(),
            missing: self.environment.missing(),
            job_slots: self.environment.job_slots(),
            redelivered: self.environment.redelivered(),
        }
    }
}
