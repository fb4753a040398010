//! The `[simulate]` table: behavior of a scripted service and scripted rewards.

use super::choice::Choice;
use super::error::{KeyProblem, at_most, ensure};
use super::latency::{LatencySetting, MOST_SECONDS};
use minds_simulation::{FaultWindow, SimulatedFault, SimulationOptions};
use schemars::JsonSchema;
use serde::Deserialize;
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

const STEPS: NonZeroU64 = NonZeroU64::new(200).expect("200 is not 0");
/// Most steps of a simulation.
const MOST_STEPS: u64 = 1_000_000;
/// Most queries of a reward.
const MOST_QUERIES: usize = 1000;

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
    /// Time windows in which the service is faulty.
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
    /// Refuses numbers that are out of range.
    pub(super) fn check(&self) -> Result<(), KeyProblem> {
        at_most("simulate.steps", self.steps.get(), MOST_STEPS)?;
        at_most("simulate.queries", self.queries, MOST_QUERIES)?;
        for (key, share) in [
            ("failures", self.failures),
            ("hangs", self.hangs),
            ("not_finite", self.not_finite),
            ("missing", self.missing),
        ] {
            ensure(format!("simulate.{key}"), share, (0.0..1.0).contains(&share), "lie in [0, 1)")?;
        }
        Ok(())
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
            whole_batch: Some(whole_batch),
            optim_step: *self.optim_step,
            export: *self.export,
            save: *self.save,
            failures: self.failures,
            hangs: self.hangs,
            not_finite: self.not_finite,
            faults: self.faults.iter().map(|setting| setting.0).collect(),
            ..SimulationOptions::default()
        }
    }
}

/// A stretch of time in which the service is faulty, as a config sets it.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "FaultTable")]
pub struct FaultSetting(pub FaultWindow);

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
}

/// Kind of a fault, as configs name it.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FaultKind {
    Away,
    Slow,
}

impl TryFrom<FaultTable> for FaultSetting {
    type Error = String;

    fn try_from(written: FaultTable) -> Result<Self, String> {
        let number = |key: &str, number: f64| {
            let problem = || format!("has `{key}` = {number}, it must lie between 0 and {MOST_SECONDS}");
            (0.0..=MOST_SECONDS).contains(&number).then_some(number).ok_or_else(problem)
        };
        let at = Duration::from_secs_f64(number("at_s", written.at_s)?);
        let until = at + Duration::from_secs_f64(number("for_s", written.for_s)?);
        let fault = match (written.what.0, written.factor) {
            (FaultKind::Away, None) => SimulatedFault::Away,
            (FaultKind::Away, Some(_)) => return Err("has a `factor`, which is for what = \"slow\"".into()),
            (FaultKind::Slow, factor) => SimulatedFault::Slow(number("factor", factor.unwrap_or(10.0))?),
        };
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
        ] {
            let error = decide(text).unwrap_err();
            assert!(error.contains(&format!(": `{key}` ")), "{text}\n{error}");
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
