//! Lower bound on the time of a step: no schedule of the same work on the same resources is faster on average.

use crate::config::RunPlan;
use minds_core::random::seeded_rng;
use minds_simulation::SimulatedLatency;
use rand::RngExt as _;

/// Number of draws for the mean of a longest latency.
const DRAWS: u64 = 4000;

/// Minimum seconds per step that each resource needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTimeBound {
    /// The adapter: passes, optimizer steps, exports and saves run one after the other. After a simulation, the time that
    /// they took.
    pub training: f64,
    /// Bound of the service's concurrent samples and queries; 0 if their number is unlimited.
    pub sampling: f64,
    /// Bound of the rewards that are computed at a time: `simulate.workers`, else `scorer.workers`.
    pub scoring: f64,
    /// Bound of the credits: a group holds one from its first request until its step is published, and there are
    /// `K + 1` batches' worth of credits, with in-flight weights `2 K + 1` (Little's law).
    pub credits: f64,
}

impl StepTimeBound {
    /// Computes the bounds of a plan.
    #[must_use]
    pub fn of(plan: &RunPlan) -> Self {
        let script = &plan.simulate;
        let (groups, members) =
            (plan.pipeline.batch.groups_per_batch.get() as f64, f64::from(plan.group_size.get()));
        let rollouts = groups * members;
        let each = |every: u64, latency: &SimulatedLatency| {
            if every > 0 { latency.mean() / every as f64 } else { 0.0 }
        };
        // Rollouts without a reward are not part of a pass.
        let pass = script.forward_backward.mean() * (1.0 - script.missing) * (1.0 - script.not_finite);
        let substeps = plan.pipeline.train.substeps.get() as f64;
        let export = each(plan.pipeline.train.publish_every.get(), &script.export);
        let training = pass
            + substeps * script.optim_step.mean()
            + export
            + each(plan.pipeline.train.save_every, &script.save);
        // The credits of a step return before its checkpoint is saved. A group holds one while its own minibatch and those
        // behind it are trained.
        let minibatches = plan.pipeline.batch.minibatches.get() as f64;
        let until_published = |minibatches_left: f64, substeps_left: f64| {
            pass * minibatches_left / minibatches + substeps_left * script.optim_step.mean() + export
        };
        let queries = script.queries as f64 * script.query.mean();
        let sampling = script
            .sampling_slots
            .map_or(0.0, |slots| rollouts * (script.sample.mean() + queries) / slots.get() as f64);
        let round_trip = |key: [u64; 4]| {
            let delay = |way| script.broker_delay.draw([key[0] + way, key[1], key[2], key[3]]);
            delay(10) + delay(11)
        };
        let query = |key| script.query.draw(key) + round_trip(key);
        let longest_query = |case| longest(query, case, script.queries as u64);
        // A worker's slot is in use from when it takes a job until the result is stored.
        let reward = |case: [u64; 2]| {
            let key = [0, 1, case[0], case[1]];
            script.reward.draw(key) + longest_query(case) + round_trip(key)
        };
        let slots = script.reward_slots(plan.pipeline.scorers).get() as f64;
        let scoring = rollouts * mean(|n| reward([n, 0])) / slots;
        // Strictly on-policy, a step waits for the longest of its groups, which is in the last minibatch; else at least for
        // each group's own end, on average in a minibatch in the middle.
        let (together, until_published) = match plan.pipeline.max_steps_off_policy {
            0 => (plan.pipeline.batch.groups_per_batch.get() as u64, until_published(1.0, 1.0)),
            _ => (1, until_published((minibatches + 1.0) / 2.0, (substeps + 1.0) / 2.0)),
        };
        let members = u64::from(plan.group_size.get());
        let mut groups: Vec<f64> = (0..DRAWS)
            .map(|n| {
                let rewards = (0..members).map(|m| reward([n, m]));
                longest(|key| script.sample.draw(key), [n, 0], members) + rewards.fold(0.0, f64::max)
            })
            .collect();
        let sampled = mean_of_longest(&mut groups, together);
        let credits = (sampled + until_published) / (plan.pipeline.batches_ahead() + 1) as f64;
        Self { training, sampling, scoring, credits }
    }

    /// Minimum seconds per step: the largest of the bounds.
    #[must_use]
    pub fn step(&self) -> f64 {
        self.named().map(|(_, seconds)| seconds).into_iter().fold(0.0, f64::max)
    }

    /// Name of the resource that sets the bound; `None` if the bound is 0.
    #[must_use]
    pub fn cause(&self) -> Option<&'static str> {
        let named = self.named();
        let (cause, seconds) =
            named.iter().fold(named[0], |most, next| if next.1 > most.1 { *next } else { most });
        (seconds > 0.0).then_some(cause)
    }

    /// All bounds in seconds, by resource name.
    #[must_use]
    pub fn named(&self) -> [(&'static str, f64); 4] {
        [
            ("training", self.training),
            ("sampling", self.sampling),
            ("scoring", self.scoring),
            ("credits", self.credits),
        ]
    }
}

/// Longest of `count` drawn times, in seconds.
fn longest(draw: impl Fn([u64; 4]) -> f64, [case, group]: [u64; 2], count: u64) -> f64 {
    let mut keys = seeded_rng([1, case, group, count]);
    (0..count).map(|_| draw([2, keys.random(), 0, 0])).fold(0.0, f64::max)
}

/// Expected maximum of `count` values, estimated from `draws`: each is weighted by its chance of being the maximum.
fn mean_of_longest(draws: &mut [f64], count: u64) -> f64 {
    draws.sort_unstable_by(f64::total_cmp);
    let below = |n: usize| (n as f64 / draws.len() as f64).powf(count as f64);
    draws.iter().enumerate().map(|(n, time)| time * (below(n + 1) - below(n))).sum()
}

fn mean(draw: impl Fn(u64) -> f64) -> f64 {
    (0..DRAWS).map(draw).sum::<f64>() / DRAWS as f64
}
