//! The shortest time that a step can take: no order of the same work on the same places does better on average.

use crate::config::RunPlan;
use crate::config::simulate::SimulatedLatency;
use minds_core::random::seeded_rng;
use rand::RngExt as _;

/// Groups drawn for means of the longest of several.
const DRAWS: u64 = 4000;

/// Seconds per step that each resource needs at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTimeBound {
    /// The adapter: passes, optimizer steps, exports and saves run one after the other.
    pub training: f64,
    /// Places for samples and queries. 0 where there are as many as are asked for.
    pub sampling: f64,
    /// `scorer.workers`.
    pub scoring: f64,
    /// Credits: a group keeps its own from its first request until its step is published, and `K + 1` batches' worth
    /// of them go round (Little's law).
    pub credits: f64,
}

impl StepTimeBound {
    /// Of a plan.
    #[must_use]
    pub fn of(plan: &RunPlan) -> Self {
        let script = &plan.simulate;
        let (groups, members) =
            (plan.batching.groups_per_batch.get() as f64, f64::from(plan.group_size.get()));
        let rollouts = groups * members;
        let each = |every: u64, latency: &SimulatedLatency| {
            if every > 0 { latency.mean() / every as f64 } else { 0.0 }
        };
        // A step's credits are back before its state is saved.
        let until_published = script.forward_backward.mean()
            + plan.batching.substeps.get() as f64 * script.optim_step.mean()
            + each(plan.batching.publish_every.get(), &script.export);
        let training = until_published + each(plan.save_every, &script.save);
        let queries = script.queries as f64 * script.query.mean();
        let sampling = script
            .slots
            .map_or(0.0, |slots| rollouts * (script.sample.mean() + queries) / slots.get() as f64);
        let longest_query = |case| longest(&script.query, case, script.queries as u64);
        let reward = |case: [u64; 2]| script.reward.draw([0, 1, case[0], case[1]]) + longest_query(case);
        let scoring = rollouts * mean(|n| reward([n, 0])) / plan.scorers.get() as f64;
        // Strictly on-policy, a step waits for the longest of its groups; else at least for each group's own end.
        let together = if plan.batching.max_steps_off_policy == 0 {
            plan.batching.groups_per_batch.get() as u64
        } else {
            1
        };
        let members = u64::from(plan.group_size.get());
        let mut groups: Vec<f64> = (0..DRAWS)
            .map(|n| {
                let rewards = (0..members).map(|m| reward([n, m]));
                longest(&script.sample, [n, 0], members) + rewards.fold(0.0, f64::max)
            })
            .collect();
        let played = mean_of_longest(&mut groups, together);
        let credits = (played + until_published) / (plan.batching.max_steps_off_policy + 1) as f64;
        Self { training, sampling, scoring, credits }
    }

    /// Seconds per step.
    #[must_use]
    pub fn step(&self) -> f64 {
        self.named().map(|(_, seconds)| seconds).into_iter().fold(0.0, f64::max)
    }

    /// What sets it, unless nothing takes any time.
    #[must_use]
    pub fn cause(&self) -> Option<&'static str> {
        let named = self.named();
        let (cause, seconds) =
            named.iter().fold(named[0], |most, next| if next.1 > most.1 { *next } else { most });
        (seconds > 0.0).then_some(cause)
    }

    /// All parts by name.
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

/// The longest of so many.
fn longest(latency: &SimulatedLatency, [case, group]: [u64; 2], count: u64) -> f64 {
    let mut keys = seeded_rng([1, case, group, count]);
    (0..count).map(|_| latency.draw([2, keys.random(), 0, 0])).fold(0.0, f64::max)
}

/// The mean of the longest of so many, of which these are draws: each counts with the chance that it is the longest.
fn mean_of_longest(draws: &mut [f64], count: u64) -> f64 {
    draws.sort_unstable_by(f64::total_cmp);
    let below = |n: usize| (n as f64 / draws.len() as f64).powf(count as f64);
    draws.iter().enumerate().map(|(n, time)| time * (below(n + 1) - below(n))).sum()
}

fn mean(draw: impl Fn(u64) -> f64) -> f64 {
    (0..DRAWS).map(draw).sum::<f64>() / DRAWS as f64
}
