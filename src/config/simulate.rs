//! The `[simulate]` table: behavior of a scripted service and scripted rewards.

use super::choice::Choice;
use super::error::{KeyProblem, at_most, at_most_whole, ensure_number};
use super::latency::{LatencySetting, MOST_SECONDS};
use super::nats::Transport;
use minds_core::number::ShortNumber;
use minds_simulation::{FaultWindow, PassTime, SimulatedFault, SimulationOptions};
use schemars::JsonSchema;
use serde::Deserialize;
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

const STEPS: NonZeroU64 = NonZeroU64::new(200).expect("200 is not 0");
/// Most steps of a simulation.
const MOST_STEPS: u64 = 1_000_000;
/// Most queries of a reward.
const MOST_QUERIES: usize = 1000;
/// Most job slots of all workers.
const MOST_WORKERS: NonZeroUsize = NonZeroUsize::new(1_000_000).expect("1000000 is not 0");
/// Why a key for workers is rejected in a config without workers.
const NEEDS_NATS: &str = "has no effect: set `scorer.transport = \"nats\"` as well";

/// Timing and faults of a scripted service and scripted rewards, with the keys of the `[simulate]` table.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SimulatePlan {
    /// Optimizer steps of the simulated run.
    pub steps: NonZeroU64,
    /// Time that one sample takes, in seconds.
    pub sample: LatencySetting,
    /// Samples and queries that the service processes at a time.
    pub sampling_slots: Option<NonZeroUsize>,
    /// Time that one reward takes without its queries.
    pub reward: LatencySetting,
    /// Logprob queries of one reward, sent together.
    pub queries: usize,
    /// Time that one logprob query takes.
    pub query: LatencySetting,
    /// Job slots of all workers: rewards computed at a time. With `scorer.transport = "nats"`.
    pub workers: Option<NonZeroUsize>,
    /// Time that a job or a result takes through the broker; a query of a reward takes it twice.
    pub broker_delay: LatencySetting,
    /// Time of a forward and backward pass over a whole batch; a minibatch takes its share.
    pub forward_backward: LatencySetting,
    /// Time that an optimizer step takes.
    pub optim_step: LatencySetting,
    /// Time to make a sampler of new weights.
    pub export: LatencySetting,
    /// Time to save a checkpoint.
    pub save: LatencySetting,
    /// Share of the requests for samples and logprobs that fail and may be retried.
    pub failures: f64,
    /// Share of the requests for samples that never get a response.
    pub hangs: f64,
    /// Share of the samples with a logprob that is not finite.
    pub not_finite: f64,
    /// Share of the rewards that fail for good.
    pub missing: f64,
    /// Time windows in which the service is faulty or workers are gone.
    #[schemars(with = "Vec<FaultTable>")]
    pub faults: Vec<FaultSetting>,
}

impl Default for SimulatePlan {
    fn default() -> Self {
        Self {
            steps: STEPS,
            sample: LatencySetting::constant(10.0),
            sampling_slots: None,
            reward: LatencySetting::constant(0.0),
            queries: 0,
            query: LatencySetting::constant(0.1),
            workers: None,
            broker_delay: LatencySetting::constant(0.0),
            forward_backward: LatencySetting::constant(5.0),
            optim_step: LatencySetting::constant(0.5),
            export: LatencySetting::constant(1.0),
            save: LatencySetting::constant(1.0),
            failures: 0.0,
            hangs: 0.0,
            not_finite: 0.0,
            missing: 0.0,
            faults: Vec::new(),
        }
    }
}

impl SimulatePlan {
    /// Refuses numbers that are out of range, and keys of workers if rewards are computed without any.
    pub(super) fn check(&self, transport: Transport) -> Result<(), KeyProblem> {
        at_most("simulate.steps", self.steps.get(), MOST_STEPS)?;
        at_most("simulate.queries", self.queries, MOST_QUERIES)?;
        self.workers.map(|workers| at_most("simulate.workers", workers, MOST_WORKERS)).transpose()?;
        for (key, share) in [
            ("failures", self.failures),
            ("hangs", self.hangs),
            ("not_finite", self.not_finite),
            ("missing", self.missing),
        ] {
            ensure_number(format!("simulate.{key}"), share, (0.0..1.0).contains(&share), "lie in [0, 1)")?;
        }
        at_most_whole(&[("simulate.hangs", self.hangs), ("simulate.failures", self.failures)])?;
        match transport {
            Transport::Local => self.check_local(),
            Transport::Nats => Ok(()),
        }
    }

    /// Refuses keys that are about workers.
    fn check_local(&self) -> Result<(), KeyProblem> {
        let losses = self.faults.iter().position(|fault| matches!(fault, FaultSetting::Workers(_)));
        let found = [
            self.workers.map(|_| "simulate.workers".to_owned()),
            (self.broker_delay.mean() > 0.0).then(|| "simulate.broker_delay".to_owned()),
            losses.map(|number| format!("simulate.faults[{number}]")),
        ];
        match found.into_iter().flatten().next() {
            Some(key) => Err(KeyProblem::new(key, NEEDS_NATS)),
            None => Ok(()),
        }
    }

    /// Rewards computed at a time, if at most `scorers` of them run or wait.
    #[must_use]
    pub fn reward_slots(&self, scorers: NonZeroUsize) -> NonZeroUsize {
        self.workers.map_or(scorers, |workers| workers.min(scorers))
    }

    /// Time windows in which workers are gone.
    #[must_use]
    pub fn worker_losses(&self) -> Vec<WorkerLoss> {
        let loss = |fault: &FaultSetting| match fault {
            FaultSetting::Workers(loss) => Some(*loss),
            FaultSetting::Service(_) => None,
        };
        self.faults.iter().filter_map(loss).collect()
    }

    /// The scripted service, whose whole batches have this number of rollouts.
    #[must_use]
    pub fn service(&self, seed: u64, whole_batch: usize) -> SimulationOptions {
        SimulationOptions {
            seed,
            sample: *self.sample,
            query: *self.query,
            sampling_slots: self.sampling_slots,
            forward_backward: *self.forward_backward,
            pass_time: PassTime::PerBatch(whole_batch),
            optim_step: *self.optim_step,
            export: *self.export,
            save: *self.save,
            failures: self.failures,
            hangs: self.hangs,
            not_finite: self.not_finite,
            faults: self.faults.iter().filter_map(FaultSetting::of_service).collect(),
            ..SimulationOptions::default()
        }
    }
}

/// A fault during a window of time, as a config sets it.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "FaultTable")]
pub enum FaultSetting {
    /// The service of the model is faulty.
    Service(FaultWindow),
    /// Some of the workers are gone.
    Workers(WorkerLoss),
}

impl FaultSetting {
    /// The fault, if it is one of the service.
    fn of_service(&self) -> Option<FaultWindow> {
        match self {
            Self::Service(window) => Some(*window),
            Self::Workers(_) => None,
        }
    }
}

/// A time window in which some of the workers are gone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkerLoss {
    /// Start of the window, since the start of the run.
    pub at: Duration,
    /// End of the window, since the start of the run.
    pub until: Duration,
    /// Share of the job slots that remain, in [0, 1).
    pub left: f64,
}

/// A `[[simulate.faults]]` table, with times in seconds.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FaultTable {
    /// Start of the fault, in seconds from the start of the run.
    at_s: f64,
    /// Seconds that the fault lasts.
    for_s: f64,
    /// Kind of the fault.
    what: Choice<FaultKind>,
    /// Factor by which a slow service takes longer.
    factor: Option<f64>,
    /// Share of the job slots that remain while workers are gone.
    left: Option<f64>,
}

/// Kind of a fault, as configs name it.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FaultKind {
    Away,
    Slow,
    Workers,
}

impl TryFrom<FaultTable> for FaultSetting {
    type Error = String;

    fn try_from(written: FaultTable) -> Result<Self, String> {
        let [at, until] = window(written.at_s, written.for_s)?;
        let FaultTable { factor, left, .. } = written;
        if left.is_some() && !matches!(written.what.0, FaultKind::Workers) {
            return Err("has a `left`, which is for what = \"workers\"".into());
        }
        let kind = match written.what.0 {
            FaultKind::Away => ServiceFaultKind::Away,
            FaultKind::Slow => ServiceFaultKind::Slow,
            FaultKind::Workers => {
                no_factor(factor)?;
                let left = left.unwrap_or(0.0);
                if !(0.0..1.0).contains(&left) {
                    return Err(format!("has `left` = {}; it must lie in [0, 1)", ShortNumber(left)));
                }
                return Ok(Self::Workers(WorkerLoss { at, until, left }));
            }
        };
        Ok(Self::Service(FaultWindow { at, until, fault: kind.fault(factor)? }))
    }
}

/// The start and the end of a window.
fn window(at_s: f64, for_s: f64) -> Result<[Duration; 2], String> {
    let seconds = |key: &str, seconds: f64| match (0.0..=MOST_SECONDS).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => {
            let seconds = ShortNumber(seconds);
            Err(format!("has `{key}` = {seconds}; it must lie between 0 and {MOST_SECONDS}"))
        }
    };
    let at = seconds("at_s", at_s)?;
    Ok([at, at + seconds("for_s", for_s)?])
}

fn no_factor(factor: Option<f64>) -> Result<(), String> {
    match factor {
        Some(_) => Err("has a `factor`, which is for what = \"slow\"".into()),
        None => Ok(()),
    }
}

/// A fault of the service during a window of time, as a file of `serve --simulated` sets it.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "ServiceFaultTable")]
pub struct ServiceFaultSetting(pub FaultWindow);

/// A `[[faults]]` table of such a file, with times in seconds.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ServiceFaultTable {
    /// Start of the fault, in seconds from the start of the service.
    at_s: f64,
    /// Seconds that the fault lasts.
    for_s: f64,
    /// Kind of the fault.
    what: Choice<ServiceFaultKind>,
    /// Factor by which a slow service takes longer.
    factor: Option<f64>,
}

/// Kind of a fault of the service, as configs name it.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ServiceFaultKind {
    Away,
    Slow,
}

impl ServiceFaultKind {
    /// The fault with this factor, which only a slow service has.
    fn fault(self, factor: Option<f64>) -> Result<SimulatedFault, String> {
        match (self, factor) {
            (Self::Away, _) => no_factor(factor).map(|()| SimulatedFault::Away),
            (Self::Slow, None) => {
                Err("needs a `factor`: how many times as long requests take while the service is slow".into())
            }
            (Self::Slow, Some(factor)) if (1.0..=MOST_SECONDS).contains(&factor) => {
                Ok(SimulatedFault::Slow(factor))
            }
            (Self::Slow, Some(factor)) => {
                let factor = ShortNumber(factor);
                Err(format!("has `factor` = {factor}; it must lie between 1 and {MOST_SECONDS}"))
            }
        }
    }
}

impl TryFrom<ServiceFaultTable> for ServiceFaultSetting {
    type Error = String;

    fn try_from(written: ServiceFaultTable) -> Result<Self, String> {
        let [at, until] = window(written.at_s, written.for_s)?;
        let fault = written.what.0.fault(written.factor)?;
        Ok(Self(FaultWindow { at, until, fault }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::plan::tests::{SMALL, plan};

    fn decide(text: &str) -> Result<SimulatePlan, String> {
        let plan = plan(&format!("{SMALL}[simulate]\n{text}"), &[], &[]);
        plan.map(|plan| plan.simulate).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_wrong_names_its_key() {
        for (key, text) in [
            ("simulate.sample", "sample = -1"),
            ("simulate.sample", "sample = nan"),
            ("simulate.query.spread", "query = { mean = 1, spread = \"even\" }"),
            ("simulate.query", "query = { mean = 1, sigma = 1 }"),
            ("simulate.reward", "reward = { mean = 1, spread = \"lognormal\", sigma = -1 }"),
            ("simulate.export", "export = { mean = 1, tail_share = 2 }"),
            ("simulate.hangs", "hangs = 1"),
            ("simulate.steps", "steps = 0"),
            ("simulate.sampling_slots", "sampling_slots = 0"),
            (
                "simulate.faults[1]",
                "faults = [{ at_s = 1, for_s = 1, what = \"away\" }, { at_s = 1, for_s = -1, what = \"away\" }]",
            ),
            ("simulate.faults[0].what", "faults = [{ at_s = 1, for_s = 1, what = \"gone\" }]"),
            ("simulate.faults[0]", "faults = [{ at_s = 1, for_s = 1, what = \"away\", factor = 2 }]"),
            ("simulate.faults[0]", "faults = [{ at_s = 1, for_s = 1, what = \"slow\", left = 0.5 }]"),
            ("simulate.faults[0]", "faults = [{ at_s = 1, for_s = 1, what = \"workers\", left = 1 }]"),
            ("simulate.faults[0]", "faults = [{ at_s = 1, for_s = 1, what = \"workers\", factor = 2 }]"),
            ("simulate.faults[0]", "faults = [{ at_s = 1, for_s = 1, what = \"slow\" }]"),
            ("simulate.faults[0]", "faults = [{ at_s = 1, for_s = 1, what = \"slow\", factor = 0.5 }]"),
            ("simulate.failures", "failures = 0.6\nhangs = 0.5"),
            ("simulate.workers", "workers = 0"),
            ("simulate.workers", "workers = 1000001\n[scorer]\ntransport = \"nats\""),
            ("simulate.broker_delay", "broker_delay = -1"),
        ] {
            let error = decide(text).unwrap_err();
            assert!(error.contains(&format!(": `{key}` ")), "{text}\n{error}");
        }
    }

    #[test]
    fn keys_of_workers_need_a_broker_and_no_address_of_it() {
        for (key, text) in [
            ("simulate.workers", "workers = 4"),
            ("simulate.broker_delay", "broker_delay = 0.1"),
            ("simulate.faults[0]", "faults = [{ at_s = 10, for_s = 5, what = \"workers\", left = 0.5 }]"),
        ] {
            let error = decide(text).unwrap_err();
            assert!(error.contains(&format!(": `{key}` has no effect")), "{text}\n{error}");
            decide(&format!("{text}\n[scorer]\ntransport = \"nats\"")).unwrap();
        }
    }

    #[test]
    fn times_have_the_mean_that_is_written() {
        for (text, mean) in [
            ("sample = 3", 3.0),
            ("sample = { mean = 3, spread = \"exponential\" }", 3.0),
            ("sample = { mean = 3, spread = \"lognormal\" }", 3.0),
            // One in ten takes five times as long: 3 · (0.9 + 0.1 · 5).
            ("sample = { mean = 3, tail_share = 0.1, tail_factor = 5 }", 4.2),
        ] {
            let sample = decide(text).unwrap().sample;
            let drawn = (0..100_000).map(|n| sample.draw([n, 0, 0, 0])).sum::<f64>() / 1e5;
            assert!((sample.mean() - mean).abs() < 1e-12, "{text}");
            assert!((drawn / mean - 1.0).abs() < 0.02, "{text}: {drawn}");
            assert_eq!(sample.draw([7, 0, 0, 0]), sample.draw([7, 0, 0, 0]));
        }
    }

    #[test]
    fn a_fault_lasts_from_its_beginning_to_its_end() {
        let plan = decide("faults = [{ at_s = 10, for_s = 5, what = \"slow\", factor = 3 }]").unwrap();
        let [at, until] = [10, 15].map(Duration::from_secs);
        assert_eq!(plan.service(0, 1).faults, [FaultWindow { at, until, fault: SimulatedFault::Slow(3.0) }]);
    }
}
