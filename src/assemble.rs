//! From a plan to a line: the only place that knows which kinds of service, model and environment there are.

use crate::config::plan::{EnginePlan, EnvPlan, Judge, RemotePlan, RunPlan, ServicePlan, ShadowFrom};
use crate::exit::{Exit, Fault, OrExit};
use anyhow::{Context as _, anyhow};
use minds_core::backend::{BackendError, SamplingBackend, Service, ServiceInfo, TrainingBackend};
use minds_core::chat::{Renderer, Tokenizer};
use minds_core::environment::Environment;
use minds_engine::local::LocalService;
use minds_engine::model::Model;
use minds_engine::runtime::EngineOptions;
use minds_models::{ByteTokenizer, Cache, Progress, Sources};
use minds_stages::activity::Activity;
use minds_stages::deadline::Deadlines;
use minds_stages::kit::{Board, CpuPool, Stage};
use minds_stages::line::{Options, Parts, Shadow, StartFrom};
use minds_stages::parcels::Component;
use minds_stages::queries::Queries;
use minds_stages::shadow_trainer::{ShadowTrainer, Shelf};
use minds_stages::{batcher, evaluator, retry::Retry, scorer, shadow_trainer, trainer};
use minds_tinker::client::{Client, ClientError, ClientOptions, Patience};
use minds_tinker::types::FinishReason;
use minds_tinker::{RemoteOptions, RemoteService};
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Groups that may fail one after the other before the run ends, in batches' worth.
const FAILED_BATCHES: u64 = 3;

/// What the line allows a request beyond the client's own limits.
const MARGIN: Duration = Duration::from_secs(60);

/// Longest that a run waits for a server at its end.
const GOODBYE: Duration = Duration::from_secs(5);

/// A model in the service's hands, and how it reads.
pub struct Ready {
    /// Who computes.
    pub service: Arc<dyn Service>,
    /// What it says about itself.
    pub info: ServiceInfo,
    /// Text to the model's tokens and back.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// How the model reads conversations.
    pub renderer: Arc<dyn Renderer>,
    /// What the user should know.
    pub warnings: Vec<String>,
    /// Whether weights can be sampled from while newer ones are trained.
    pub keeps_samplers: bool,
    remote: Option<Remote>,
}

/// A client with threads of its own: its connections outlive those that ask through them.
struct Remote {
    client: Client,
    runtime: Runtime,
}

impl Ready {
    /// Tells a server how the run ended, so that it need not keep what it holds for it.
    pub fn close(self, reason: FinishReason) {
        let Some(Remote { client, runtime }) = self.remote else { return };
        let finish = async { tokio::time::timeout(GOODBYE, client.finish(reason)).await };
        match runtime.block_on(finish) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the session was not finished"),
            Err(_) => tracing::debug!("the session was not finished in time"),
        }
        runtime.shutdown_background();
    }
}

/// Gets the model and starts the service. Without a `state_dir` the embedded engine saves nothing.
///
/// # Errors
/// The model cannot be had or read, the service is not there, or the renderer does not fit the model.
pub fn service(plan: &RunPlan, state_dir: Option<PathBuf>, progress: &Progress) -> Result<Ready, Fault> {
    match &plan.service {
        ServicePlan::Embedded(engine) => embedded(plan, engine, state_dir, progress),
        ServicePlan::Remote(server) => remote(plan, server, progress),
    }
}

fn remote(plan: &RunPlan, server: &RemotePlan, progress: &Progress) -> Result<Ready, Fault> {
    if let Some(variable) = &server.missing_key {
        return Err(anyhow!(
            "{}: the service {} needs a key, and the variable {variable} is not set; `--set tinker.base_url=embedded` \
             trains in this process",
            plan.origin,
            server.base_url
        ))
        .or_exit(Exit::Config);
    }
    let cache = Cache::from_env().or_exit(Exit::Unavailable)?;
    let tokenizer = minds_models::tokenizer(&plan.base_model, &cache, &Sources::from_env(), progress)
        .or_exit(Exit::Unavailable)?;
    let (renderer, warnings) = renderer(plan, tokenizer.clone())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("tinker")
        .enable_all()
        .build()
        .context("failed to start the client's threads")
        .or_exit(Exit::Unavailable)?;
    let options = ClientOptions {
        api_key: server.api_key.clone(),
        allow_insecure: server.allow_insecure,
        tags: vec![plan.stem.clone()],
        seed: plan.seed,
        patience: patience(server),
        ..ClientOptions::new(server.base_url.clone())
    };
    let model = RemoteOptions {
        base_model: plan.base_model.clone(),
        vocab: Some(tokenizer.vocab()),
        ..RemoteOptions::default()
    };
    let service = match runtime.block_on(RemoteService::connect(&options, model)) {
        Err(error @ ClientError::Options(_)) => {
            return Err(error)
                .with_context(|| format!("{}: `tinker.base_url`", plan.origin))
                .or_exit(Exit::Config);
        }
        other => other
            .with_context(|| format!("failed to connect to {}", server.base_url))
            .or_exit(Exit::Unavailable)?,
    };
    let remote = Some(Remote { client: service.client().clone(), runtime });
    let (info, keeps_samplers) = (service.info(), service.keeps_samplers());
    Ok(Ready { info, service: Arc::new(service), tokenizer, renderer, warnings, keeps_samplers, remote })
}

/// A server that does not answer is waited for; one that has taken a request in must answer in the usual time.
fn patience(server: &RemotePlan) -> Patience {
    let Deadlines { sampling, training } = Deadlines::default();
    Patience { submit: server.outage, sample: sampling, training, ..Patience::default() }
}

/// How a failing service is tried again. Before the line gives a request up, the client has.
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

fn embedded(
    plan: &RunPlan,
    engine: &EnginePlan,
    state_dir: Option<PathBuf>,
    progress: &Progress,
) -> Result<Ready, Fault> {
    let name = &plan.base_model;
    let (model, tokenizer) = model(name, plan.seed, progress)?;
    let (renderer, warnings) = renderer(plan, tokenizer.clone())?;
    let settings = EngineOptions {
        threads: Some(engine.threads),
        kv_bytes: engine.kv_bytes,
        max_rows: engine.max_rows,
        // Every member of every group in flight may wait for its answer, every reward for its questions, and every
        // shadow for a probe on both sides of its step.
        max_waiting: options(plan).credits() as usize * (plan.group_size.get() as usize + 8)
            + plan.queries.concurrency.get()
            + 2 * plan.shadows.get()
            + plan.eval_concurrency.get() * 8,
        seed: plan.seed,
        state_dir,
        ..EngineOptions::new(name.clone())
    };
    let service =
        LocalService::start(model, Some(tokenizer.clone()), &settings).or_exit(Exit::Unavailable)?;
    let service: Arc<dyn Service> = Arc::new(service);
    let info = service.info();
    Ok(Ready { info, service, tokenizer, renderer, warnings, keeps_samplers: true, remote: None })
}

/// A model, and how it writes text.
pub type Readable = (Arc<Model<f32>>, Arc<dyn Tokenizer>);

/// Gets a model by its name, with its tokenizer; `seed` makes the weights of the random one.
///
/// # Errors
/// The model cannot be had or read.
pub fn model(name: &str, seed: u64, progress: &Progress) -> Result<Readable, Fault> {
    let cache = Cache::from_env().or_exit(Exit::Unavailable)?;
    let source = minds_models::resolve(name, &cache, progress).or_exit(Exit::Unavailable)?;
    match source.open().or_exit(Exit::Unavailable)? {
        None => {
            let model = Model::random(minds_core::architecture::Architecture::tiny(), seed);
            Ok((Arc::new(model.or_exit(Exit::Unavailable)?), Arc::new(ByteTokenizer)))
        }
        Some(files) => {
            let model = Model::load(files.architecture().clone(), &mut |tensor| files.tensor(tensor));
            let tokenizer = files.tokenizer().or_exit(Exit::Unavailable)?;
            let model = model.with_context(|| format!("failed to load {name}")).or_exit(Exit::Unavailable)?;
            Ok((Arc::new(model), Arc::new(tokenizer)))
        }
    }
}

/// The renderer that the config names, else the one that belongs to the model, else the plainest.
fn renderer(
    plan: &RunPlan,
    tokenizer: Arc<dyn Tokenizer>,
) -> Result<(Arc<dyn Renderer>, Vec<String>), Fault> {
    let recommended = minds_environments::render::recommended(&plan.base_model);
    let mut warnings = Vec::new();
    let name = match (&plan.renderer, recommended) {
        (Some(name), Some(right)) if !minds_environments::render::alike(name, right) => {
            warnings.push(format!(
                "model.renderer_name: {} was trained with {right}, not {name}",
                plan.base_model
            ));
            name.as_str()
        }
        (Some(name), _) => name.as_str(),
        (None, Some(right)) => right,
        (None, None) => {
            if plan.base_model != minds_models::TINY_RANDOM {
                warnings.push(format!(
                    "model.renderer_name: none is known for {}: role_colon is used",
                    plan.base_model
                ));
            }
            "role_colon"
        }
    };
    let renderer = minds_environments::render::renderer(name, tokenizer)
        .with_context(|| format!("{}: `model.renderer_name`", plan.origin))
        .or_exit(Exit::Config)?;
    Ok((renderer, warnings))
}

/// Loads the environments.
///
/// # Errors
/// An environment or an argument is unknown or wrong.
pub fn components(plan: &RunPlan, renderer: &Arc<dyn Renderer>) -> Result<Vec<Component>, Fault> {
    plan.envs.iter().map(|env| component(plan, env, renderer)).collect()
}

fn component(plan: &RunPlan, env: &EnvPlan, renderer: &Arc<dyn Renderer>) -> Result<Component, Fault> {
    let args = serde_json::to_value(&env.args).or_exit(Exit::Config)?;
    let args = args.as_object().cloned().unwrap_or_default();
    let environment = minds_environments::registry::load(&env.id, &args, plan.seed)
        .with_context(|| format!("{}: the environment `{}`", plan.origin, env.name))
        .or_exit(Exit::Config)?;
    Ok(Component {
        name: env.name.clone(),
        environment,
        renderer: renderer.clone(),
        group_size: plan.group_size,
        sampling: minds_core::sampling::SamplingParams { stop: renderer.stop(), ..plan.sampling.clone() },
        max_turns: 64,
        score_timeout: plan.score_timeout,
        weight: env.weight,
    })
}

/// Refuses to sample from older weights beside the training where the service cannot keep them.
///
/// # Errors
/// The plan does so and the service has one place for the weights that play and those in training.
pub fn check_pace(plan: &RunPlan, ready: &Ready) -> Result<(), Fault> {
    // Evaluations go on drawing from the weights of their step while the next ones are trained.
    let beside =
        [("async_off_policy_steps", plan.pace.max_steps_off_policy), ("eval_every", plan.eval_every)];
    match beside.iter().find(|(_, steps)| *steps > 0) {
        Some((key, steps)) if !ready.keeps_samplers => Err(anyhow!(
            "{}: `trainer.{key}` is {steps}: {} is a SkyRL server, where sampling from older weights undoes the training \
             since; use `--set trainer.{key}=0`",
            plan.origin,
            ready.info.name
        ))
        .or_exit(Exit::Config),
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
    let queries = Arc::new(Queries::new(plan.queries));
    let pool = CpuPool::start(1).context("failed to start a thread")?;
    let from = match plan.shadow_from {
        ShadowFrom::Base => StartFrom::Base,
        ShadowFrom::Policy => StartFrom::Policy { saved: state.map(str::to_owned) },
    };
    let shadow = shadow(plan, ready, components.iter().map(|c| &*c.environment), from);
    let sampler = sampler.sampler;
    Ok(Parts { components, training, sampler, judge, reference, queries, shadow, pool })
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
        let pool =
            ShadowTrainer::new(options, service, shelf, queries, Board::default(), Activity::default());
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
        max_failed_in_a_row: FAILED_BATCHES * plan.pace.groups_per_batch.get() as u64,
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
            max_steps: plan.max_steps,
            save_every: plan.save_every,
            max_refused: 3,
        },
        evaluate: (plan.eval_every > 0).then(|| evaluation(plan)),
    }
}
