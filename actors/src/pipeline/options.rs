//! What a pipeline is made of: its sizes and limits, its parts, and where it begins.

use crate::ledger::SettledPositions;
use crate::messages::{MixtureComponent, SavedGroup};
use crate::policy::QueryBudget;
use crate::service::retry::Retry;
use crate::stages::batcher::{BatcherOptions, CpuPool};
use crate::stages::evaluator::EvaluatorOptions;
use crate::stages::scorer::{LogprobSource, ReferenceModel};
use crate::stages::shadow::ShadowTrainerOptions;
use crate::stages::trainer::TrainerOptions;
use crate::telemetry::meters::PipelineMeters;
use minds_core::service::{SamplerWeights, SamplingBackend, Service, TrainingBackend};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

/// Sizes and limits of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineOptions {
    /// Seed of items and samples.
    pub seed: u64,
    /// Steps by which the weights that sample may lie behind those in training on average, which decides the credits. 0:
    /// strictly on-policy.
    pub max_steps_off_policy: u64,
    /// Most optimizer steps between the weights that sampled a group and those that it trains.
    pub max_staleness: u64,
    /// How often a failed member is resampled.
    pub resamples: u32,
    /// Rewards computed at a time.
    pub scorers: NonZeroUsize,
    /// Restarts of each stage after a panic.
    pub restarts: u32,
    /// Groups that may fail one after the other before the run ends with an error.
    pub max_failed_in_a_row: u64,
    /// Groups in which every reward may fail in the environment's own code, one after the other, before the run ends with
    /// an error.
    pub max_raised_in_a_row: u64,
    /// How long groups may go without an answer from a service, one that a reward queries for example, before they
    /// count as failed; if no other group becomes ready meanwhile, the run ends with an error.
    pub unanswered: Duration,
    /// Groups without signal that may be replaced one after the other before the run ends with an error.
    pub max_replaced_in_a_row: u64,
    /// What to do when the service fails.
    pub retry: Retry,
    /// How groups become batches.
    pub batch: BatcherOptions,
    /// How a batch becomes optimizer steps.
    pub train: TrainerOptions,
    /// How weights are evaluated on the components of weight 0, if they are.
    pub evaluate: Option<EvaluatorOptions>,
}

impl PipelineOptions {
    /// Whether items are imitated: groups go from the feeder to the batcher, and nothing is sampled.
    #[must_use]
    pub fn is_supervised(&self) -> bool {
        self.train.is_supervised()
    }

    /// Batches that may be under way beside the one in training.
    #[must_use]
    pub fn batches_ahead(&self) -> u64 {
        batches_ahead(self.max_steps_off_policy, self.train.weights)
    }

    /// Most groups started and not yet settled.
    #[must_use]
    pub fn credits(&self) -> u64 {
        self.batch.groups_per_batch.get() as u64 * (self.batches_ahead() + 1)
    }

    /// Whether each version is exported a second time, as it was, beside in-flight weights: for evaluations, for shadows
    /// that start from the policy, or for rewards that query it.
    #[must_use]
    pub fn keeps_versions(&self, shadows_from_policy: bool, rewards_query_policy: bool) -> bool {
        let used = self.evaluate.is_some() || shadows_from_policy || rewards_query_policy;
        self.train.weights == SamplerWeights::InFlight && used
    }
}

/// Batches that may be under way beside the one in training, so that the weights that sample lie behind those in training
/// by `max_steps_off_policy` steps on average. A token of a rollout that follows the weights lies behind by half of what
/// the rollout does, on average over the time in which it is sampled, so twice as many may be under way.
#[must_use]
pub fn batches_ahead(max_steps_off_policy: u64, weights: SamplerWeights) -> u64 {
    match weights {
        SamplerWeights::Snapshot => max_steps_off_policy,
        SamplerWeights::InFlight => 2 * max_steps_off_policy,
    }
}

/// The checkpoint data from which a run resumes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResumePoint {
    /// Optimizer steps done before.
    pub step: u64,
    /// Positions of the schedule settled before.
    pub settled: SettledPositions,
    /// Groups that were ready and not yet trained.
    pub saved_groups: Vec<SavedGroup>,
    /// Gradient norms of the latest optimizer steps, the oldest first.
    pub gradient_norms: Vec<f64>,
    /// Whether the weights have been evaluated.
    pub evaluated: bool,
}

/// What the pipeline is built from.
pub struct PipelineParts {
    /// Environments of the mixture, with their weights.
    pub components: Vec<MixtureComponent>,
    /// The adapter in training.
    pub training: Arc<dyn TrainingBackend>,
    /// Samples from the weights as they are now.
    pub sampler: Arc<dyn SamplingBackend>,
    /// Samples from in-flight weights, which are those now, if rollouts are to follow the weights in training.
    pub in_flight: Option<Arc<dyn SamplingBackend>>,
    /// The weights that answer logprob queries of rewards.
    pub logprob_source: LogprobSource,
    /// The reference of the KL penalty, if there is one ([`BatcherOptions::kl_penalty`]).
    pub reference: Option<ReferenceModel>,
    /// Limits and counts of the rewards' queries.
    pub queries: Arc<QueryBudget>,
    /// Set-up of the shadow trainer, if rewards may measure gradient steps.
    pub shadow: Option<ShadowSetup>,
    /// Threads for long computations.
    pub pool: CpuPool,
    /// Counters of the pipeline for Prometheus.
    pub meters: PipelineMeters,
}

/// Where shadow adapters live, and how they train.
pub struct ShadowSetup {
    /// Adapters, optimizer and retries of the shadow trainer.
    pub options: ShadowTrainerOptions,
    /// Creates the adapters when they are first needed.
    pub service: Arc<dyn Service>,
    /// The weights that the adapters start from.
    pub from: ShadowStart,
}

/// The weights that shadow adapters start from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShadowStart {
    /// The base model, without an adapter.
    Base,
    /// The version of the policy that sampled the rollout.
    Policy {
        /// Where the first version is saved, if it is.
        saved: Option<String>,
    },
}
