//! From a plan to a pipeline: the logprob oracle, the shadow trainer, and the sizes and limits of the stages.

use super::ModelService;
use crate::config::error::ConfigError;
use crate::config::plan::{OraclePlan, RunPlan, ServicePlan, ShadowFrom};
use crate::exit::{CommandError, OrExit, ProcessExit};
use anyhow::Context as _;
use minds_core::environment::Environment;
use minds_core::service::{BackendError, SamplingBackend, TrainingBackend};
use minds_stages::batcher::CpuPool;
use minds_stages::mailbox::StageHandle;
use minds_stages::messages::MixtureComponent;
use minds_stages::pipeline::{PipelineOptions, PipelineParts, ShadowSetup, ShadowStart};
use minds_stages::policy::QueryBudget;
use minds_stages::policy::ShadowCheckpoints;
use minds_stages::service::deadlines::Deadlines;
use minds_stages::service::retry::Retry;
use minds_stages::shadow::{self, ShadowTrainer};
use minds_stages::telemetry::StageBoard;
use minds_stages::telemetry::activity::Activity;
use minds_stages::telemetry::meters::PipelineMeters;
use minds_stages::{batcher, evaluator, scorer, trainer};
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

/// Consecutive failed groups after which the run ends, in batches.
const FAILED_BATCHES: u64 = 3;
/// Fewest consecutive groups with only raised rewards that end the run; larger batches need a whole batch of them.
const RAISED_GROUPS: usize = 3;

/// Consecutive replaced groups without signal after which the run ends, in batches.
const REPLACED_BATCHES: u64 = 30;

/// Time that the pipeline allows a request beyond the client's own limits.
const MARGIN: Duration = Duration::from_secs(60);

/// Rejects sampling from older weights during training, on a service that has one place for sampling weights and
/// trained weights.
///
/// # Errors
/// See [`ConfigError`].
pub fn check_samplers(plan: &RunPlan, service: &str, keeps_samplers: bool) -> Result<(), ConfigError> {
    // Evaluations keep sampling from the weights of their step while the next ones are trained.
    let beside =
        [("async_off_policy_steps", plan.batching.max_steps_off_policy), ("eval_every", plan.eval_every)];
    match beside.iter().find(|(_, steps)| *steps > 0) {
        Some((key, steps)) if !keeps_samplers => Err(plan.wrong(
            &format!("trainer.{key}"),
            format!(
                "is {steps}: {service} is a SkyRL server, where sampling from older weights undoes the training since; \
                 use `--set trainer.{key}=0`"
            ),
        )),
        _ => Ok(()),
    }
}

/// Everything that the pipeline needs beside the adapter, whose weights are those of `state`, if they were saved.
///
/// # Errors
/// The service returned an error.
pub async fn parts(
    plan: &RunPlan,
    ready: &ModelService,
    components: Vec<MixtureComponent>,
    judge: scorer::LogprobSource,
    reference: Option<Arc<dyn SamplingBackend>>,
    training: Arc<dyn TrainingBackend>,
    state: Option<&str>,
) -> anyhow::Result<PipelineParts> {
    let sampler =
        training.export_sampler(None).await.context("failed to make a sampler of the first weights")?;
    let meters = PipelineMeters::default();
    let frozen = retry(plan).deadlines.service(ready.service.clone(), &meters.service);
    let queries = Arc::new(QueryBudget::new(plan.queries).with_service(frozen));
    let pool = CpuPool::start(1).context("failed to start a thread")?;
    let from = match plan.shadow_from {
        ShadowFrom::Base => ShadowStart::Base,
        ShadowFrom::Policy => ShadowStart::Policy { saved: state.map(str::to_owned) },
    };
    let shadow = shadow(plan, ready, components.iter().map(|c| &*c.environment), from);
    let sampler = sampler.sampler;
    Ok(PipelineParts {
        components,
        training,
        sampler,
        logprob_source: judge,
        reference,
        queries,
        shadow,
        pool,
        meters,
    })
}

/// The source of shadow adapters, if a reward measures gradient steps.
#[must_use]
pub fn shadow<'a>(
    plan: &RunPlan,
    ready: &ModelService,
    environments: impl IntoIterator<Item = &'a dyn Environment>,
    from: ShadowStart,
) -> Option<ShadowSetup> {
    let adapters = plan.shadows;
    let lora = plan.shadow_lora.clone();
    let adam = plan.shadow_adam;
    let options = shadow::ShadowTrainerOptions { adapters, lora, adam, retry: retry(plan) };
    environments.into_iter().any(Environment::needs_shadow_adapters).then(|| ShadowSetup {
        options,
        service: ready.service.clone(),
        from,
    })
}

/// Shadow adapters of a command without a pipeline.
pub struct StandaloneShadowTrainer {
    pool: ShadowTrainer,
    _stage: StageHandle,
}

impl StandaloneShadowTrainer {
    /// Starts to serve the measurements that rewards request through `queries`. Must be called inside an actor system.
    #[must_use]
    pub fn start(shadow: ShadowSetup, queries: &QueryBudget) -> Self {
        let ShadowSetup { options, service, .. } = shadow;
        let shadow_checkpoints = ShadowCheckpoints::new(service.clone());
        let (board, activity, meters) =
            (StageBoard::default(), Activity::default(), PipelineMeters::default());
        let pool = ShadowTrainer::new(
            options,
            service,
            shadow_checkpoints,
            queries,
            board,
            activity,
            &meters.service,
        );
        let (stage, _) = pool.clone().attach(queries);
        Self { pool, _stage: stage }
    }

    /// Deletes the shadow adapters from the service.
    pub async fn close(self) {
        self.pool.close().await;
    }
}

/// Restores what environments had learned at a checkpoint.
///
/// # Errors
/// The data does not fit the environment.
pub fn restore_memories(
    components: &[MixtureComponent],
    memories: &BTreeMap<String, serde_json::Value>,
) -> Result<(), CommandError> {
    for component in components {
        if let Some(memory) = memories.get(&component.name) {
            let recalled = component.environment.restore_memory(memory);
            recalled.context("the last line of checkpoints.jsonl is damaged").or_exit(ProcessExit::Config)?;
        }
    }
    Ok(())
}

/// The weights that answer logprob queries of rewards.
///
/// # Errors
/// The service does not have the weights.
pub async fn oracle(plan: &RunPlan, ready: &ModelService) -> anyhow::Result<scorer::LogprobSource> {
    Ok(match &plan.oracle {
        OraclePlan::Sampled => scorer::LogprobSource::Sampled,
        OraclePlan::Latest => scorer::LogprobSource::Latest,
        OraclePlan::Base => scorer::LogprobSource::Fixed(ready.service.base_sampler().await?),
        OraclePlan::Pinned(weights) => {
            scorer::LogprobSource::Fixed(pinned(plan, ready, weights, "scorer.policy").await?)
        }
    })
}

/// The reference weights of the drift penalty, if there is one.
///
/// # Errors
/// The service does not have them.
pub async fn reference(
    plan: &RunPlan,
    ready: &ModelService,
) -> anyhow::Result<Option<Arc<dyn SamplingBackend>>> {
    Ok(match &plan.batching.kl_reference {
        _ if plan.batching.kl_penalty == 0.0 => None,
        None => Some(ready.service.base_sampler().await?),
        Some(weights) => Some(pinned(plan, ready, weights, "trainer.kl_reference").await?),
    })
}

/// Opens saved sampler weights that a key names.
async fn pinned(
    plan: &RunPlan,
    ready: &ModelService,
    weights: &str,
    key: &str,
) -> anyhow::Result<Arc<dyn SamplingBackend>> {
    let opened = async {
        let sampler = ready.service.sampler_from(weights).await?;
        // Some services load weights at the first request, which would otherwise be in the first reward.
        // Every vocabulary has these tokens.
        sampler.logprobs([0, 1].into()).await?;
        Ok::<_, BackendError>(sampler)
    };
    opened.await.with_context(|| format!("{}: `{key}` = \"pinned:{weights}\"", plan.origin))
}

/// Settings of the evaluation of weights.
#[must_use]
pub fn evaluation(plan: &RunPlan) -> evaluator::EvaluatorOptions {
    evaluator::EvaluatorOptions {
        every: NonZeroU64::new(plan.eval_every).unwrap_or(NonZeroU64::MIN),
        rollouts: plan.eval_episodes,
        concurrency: plan.eval_concurrency,
    }
}

/// Sizes and limits of the pipeline.
#[must_use]
pub fn options(plan: &RunPlan) -> PipelineOptions {
    PipelineOptions {
        seed: plan.seed,
        max_steps_off_policy: plan.batching.max_steps_off_policy,
        max_staleness: plan.batching.max_staleness,
        resamples: plan.batching.replays,
        scorers: plan.scorers,
        restarts: 3,
        unanswered: plan.give_up_after,
        max_failed_in_a_row: FAILED_BATCHES * plan.batching.groups_per_batch.get() as u64,
        max_raised_in_a_row: plan.batching.groups_per_batch.get().max(RAISED_GROUPS) as u64,
        max_replaced_in_a_row: REPLACED_BATCHES * plan.batching.groups_per_batch.get() as u64,
        retry: retry(plan),
        batch: batcher::BatcherOptions {
            groups_per_batch: plan.batching.groups_per_batch,
            estimator: plan.estimator,
            constant: plan.batching.constant,
            min_members: plan.batching.min_members,
            weighting: plan.batching.weighting,
            kl_penalty: plan.batching.kl_penalty,
            minibatches: plan.batching.parts,
            staleness: plan.batching.staleness,
        },
        train: trainer::TrainerOptions {
            loss: plan.loss,
            adam: plan.adam,
            rate: plan.batching.rate,
            substeps: plan.batching.substeps,
            publish_every: plan.batching.publish_every,
            kl_alarm: plan.batching.kl_alarm,
            clip_multiple: plan.batching.clip_multiple,
            max_first_gap: plan.batching.max_first_gap,
            max_steps: plan.max_steps,
            save_every: plan.save_every,
            max_refused: 3,
        },
        evaluate: (plan.eval_every > 0).then(|| evaluation(plan)),
    }
}

/// Retry policy for a failing service. A server's client has limits of its own, and requests that it gives up are not
/// retried; the pipeline's limits apply if the client does not keep its own.
#[must_use]
pub fn retry(plan: &RunPlan) -> Retry {
    let usual = Deadlines::default();
    let deadlines = match &plan.service {
        ServicePlan::Embedded(_) => usual,
        // The server may be unreachable before it accepts a request, and again before it returns the result.
        ServicePlan::Remote(server) => Deadlines {
            sampling: usual.sampling + 2 * server.outage + MARGIN,
            training: usual.training + 2 * server.outage + MARGIN,
        },
    };
    Retry { deadlines, ..Retry::default() }
}
