//! Evaluates the weights on separate data, concurrently with training.
//!
//! Every `every` steps, and once more when all steps are done, the newest weights sample the same items of each
//! evaluation component, one or more rollouts per item. It shares only the service with the pipeline: no credit, no mailbox, and
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
use futures::future::join_all;
use futures::stream;
use minds_core::ids::{GroupId, RolloutId};
use minds_core::mean::MeanEstimate;
use minds_core::pass_at_k::pass_at_k;
use minds_core::record::{EvaluatedEnvironment, EvaluationRecord};
use minds_core::reward::{Score, means};
use minds_core::schedule::Schedule;
use std::iter::successors;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
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
    /// Items of each component.
    pub items: NonZeroU64,
    /// Samples of each item.
    pub samples_per_item: NonZeroU32,
    /// Least reward of a sample that counts as a success.
    pub success_at: f64,
    /// Rollouts in flight at a time.
    pub concurrency: NonZeroUsize,
}

/// When a component is evaluated.
struct Cadence {
    every: u64,
    /// The version from which on it is evaluated next.
    due: u64,
    /// The version that was evaluated last.
    measured: Option<u64>,
}

impl Cadence {
    fn new(
        component: &MixtureComponent,
        options: &EvaluatorOptions,
        first: u64,
        measured: Option<u64>,
    ) -> Self {
        let every = component.evaluate_every.unwrap_or(options.every).get();
        let due = (first + u64::from(measured == Some(first))).next_multiple_of(every);
        Self { every, due, measured }
    }

    fn measured_at(&mut self, version: u64) {
        self.measured = Some(version);
        self.due = (version + 1).next_multiple_of(self.every);
    }
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
        measured: Option<u64>,
        mut policy: watch::Receiver<Arc<Policy>>,
        mut last: watch::Receiver<bool>,
        found: mpsc::Sender<EvaluationRecord>,
    ) {
        let first = policy.borrow().version.0;
        let mut cadences: Vec<Cadence> =
            self.components.iter().map(|c| Cadence::new(c, &self.options, first, measured)).collect();
        loop {
            let now = policy.borrow_and_update().clone();
            let version = now.version.0;
            if cadences.iter().all(|cadence| version < cadence.due) {
                tokio::select! {
                    changed = policy.changed() => if changed.is_ok() { continue } else { return },
                    ended = last.wait_for(|last| *last) => if ended.is_err() { return },
                    () = found.closed() => return,
                }
                // The weights that a run ends with are evaluated at any step.
                let version = policy.borrow().version.0;
                let left = cadences.iter_mut().filter(|cadence| cadence.measured != Some(version));
                if left.map(|cadence| cadence.due = version).count() == 0 {
                    return;
                }
                continue;
            }
            let due: Vec<usize> = (0..cadences.len()).filter(|at| cadences[*at].due <= version).collect();
            let chosen: Vec<_> = due.iter().map(|at| self.components[*at].clone()).collect();
            let evaluation = tokio::select! {
                evaluation = self.evaluate_these(chosen, &now) => evaluation,
                () = found.closed() => return,
            };
            due.iter().for_each(|at| cadences[*at].measured_at(version));
            if found.send(evaluation).await.is_err() {
                return;
            }
        }
    }

    /// Samples and scores all rollouts under one version.
    pub async fn evaluate(&self, policy: &Policy) -> EvaluationRecord {
        self.evaluate_these(self.components.clone(), policy).await
    }

    async fn evaluate_these(
        &self,
        components: Vec<Arc<MixtureComponent>>,
        policy: &Policy,
    ) -> EvaluationRecord {
        let measured = self.measure_these(components, policy).await;
        let summary = |of: &MeasuredComponent| (of.name.clone(), of.summary(&self.options));
        EvaluationRecord { step: policy.version.0, environments: measured.iter().map(summary).collect() }
    }

    /// The scores of all rollouts under one version, by component and item.
    pub async fn measure(&self, policy: &Policy) -> Vec<MeasuredComponent> {
        self.measure_these(self.components.clone(), policy).await
    }

    async fn measure_these(
        &self,
        components: Vec<Arc<MixtureComponent>>,
        policy: &Policy,
    ) -> Vec<MeasuredComponent> {
        let policy = &Arc::new(policy.asked_by(self.queries.clone()));
        let tasks: Vec<(Arc<MixtureComponent>, u64)> = components
            .iter()
            .flat_map(|c| (0..self.items(c)).map(|position| (c.clone(), position)))
            .collect();
        let samples = self.options.samples_per_item.get() as usize;
        let at_a_time = self.options.concurrency.get().div_ceil(samples);
        let mut results: Vec<ItemScores> = stream::iter(tasks)
            .map(|(component, position)| async move { self.item(&component, position, policy).await })
            .buffered(at_a_time)
            .collect()
            .await;
        let measured = components.iter().map(|c| {
            let later = results.split_off(self.items(c) as usize);
            MeasuredComponent { name: c.name.clone(), items: std::mem::replace(&mut results, later) }
        });
        measured.collect()
    }

    /// Items of a component that are measured.
    fn items(&self, component: &MixtureComponent) -> u64 {
        let environment = &component.environment;
        match environment.demonstrations() {
            Some(_) => self.options.items.min(environment.items()).get(),
            None => self.options.items.get(),
        }
    }

    /// Samples and scores an item. Conversations are measured once: a second time gives the same number.
    async fn item(&self, component: &MixtureComponent, position: u64, policy: &Arc<Policy>) -> ItemScores {
        let samples = match component.environment.demonstrations() {
            Some(_) => 1,
            None => self.options.samples_per_item.get(),
        };
        let warned = |result: Result<Score, RolloutError>| {
            result.map_err(|why| warn!(name = component.name, position, %why, "a rollout has no reward")).ok()
        };
        let sampling = catch_panic(self.score_item(component, position, samples, policy));
        match sampling.await.unwrap_or_else(|why| Err(RolloutError::Panicked(why))) {
            Ok(results) => results.into_iter().map(warned).collect(),
            Err(why) => {
                warned(Err(why));
                vec![None; samples as usize]
            }
        }
    }

    /// The score of each sample of an item.
    async fn score_item(
        &self,
        component: &MixtureComponent,
        position: u64,
        samples: u32,
        policy: &Arc<Policy>,
    ) -> Result<Vec<Result<Score, RolloutError>>, RolloutError> {
        let environment = &component.environment;
        let key =
            Schedule::of_one(self.generator.seed, environment.items(), environment.strata()).item(position);
        let item = environment.item(key.item);
        let group = GroupId(position);
        if let Some(self_driven) = environment.self_driven() {
            let playing = (0..samples).map(|member| {
                let id = RolloutId { group, member };
                let playing = self.generator.run_session(self_driven, &item, id, 0, policy.clone());
                async { Ok(playing.await.map_err(|failed| failed.cause)?.score) }
            });
            return Ok(join_all(playing).await);
        }
        let task = GenerationRequest { component, item: &item, key, group, policy };
        let (prompt, firsts) = self.generator.open(task, samples).await?;
        let mut scored = Vec::new();
        for (member, first) in (0..samples).zip(firsts) {
            let prompt = prompt.clone();
            let scoring = async move {
                let rollout = self.generator.finish(task, member, prompt, first?).await?;
                let oracle = self.oracles.oracle(policy, policy);
                Ok(self.generator.score(component, task.item, &rollout, &oracle).await?)
            };
            scored.push(async {
                catch_panic(scoring).await.unwrap_or_else(|why| Err(RolloutError::Panicked(why)))
            });
        }
        let mut scored = join_all(scored).await;
        scored.resize_with(samples as usize, || Err(no_sample()));
        Ok(scored)
    }
}

/// The scores of the samples of one item; `None` for those without a reward.
pub type ItemScores = Vec<Option<Score>>;

/// The scores of one environment.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredComponent {
    /// Name of the environment in metrics.
    pub name: String,
    /// Its items, the same ones in every evaluation.
    pub items: Vec<ItemScores>,
}

impl MeasuredComponent {
    /// Mean reward of each item; `None` for items without any.
    #[must_use]
    pub fn rewards(&self) -> Vec<Option<f64>> {
        let mean = |scores: &ItemScores| {
            let rewards: Vec<f64> = scores.iter().flatten().map(|s| f64::from(s.reward.get())).collect();
            (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64)
        };
        self.items.iter().map(mean).collect()
    }

    /// Means with their 95% intervals over the items (normal approximation): samples of one item are not independent.
    #[must_use]
    pub fn summary(&self, options: &EvaluatorOptions) -> EvaluatedEnvironment {
        let scores: Vec<&Score> = self.items.iter().flatten().flatten().collect();
        let rewards: Vec<f64> = self.rewards().into_iter().flatten().collect();
        let interval = Interval::of(&rewards);
        let mut parts = means(scores.iter().map(|s| &s.metrics));
        for k in successors(Some(1_u64), |k| k.checked_mul(2)).take_while(|k| *k <= options.most_k()) {
            let passes =
                self.items.iter().filter_map(|item| pass(item, options.success_at, k)).collect::<Vec<_>>();
            let passed = Interval::of(&passes);
            let named = [("", passed.mean), ("_low", passed.low), ("_high", passed.high)];
            parts.extend(
                named.into_iter().filter_map(|(end, value)| Some((format!("pass@{k}{end}"), value?))),
            );
        }
        let all: usize = self.items.iter().map(Vec::len).sum();
        EvaluatedEnvironment {
            reward: interval.mean,
            reward_low: interval.low,
            reward_high: interval.high,
            rollouts: Some(scores.len() as f64),
            reward_errors: Some((all - scores.len()) as f64),
            parts,
        }
    }
}

impl EvaluatorOptions {
    /// Largest `k` of pass@k; 0 where one sample says it all.
    fn most_k(&self) -> u64 {
        match self.samples_per_item.get() {
            1 => 0,
            samples => samples.into(),
        }
    }
}

/// Estimate of pass@k for one item, if it has enough samples with a reward.
fn pass(item: &ItemScores, success_at: f64, k: u64) -> Option<f64> {
    let rewarded = || item.iter().flatten();
    let successes = rewarded().filter(|score| f64::from(score.reward.get()) >= success_at).count();
    pass_at_k(rewarded().count() as u64, successes as u64, k)
}

/// A mean, if there is one, and its 95% interval, if there is one.
struct Interval {
    mean: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
}

impl Interval {
    fn of(values: &[f64]) -> Self {
        let MeanEstimate { mean, error } = MeanEstimate::of(values);
        Self {
            mean: (!values.is_empty()).then_some(mean),
            low: error.map(|error| mean - 1.96 * error),
            high: error.map(|error| mean + 1.96 * error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_core::reward::{Metrics, Reward};

    fn options(samples: u32) -> EvaluatorOptions {
        EvaluatorOptions {
            every: NonZeroU64::MIN,
            items: NonZeroU64::MIN,
            samples_per_item: NonZeroU32::new(samples).unwrap(),
            success_at: 1.0,
            concurrency: NonZeroUsize::MIN,
        }
    }

    /// Successes 2 of 4 and 0 of 4. pass@1: 1/2 and 0, so 1/4 ± 1.96 · 1/4; pass@2: 1 - 1/6 and 0; pass@4: 1 and 0. The mean
    /// reward is the mean over items, whatever the number of samples with a reward.
    #[test]
    fn samples_of_an_item_give_pass_at_k_and_intervals_over_items() {
        let score =
            |reward: f32| Some(Score { reward: Reward::new(reward).unwrap(), metrics: Metrics::new() });
        let items = vec![
            vec![score(1.0), score(0.5), score(1.5), score(0.0)],
            vec![score(0.0), score(0.25), score(0.25), score(0.5)],
            vec![score(1.0), None, None, None],
        ];
        let measured = MeasuredComponent { name: "x".into(), items };
        assert_eq!(measured.rewards(), [Some(0.75), Some(0.25), Some(1.0)]);
        let found = measured.summary(&options(4));
        assert_eq!((found.rollouts, found.reward_errors), (Some(9.0), Some(3.0)));
        assert!((found.reward.unwrap() - 2.0 / 3.0).abs() < 1e-12);
        // The third item has one sample: it counts for pass@1 alone.
        let close = |key: &str, expected: f64| {
            assert!((found.parts[key] - expected).abs() < 1e-9, "{key}: {found:?}")
        };
        close("pass@1", 0.5);
        close("pass@2", (5.0 / 6.0) / 2.0);
        close("pass@4", 0.5);
        let error = ((0.5_f64 * 0.5 + 0.5 * 0.5) / 1.0 / 2.0).sqrt();
        close("pass@4_low", 0.5 - 1.96 * error);
        close("pass@4_high", 0.5 + 1.96 * error);
        assert!(!found.parts.contains_key("pass@3") && !found.parts.contains_key("pass@8"));
    }

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
            let items = results.iter().cloned().map(|score| vec![score]).collect();
            let measured = MeasuredComponent { name: "x".into(), items };
            let environments = [("x".to_owned(), measured.summary(&options(1)))].into();
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
