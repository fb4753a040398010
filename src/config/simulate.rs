//! Validated `[simulate]` table: behavior of a scripted service and scripted rewards.

use super::file::{self, LatencyConfig, SimulateConfig};
use super::{at_least_one, choose};
use minds_core::random::seeded_rng;
use rand_distr::{Distribution as _, Exp1, LogNormal, StandardUniform};
use std::num::NonZeroUsize;
use std::time::Duration;

/// Longest time in seconds, and largest factor.
const MOST_SECONDS: f64 = 1e6;
/// Most steps of a simulation.
const MOST_STEPS: u64 = 1_000_000;
/// Most queries of a reward.
const MOST_QUERIES: usize = 1000;

/// Timing and faults of a scripted service and scripted rewards.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatePlan {
    /// Optimizer steps of the simulated run.
    pub steps: u64,
    /// Time that one sample takes.
    pub sample: SimulatedLatency,
    /// Samples and logprob queries that the service processes at a time; `None` for no limit.
    pub slots: Option<NonZeroUsize>,
    /// Time that one reward takes without its queries.
    pub reward: SimulatedLatency,
    /// Logprob queries of one reward, sent together.
    pub queries: usize,
    /// Time that one logprob query takes.
    pub query: SimulatedLatency,
    /// Time of a forward and backward pass over a whole batch; a minibatch takes its share.
    pub forward_backward: SimulatedLatency,
    /// Time that an optimizer step takes.
    pub optim_step: SimulatedLatency,
    /// Time to make a sampler of new weights.
    pub export: SimulatedLatency,
    /// Time to save a checkpoint.
    pub save: SimulatedLatency,
    /// Rate of each random fault.
    pub rates: FaultRates,
    /// Time windows in which the service is faulty.
    pub faults: Vec<FaultWindow>,
}

/// Rates of random faults, as shares of all requests or rewards.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultRates {
    /// Requests for samples and logprobs that fail and may be retried.
    pub failures: f64,
    /// Requests for samples that never get a response.
    pub hangs: f64,
    /// Samples with a logprob that is not finite.
    pub not_finite: f64,
    /// Rewards that fail for good.
    pub missing: f64,
}

/// A stretch of time in which the service is faulty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultWindow {
    /// Start of the window, since the start of the run.
    pub at: Duration,
    /// End of the window, since the start of the run.
    pub until: Duration,
    /// The fault during the window.
    pub fault: SimulatedFault,
}

/// Kind of a fault of the service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SimulatedFault {
    /// No responses until the end of the window: a client retries until then.
    Away,
    /// Everything that begins in the window takes longer by this factor.
    Slow(f64),
}

/// A distribution of times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulatedLatency {
    mean: f64,
    spread: LatencyDistribution,
    tail_share: f64,
    tail_factor: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum LatencyDistribution {
    Constant,
    Exponential,
    Lognormal(LogNormal<f64>),
}

impl SimulatedLatency {
    /// A constant number of seconds.
    #[must_use]
    pub fn constant(seconds: f64) -> Self {
        Self { mean: seconds, spread: LatencyDistribution::Constant, tail_share: 0.0, tail_factor: 1.0 }
    }

    /// Draws the time in seconds of the case with this key: equal keys give equal times.
    #[must_use]
    pub fn draw(&self, key: [u64; 4]) -> f64 {
        let mut chance = seeded_rng(key);
        let in_tail: f64 = StandardUniform.sample(&mut chance);
        let factor = if in_tail < self.tail_share { self.tail_factor } else { 1.0 };
        let part: f64 = match self.spread {
            LatencyDistribution::Constant => 1.0,
            LatencyDistribution::Exponential => Exp1.sample(&mut chance),
            LatencyDistribution::Lognormal(one) => one.sample(&mut chance),
        };
        self.mean * factor * part
    }

    /// Mean in seconds, including the tail.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.mean * (1.0 + self.tail_share * (self.tail_factor - 1.0))
    }

    fn decide(written: &LatencyConfig) -> Result<Self, String> {
        let spread = match written {
            LatencyConfig::Seconds(mean) => {
                &file::LatencySpreadConfig { mean: *mean, ..file::LatencySpreadConfig::default() }
            }
            LatencyConfig::Spread(spread) => spread,
        };
        let file::LatencySpreadConfig { mean, sigma, .. } = *spread;
        if !(0.0..=MOST_SECONDS).contains(&mean) {
            return Err(format!("is {mean} s, it must lie between 0 and {MOST_SECONDS}"));
        }
        let (tail_share, tail_factor) =
            (spread.tail_share.unwrap_or(0.0), spread.tail_factor.unwrap_or(10.0));
        if !(0.0..=1.0).contains(&tail_share) || !(0.0..=MOST_SECONDS).contains(&tail_factor) {
            return Err("needs a `tail_share` in [0, 1] and a `tail_factor` that is not negative".into());
        }
        let kind = choose(spread.spread.as_deref(), SPREADS)
            .map_err(|problem| format!("has a `spread` that {problem}"))?;
        let spread = match (kind, sigma) {
            (DistributionKind::Constant, None) => LatencyDistribution::Constant,
            (DistributionKind::Exponential, None) => LatencyDistribution::Exponential,
            (DistributionKind::Lognormal, sigma) => {
                let sigma = sigma.unwrap_or(1.0);
                if !(0.0..=4.0).contains(&sigma) {
                    return Err(format!("has a `sigma` of {sigma}, it must lie between 0 and 4"));
                }
                // A factor of mean 1, so that `mean` stays the mean.
                let one = LogNormal::new(-sigma * sigma / 2.0, sigma);
                LatencyDistribution::Lognormal(one.map_err(|error| error.to_string())?)
            }
            (_, Some(_)) => return Err("has a `sigma`, which is for spread = \"lognormal\"".into()),
        };
        Ok(Self { mean, spread, tail_share, tail_factor })
    }
}

#[derive(Clone, Copy)]
pub(super) enum DistributionKind {
    Constant,
    Exponential,
    Lognormal,
}

pub(super) const SPREADS: &[(&str, DistributionKind)] = &[
    ("constant", DistributionKind::Constant),
    ("exponential", DistributionKind::Exponential),
    ("lognormal", DistributionKind::Lognormal),
];
pub(super) const FAULTS: &[(&str, SimulatedFault)] =
    &[("away", SimulatedFault::Away), ("slow", SimulatedFault::Slow(10.0))];

impl SimulatePlan {
    /// Checks the table and fills in defaults.
    ///
    /// # Errors
    /// The invalid key, and what is wrong with it.
    pub fn decide(file: &SimulateConfig) -> Result<Self, (String, String)> {
        let latency = |key: &str, written: &Option<LatencyConfig>, default: f64| {
            let written = written.as_ref();
            let decided = written.map_or(Ok(SimulatedLatency::constant(default)), SimulatedLatency::decide);
            decided.map_err(|problem| (format!("simulate.{key}"), problem))
        };
        let share = |key: &str, written: Option<f64>| match written.unwrap_or(0.0) {
            share if (0.0..1.0).contains(&share) => Ok(share),
            share => Err((format!("simulate.{key}"), format!("is {share}, it must lie in [0, 1)"))),
        };
        let steps = match file.steps.unwrap_or(200) {
            steps if (1..=MOST_STEPS).contains(&steps) => steps,
            steps => {
                let problem = format!("is {steps}, it must lie between 1 and {MOST_STEPS}");
                return Err(("simulate.steps".into(), problem));
            }
        };
        let slots = file.sampling_slots.map(at_least_one).transpose();
        let queries = file.queries.unwrap_or(0);
        if queries > MOST_QUERIES {
            let problem = format!("is {queries}, it must be at most {MOST_QUERIES}");
            return Err(("simulate.queries".into(), problem));
        }
        Ok(Self {
            steps,
            sample: latency("sample", &file.sample, 10.0)?,
            slots: slots.map_err(|problem| ("simulate.sampling_slots".into(), problem))?,
            reward: latency("reward", &file.reward, 0.0)?,
            queries,
            query: latency("query", &file.query, 0.1)?,
            forward_backward: latency("forward_backward", &file.forward_backward, 5.0)?,
            optim_step: latency("optim_step", &file.optim_step, 0.5)?,
            export: latency("export", &file.export, 1.0)?,
            save: latency("save", &file.save, 1.0)?,
            rates: FaultRates {
                failures: share("failures", file.failures)?,
                hangs: share("hangs", file.hangs)?,
                not_finite: share("not_finite", file.not_finite)?,
                missing: share("missing", file.missing)?,
            },
            faults: file
                .faults
                .iter()
                .enumerate()
                .map(|(i, fault)| window(fault).map_err(|problem| (format!("simulate.faults[{i}]"), problem)))
                .collect::<Result<_, _>>()?,
        })
    }

    /// The first fault window that covers this time after the start.
    #[must_use]
    pub fn fault(&self, at: Duration) -> Option<&FaultWindow> {
        self.faults.iter().find(|window| (window.at..window.until).contains(&at))
    }
}

fn window(written: &file::FaultConfig) -> Result<FaultWindow, String> {
    let file::FaultConfig { at_s, for_s, what, factor } = written;
    let time = |key: &str, seconds: f64| {
        if (0.0..=MOST_SECONDS).contains(&seconds) {
            Ok(Duration::from_secs_f64(seconds))
        } else {
            Err(format!("has `{key}` = {seconds}, it must lie between 0 and {MOST_SECONDS}"))
        }
    };
    let at = time("at_s", *at_s)?;
    let fault = choose(Some(what), FAULTS).map_err(|problem| format!("has `what`, which {problem}"))?;
    let fault = match (fault, factor) {
        (SimulatedFault::Slow(_), Some(factor)) => SimulatedFault::Slow(*factor),
        (fault, _) => fault,
    };
    match (fault, factor) {
        (SimulatedFault::Slow(factor), _) if !(0.0..=MOST_SECONDS).contains(&factor) => {
            Err(format!("has `factor` = {factor}, it must not be negative"))
        }
        (SimulatedFault::Away, Some(_)) => Err("has a `factor`, which is for what = \"slow\"".into()),
        _ => Ok(FaultWindow { at, until: at + time("for_s", *for_s)?, fault }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(text: &str) -> Result<SimulatePlan, (String, String)> {
        SimulatePlan::decide(&toml::from_str(text).unwrap())
    }

    #[test]
    fn what_is_wrong_names_its_key() {
        for (key, text) in [
            ("simulate.sample", "sample = -1"),
            ("simulate.sample", "sample = nan"),
            ("simulate.query", "query = { mean = 1, spread = \"even\" }"),
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
            ("simulate.faults[0]", "faults = [{ at_s = 1, for_s = 1, what = \"gone\" }]"),
            ("simulate.faults[0]", "faults = [{ at_s = 1, for_s = 1, what = \"away\", factor = 2 }]"),
        ] {
            assert_eq!(decide(text).map_err(|(key, _)| key), Err(key.into()), "{text}");
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
        let at = |seconds| plan.fault(Duration::from_secs(seconds)).map(|window| window.fault);
        assert_eq!(
            [9, 10, 14, 15].map(at),
            [None, Some(SimulatedFault::Slow(3.0)), Some(SimulatedFault::Slow(3.0)), None]
        );
    }
}
