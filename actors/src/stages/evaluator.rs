//! Evaluates the weights on separate data, concurrently with training.
//!
//! Every `every` steps, and once more when all steps are done, the newest weights sample the same items of each
//! evaluation component, one rollout per item. It shares only the service with the pipeline: no credit, no mailbox, and
//! a concurrency of its own. The trainer never waits for it; an evaluation that falls due while another one runs is
//! served by the next one, on the newest weights. No weights are evaluated twice.
//! A rollout without a reward is counted as missing and never as a number.

use super::scorer::{LogprobSource, ScoringOracles};
use crate::generate::{GenerationRequest, RolloutGenerator, no_sample};
use crate::mailbox::catch_panic;
use crate::messages::{MixtureComponent, RolloutError};
use crate::policy::{Policy, QueryBudget};
use crate::service::retry::Retry;
use crate::telemetry::activity::Activity;
use crate::telemetry::meters::PipelineMeters;
use futures::StreamExt;
use futures::stream;
use minds_core::ids::{GroupId, RolloutId};
use minds_core::mean::MeanEstimate;
use minds_core::record::{EvaluatedEnvironment, EvaluationRecord};
use minds_core::reward::{Score, means};
use minds_core::schedule::Schedule;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tracing::warn;

/// Evaluations use other seeds than training, also for equal items.
const STREAM: u64 = 0x6576_616c;

/// How weights are measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvaluatorOptions {
    /// Steps between two evaluations; the first runs before training, and one more runs on the weights that a run ends
    /// with.
    pub every: NonZeroU64,
    /// Rollouts of each component.
    pub rollouts: NonZeroU64,
    /// Rollouts in flight at a time.
    pub concurrency: NonZeroUsize,
}

/// Samples and scores evaluation rollouts.
pub struct Evaluator {
    options: EvaluatorOptions,
    components: Vec<Arc<MixtureComponent>>,
    generator: RolloutGenerator,
    queries: Arc<QueryBudget>,
    oracles: ScoringOracles,
}

impl Evaluator {
    /// Evaluates these components, whatever their weights. Only the concurrency bounds the queries of their rewards.
    #[must_use]
    pub fn new(
        options: EvaluatorOptions,
        components: Vec<Arc<MixtureComponent>>,
        seed: u64,
        retry: Retry,
        logprob_source: LogprobSource,
        queries: &QueryBudget,
    ) -> Self {
        let queries = Arc::new(queries.beside());
        let oracles = ScoringOracles::new(logprob_source, &queries);
        // A separate activity keeps evaluations out of the overlap of training.
        // Separate meters keep its rollouts out of the counts of training.
        let activity = Activity::default();
        let meters = PipelineMeters::default();
        let generator =
            RolloutGenerator { seed: seed ^ STREAM, retry, activity, meters, record_stability_info: false };
        Self { options, components, generator, queries, oracles }
    }

    /// Evaluates the weights when an evaluation is due and, once `last` turns true, those that the run ends with;
    /// returns early when `found` is closed.
    ///
    /// `measured` is the version that was measured last, at first in an earlier run.
    pub(crate) async fn follow(
        self,
        mut measured: Option<u64>,
        mut policy: watch::Receiver<Arc<Policy>>,
        mut last: watch::Receiver<bool>,
        found: mpsc::Sender<EvaluationRecord>,
    ) {
        let every = self.options.every.get();
        let first = policy.borrow().version.0;
        let mut due = (first + u64::from(measured == Some(first))).next_multiple_of(every);
        loop {
            let now = policy.borrow_and_update().clone();
            if now.version.0 < due {
                tokio::select! {
                    changed = policy.changed() => if changed.is_ok() { continue } else { return },
                    ended = last.wait_for(|last| *last) => if ended.is_err() { return },
                    () = found.closed() => return,
                }
                // The weights that a run ends with are evaluated at any step.
                due = policy.borrow().version.0;
                if measured == Some(due) {
                    return;
                }
                continue;
            }
            let evaluation = tokio::select! {
                evaluation = self.evaluate(&now) => evaluation,
                () = found.closed() => return,
            };
            measured = Some(now.version.0);
            due = (now.version.0 + 1).next_multiple_of(every);
            if found.send(evaluation).await.is_err() {
                return;
            }
        }
    }

    /// Samples and scores all rollouts under one version.
    pub async fn evaluate(&self, policy: &Policy) -> EvaluationRecord {
        let policy = &Arc::new(policy.asked_by(self.queries.clone()));
        let tasks: Vec<(Arc<MixtureComponent>, u64)> = self
            .components
            .iter()
            .flat_map(|c| (0..self.rollouts(c)).map(|position| (c.clone(), position)))
            .collect();
        let mut results: Vec<Option<Score>> = stream::iter(tasks)
            .map(|(component, position)| async move { self.rollout(&component, position, policy).await })
            .buffered(self.options.concurrency.get())
            .collect()
            .await;
        let environments = self.components.iter().map(|c| {
            let later = results.split_off(self.rollouts(c) as usize);
            let own = std::mem::replace(&mut results, later);
            (c.name.clone(), summarise(&own))
        });
        EvaluationRecord { step: policy.version.0, environments: environments.collect() }
    }

    /// Rollouts of a component. Conversations are measured once each: a second time gives the same number.
    fn rollouts(&self, component: &MixtureComponent) -> u64 {
        let environment = &component.environment;
        match environment.demonstrations() {
            Some(_) => self.options.rollouts.min(environment.items()).get(),
            None => self.options.rollouts.get(),
        }
    }

    async fn rollout(
        &self,
        component: &MixtureComponent,
        position: u64,
        policy: &Arc<Policy>,
    ) -> Option<Score> {
        let scoring = catch_panic(self.score(component, position, policy));
        let result = scoring.await.unwrap_or_else(|why| Err(RolloutError::Panicked(why)));
        result.map_err(|why| warn!(name = component.name, position, %why, "a rollout has no reward")).ok()
    }

    async fn score(
        &self,
        component: &MixtureComponent,
        position: u64,
        policy: &Arc<Policy>,
    ) -> Result<Score, RolloutError> {
        let environment = &component.environment;
        let key =
            Schedule::of_one(self.generator.seed, environment.items(), environment.strata()).item(position);
        let item = environment.item(key.item);
        if let Some(self_driven) = environment.self_driven() {
            let id = RolloutId { group: GroupId(position), member: 0 };
            let playing = self.generator.run_session(self_driven, &item, id, 0, policy.clone());
            return Ok(playing.await.map_err(|failed| failed.cause)?.score);
        }
        let task = GenerationRequest { component, item: &item, key, group: GroupId(position), policy };
        let (prompt, mut first) = self.generator.open(task, 1).await?;
        let first = first.pop().ok_or_else(no_sample)??;
        let rollout = self.generator.finish(task, 0, prompt, first).await?;
        let oracle = self.oracles.oracle(policy, policy);
        Ok(self.generator.score(component, &item, &rollout, &oracle).await?)
    }
}

/// Means of the rollouts of one environment, with the 95% interval of the reward (normal approximation).
fn summarise(results: &[Option<Score>]) -> EvaluatedEnvironment {
    let scores: Vec<&Score> = results.iter().flatten().collect();
    let count = scores.len() as f64;
    let rewards: Vec<f64> = scores.iter().map(|s| f64::from(s.reward.get())).collect();
    let MeanEstimate { mean, error } = MeanEstimate::of(&rewards);
    EvaluatedEnvironment {
        reward: (count > 0.0).then_some(mean),
        reward_low: error.map(|error| mean - 1.96 * error),
        reward_high: error.map(|error| mean + 1.96 * error),
        rollouts: Some(count),
        reward_errors: Some(results.len() as f64 - count),
        parts: means(scores.iter().map(|s| &s.metrics)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_core::reward::Reward;

    /// Rewards 1, 0, 1, 0: mean 0.5, sample variance 1/3, standard error sqrt(1/12).
    #[test]
    fn a_mean_has_an_interval_and_missing_rewards_do_not_count() {
        let score = |reward: f32, metrics: &[(&str, f64)]| {
            let metrics = metrics.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
            Some(Score { reward: Reward::new(reward).unwrap(), metrics })
        };
        let results = [
            score(1.0, &[("error", 2.0)]),
            None,
            score(0.0, &[("error", 4.0)]),
            score(1.0, &[]),
            score(0.0, &[]),
        ];
        let numbers = |results: &[Option<Score>]| {
            let environments = [("x".to_owned(), summarise(results))].into();
            EvaluationRecord { step: 0, environments }.numbers()
        };
        let found = numbers(&results);
        let half = 1.96 * (1.0f64 / 12.0).sqrt();
        for (key, expected) in [
            ("reward", 0.5),
            ("reward_low", 0.5 - half),
            ("reward_high", 0.5 + half),
            ("episodes", 4.0),
            ("missing", 1.0),
            ("error", 3.0),
        ] {
            assert!((found[&format!("eval/x/{key}")] - expected).abs() < 1e-12, "{key}: {found:?}");
        }
        let found = numbers(&[None]);
        assert_eq!(found.get("eval/x/reward"), None);
        assert_eq!(found["eval/x/missing"], 1.0);
    }
}
