//! From a plan to a pipeline: the logprob oracle, the reference, and the shadow trainer.

use super::ModelService;
use crate::config::RunPlan;
use crate::config::choice::WeightsChoice;
use crate::config::error::ConfigError;
use crate::config::rewards::{OracleWeights, ShadowFrom};
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::run_folder::CheckpointRecord;
use anyhow::Context as _;
use minds_core::environment::Environment;
use minds_core::ids::PolicyVersion;
use minds_core::service::{BackendError, SamplerWeights, SamplingBackend, TrainingBackend};
use minds_stages::batcher::CpuPool;
use minds_stages::mailbox::StageHandle;
use minds_stages::messages::MixtureComponent;
use minds_stages::pipeline::{PipelineParts, ShadowSetup, ShadowStart};
use minds_stages::policy::QueryBudget;
use minds_stages::policy::ShadowCheckpoints;
use minds_stages::scorer::{LogprobSource, ReferenceModel};
use minds_stages::shadow::ShadowTrainer;
use minds_stages::telemetry::StageBoard;
use minds_stages::telemetry::activity::Activity;
use minds_stages::telemetry::meters::PipelineMeters;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Rejects sampling from older weights during training, on a service that has one place for sampling weights and
/// trained weights.
///
/// # Errors
/// See [`ConfigError`].
pub fn check_samplers(plan: &RunPlan, service: &str, keeps_samplers: bool) -> Result<(), ConfigError> {
    // Evaluations keep sampling from the weights of their step while the next ones are trained.
    let eval_every = plan.pipeline.evaluate.map_or(0, |evaluation| evaluation.every.get());
    let beside = [("async_off_policy_steps", plan.pipeline.max_steps_off_policy), ("eval_every", eval_every)];
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

/// Everything that the pipeline needs beside the adapter, whose weights are those of the `last` checkpoint, if there is
/// one.
///
/// # Errors
/// The service returned an error.
pub async fn parts(
    plan: &RunPlan,
    ready: &ModelService,
    components: Vec<MixtureComponent>,
    judge: LogprobSource,
    reference: Option<ReferenceModel>,
    training: Arc<dyn TrainingBackend>,
    last: Option<&CheckpointRecord>,
) -> anyhow::Result<PipelineParts> {
    let sampler =
        training.export_sampler(None).await.context("failed to make a sampler of the first weights")?;
    let in_flight = match plan.pipeline.train.weights {
        SamplerWeights::Snapshot => None,
        SamplerWeights::InFlight => {
            Some(publish_first(plan, &*training, last.map_or(0, |last| last.step)).await?)
        }
    };
    let mut meters = PipelineMeters::default();
    meters.usage = ready.usage.clone();
    let frozen = plan.pipeline.retry.deadlines.service(ready.service.clone(), &meters.service);
    let queries = Arc::new(QueryBudget::new(plan.queries).with_service(frozen));
    let pool = CpuPool::start(1).context("failed to start a thread")?;
    let from = match plan.shadow_from {
        ShadowFrom::Base => ShadowStart::Base,
        ShadowFrom::Policy => ShadowStart::Policy { saved: last.map(|last| last.state_path.clone()) },
    };
    let shadow = shadow(plan, ready, components.iter().map(|c| &*c.environment), from);
    let sampler = sampler.sampler;
    Ok(PipelineParts {
        components,
        training,
        sampler,
        in_flight,
        logprob_source: judge,
        reference,
        queries,
        shadow,
        pool,
        meters,
    })
}

/// A sampler of in-flight weights, which are those of this step now.
async fn publish_first(
    plan: &RunPlan,
    training: &dyn TrainingBackend,
    step: u64,
) -> anyhow::Result<Arc<dyn SamplingBackend>> {
    match training.publish_in_flight(PolicyVersion(step)).await {
        Ok(sampler) => Ok(sampler),
        Err(BackendError::Unsupported(_)) => {
            let problem = format!(
                "is \"inflight\", which {} does not offer: leave it out, and each rollout is sampled by one version",
                plan.service.name()
            );
            Err(plan.wrong("trainer.weights", problem).into())
        }
        Err(error) => Err(error).context("failed to publish the first weights"),
    }
}

/// The source of shadow adapters, if a reward measures gradient steps.
#[must_use]
pub fn shadow<'a>(
    plan: &RunPlan,
    ready: &ModelService,
    environments: impl IntoIterator<Item = &'a dyn Environment>,
    from: ShadowStart,
) -> Option<ShadowSetup> {
    environments.into_iter().any(Environment::needs_shadow_adapters).then(|| ShadowSetup {
        options: plan.shadow.clone(),
        service: ready.for_shadows(),
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
        let board = StageBoard::default();
        let meters = PipelineMeters::default().service;
        let pool = ShadowTrainer::new(
            options,
            service,
            shadow_checkpoints,
            queries,
            board,
            Activity::default(),
            &meters,
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
pub async fn oracle(plan: &RunPlan, ready: &ModelService) -> anyhow::Result<LogprobSource> {
    Ok(match &plan.oracle {
        WeightsChoice::Named(OracleWeights::Sampled) => LogprobSource::Sampled,
        WeightsChoice::Named(OracleWeights::Latest) => LogprobSource::Latest,
        fixed @ (WeightsChoice::Named(OracleWeights::Base) | WeightsChoice::Pinned(_)) => {
            LogprobSource::Fixed(base_or(plan, ready, fixed.pinned(), "scorer.policy").await?)
        }
    })
}

/// The base model, or the saved sampler weights that a key names.
pub(super) async fn base_or(
    plan: &RunPlan,
    ready: &ModelService,
    pinned: Option<&str>,
    key: &str,
) -> anyhow::Result<Arc<dyn SamplingBackend>> {
    let Some(weights) = pinned else { return Ok(ready.service.base_sampler().await?) };
    let opened = async {
        let sampler = ready.service.sampler_from(weights).await?;
        // Some services load weights at the first request, which would otherwise be in the first reward.
        // Every vocabulary has these tokens.
        sampler.logprobs([0, 1].into()).await?;
        Ok(sampler)
    };
    ready
        .unless_stopped(opened)
        .await
        .with_context(|| format!("{}: `{key}`: failed to open the weights {weights}", plan.origin))
}
