//! From a plan to a line: whose log-probs count, who measures gradient steps, and the sizes and limits of the stages.

use super::Ready;
use crate::config::error::ConfigError;
use crate::config::plan::{Judge, RunPlan, ServicePlan, ShadowFrom};
use crate::exit::{Exit, Fault, OrExit};
use anyhow::Context as _;
use minds_core::backend::{BackendError, SamplingBackend, TrainingBackend};
use minds_core::environment::Environment;
use minds_stages::activity::Activity;
use minds_stages::deadline::Deadlines;
use minds_stages::kit::{Board, CpuPool, Stage};
use minds_stages::line::{Options, Parts, Shadow, StartFrom};
use minds_stages::meters::Meters;
use minds_stages::parcels::Component;
use minds_stages::queries::Queries;
use minds_stages::shadow_trainer::{ShadowTrainer, Shelf};
use minds_stages::{batcher, evaluator, retry::Retry, scorer, shadow_trainer, trainer};
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

/// Groups that may fail one after the other before the run ends, in batches' worth.
const FAILED_BATCHES: u64 = 3;
/// A whole batch in which every reward raises ends the run, but no fewer groups than this.
const RAISED_GROUPS: usize = 3;

/// The same of groups without signal that are replaced.
const REPLACED_BATCHES: u64 = 30;

/// What the line allows a request beyond the client's own limits.
const MARGIN: Duration = Duration::from_secs(60);

/// Refuses to sample from older weights beside the training, on a service with one place for those that play and those in
/// training.
///
/// # Errors
/// See there.
pub fn check_samplers(plan: &RunPlan, service: &str, keeps_samplers: bool) -> Result<(), ConfigError> {
    // Evaluations go on drawing from the weights of their step while the next ones are trained.
    let beside =
        [("async_off_policy_steps", plan.pace.max_steps_off_policy), ("eval_every", plan.eval_every)];
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

/// Everything that the line needs beside the adapter, whose weights are those of `state`, if they were saved.
///
/// # Errors
/// The service refused.
pub async fn parts(
    plan: &RunPlan,
    ready: &Ready,
    components: Vec<Component>,
    judge: scorer::Judge,
    reference: Option<Arc<dyn SamplingBackend>>,
    training: Arc<dyn TrainingBackend>,
    state: Option<&str>,
) -> anyhow::Result<Parts> {
    let sampler =
        training.export_sampler(None).await.context("failed to make a sampler of the first weights")?;
    let meters = Meters::default();
    let frozen = retry(plan).deadlines.service(ready.service.clone(), &meters.service);
    let queries = Arc::new(Queries::new(plan.queries).with_service(frozen));
    let pool = CpuPool::start(1).context("failed to start a thread")?;
    let from = match plan.shadow_from {
        ShadowFrom::Base => StartFrom::Base,
        ShadowFrom::Policy => StartFrom::Policy { saved: state.map(str::to_owned) },
    };
    let shadow = shadow(plan, ready, components.iter().map(|c| &*c.environment), from);
    let sampler = sampler.sampler;
    Ok(Parts { components, training, sampler, judge, reference, queries, shadow, pool, meters })
}

/// Who measures gradient steps, if a reward asks for that.
#[must_use]
pub fn shadow<'a>(
    plan: &RunPlan,
    ready: &Ready,
    environments: impl IntoIterator<Item = &'a dyn Environment>,
    from: StartFrom,
) -> Option<Shadow> {
    let (adapters, lora, adam) = (plan.shadows, plan.shadow_lora.clone(), plan.shadow_adam);
    let options = shadow_trainer::Options { adapters, lora, adam, retry: retry(plan) };
    environments.into_iter().any(Environment::asks_shift).then(|| Shadow {
        options,
        service: ready.service.clone(),
        from,
    })
}

/// Shadows of a command that has no line.
pub struct Measuring {
    pool: ShadowTrainer,
    _stage: Stage,
}

impl Measuring {
    /// Answers the questions of those rewards that ask through `queries`. Must be called where actors can live.
    #[must_use]
    pub fn start(shadow: Shadow, queries: &Queries) -> Self {
        let Shadow { options, service, .. } = shadow;
        let shelf = Shelf::new(service.clone());
        let (board, activity, meters) = (Board::default(), Activity::default(), Meters::default());
        let pool = ShadowTrainer::new(options, service, shelf, queries, board, activity, &meters.service);
        let (stage, _) = pool.clone().attach(queries);
        Self { pool, _stage: stage }
    }

    /// Leaves nothing on the service.
    pub async fn close(self) {
        self.pool.close().await;
    }
}

/// Gives environments what they had learnt at a checkpoint.
///
/// # Errors
/// It is not what such an environment keeps.
pub fn recall(components: &[Component], memories: &BTreeMap<String, serde_json::Value>) -> Result<(), Fault> {
    for component in components {
        if let Some(memory) = memories.get(&component.name) {
            let recalled = component.environment.recall(memory);
            recalled.context("the last line of checkpoints.jsonl is damaged").or_exit(Exit::Config)?;
        }
    }
    Ok(())
}

/// Whose log-probs count in rewards.
///
/// # Errors
/// The service does not have the weights.
pub async fn judge(plan: &RunPlan, ready: &Ready) -> anyhow::Result<scorer::Judge> {
    Ok(match &plan.judge {
        Judge::Sampled => scorer::Judge::Sampled,
        Judge::Latest => scorer::Judge::Latest,
        Judge::Base => scorer::Judge::Fixed(ready.service.base_sampler().await?),
        Judge::Pinned(weights) => scorer::Judge::Fixed(pinned(plan, ready, weights, "scorer.policy").await?),
    })
}

/// The weights that the policy pays for leaving, if it does.
///
/// # Errors
/// The service does not have them.
pub async fn reference(plan: &RunPlan, ready: &Ready) -> anyhow::Result<Option<Arc<dyn SamplingBackend>>> {
    Ok(match &plan.pace.kl_reference {
        _ if plan.pace.kl_penalty == 0.0 => None,
        None => Some(ready.service.base_sampler().await?),
        Some(weights) => Some(pinned(plan, ready, weights, "trainer.kl_reference").await?),
    })
}

/// Saved sampler weights that a key names.
async fn pinned(
    plan: &RunPlan,
    ready: &Ready,
    weights: &str,
    key: &str,
) -> anyhow::Result<Arc<dyn SamplingBackend>> {
    let opened = async {
        let sampler = ready.service.sampler_from(weights).await?;
        // Some services look for weights when they are first asked, and that would be in the first reward.
        // Every vocabulary has these tokens.
        sampler.logprobs([0, 1].into()).await?;
        Ok::<_, BackendError>(sampler)
    };
    opened.await.with_context(|| format!("{}: `{key}` = \"pinned:{weights}\"", plan.origin))
}

/// How weights are measured.
#[must_use]
pub fn evaluation(plan: &RunPlan) -> evaluator::Options {
    evaluator::Options {
        every: NonZeroU64::new(plan.eval_every).unwrap_or(NonZeroU64::MIN),
        episodes: plan.eval_episodes,
        concurrency: plan.eval_concurrency,
    }
}

/// Sizes and limits of the line.
#[must_use]
pub fn options(plan: &RunPlan) -> Options {
    Options {
        seed: plan.seed,
        max_steps_off_policy: plan.pace.max_steps_off_policy,
        max_staleness: plan.pace.max_staleness,
        replays: plan.pace.replays,
        scorers: plan.scorers,
        restarts: 3,
        unanswered: plan.give_up_after,
        max_failed_in_a_row: FAILED_BATCHES * plan.pace.groups_per_batch.get() as u64,
        max_raised_in_a_row: plan.pace.groups_per_batch.get().max(RAISED_GROUPS) as u64,
        max_replaced_in_a_row: REPLACED_BATCHES * plan.pace.groups_per_batch.get() as u64,
        retry: retry(plan),
        batch: batcher::Options {
            groups_per_batch: plan.pace.groups_per_batch,
            estimator: plan.estimator,
            constant: plan.pace.constant,
            min_members: plan.pace.min_members,
            weighting: plan.pace.weighting,
            kl_penalty: plan.pace.kl_penalty,
            parts: plan.pace.parts,
            staleness: plan.pace.staleness,
        },
        train: trainer::Options {
            loss: plan.loss,
            adam: plan.adam,
            rate: plan.pace.rate,
            substeps: plan.pace.substeps,
            publish_every: plan.pace.publish_every,
            kl_alarm: plan.pace.kl_alarm,
            clip_multiple: plan.pace.clip_multiple,
            max_first_gap: plan.pace.max_first_gap,
            max_steps: plan.max_steps,
            save_every: plan.save_every,
            max_refused: 3,
        },
        evaluate: (plan.eval_every > 0).then(|| evaluation(plan)),
    }
}

/// How a failing service is tried again. A server's client has limits of its own, and what it gives up is not tried again;
/// those of the line come into play if it does not keep them.
#[must_use]
pub fn retry(plan: &RunPlan) -> Retry {
    let usual = Deadlines::default();
    let deadlines = match &plan.service {
        ServicePlan::Embedded(_) => usual,
        // The server may be away before it takes a request in, and again before it gives the result.
        ServicePlan::Remote(server) => Deadlines {
            sampling: usual.sampling + 2 * server.outage + MARGIN,
            training: usual.training + 2 * server.outage + MARGIN,
        },
    };
    Retry { deadlines, ..Retry::default() }
}
