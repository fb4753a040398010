//! From a plan to a service with its model: in this process, or a server.

use super::options;
use crate::config::plan::{EnginePlan, RemotePlan, RunPlan, ServicePlan};
use crate::exit::{Exit, Fault, OrExit};
use anyhow::{Context as _, anyhow};
use minds_core::backend::{Service, ServiceInfo};
use minds_core::chat::{Renderer, Tokenizer};
use minds_engine::local::LocalService;
use minds_engine::model::Model;
use minds_engine::runtime::EngineOptions;
use minds_models::{ByteTokenizer, Cache, Progress, Sources};
use minds_stages::deadline::Deadlines;
use minds_tinker::client::{Client, ClientError, ClientOptions, Meters, Patience};
use minds_tinker::types::FinishReason;
use minds_tinker::{RemoteOptions, RemoteService};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

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
    /// What its client counts, if it is a server.
    pub client_meters: Meters,
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
    let client_meters = Meters::default();
    let options = ClientOptions {
        api_key: server.api_key.clone(),
        allow_insecure: server.allow_insecure,
        tags: vec![plan.stem.clone()],
        seed: plan.seed,
        patience: patience(server),
        meters: client_meters.clone(),
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
    let service = Arc::new(service);
    Ok(Ready { info, service, tokenizer, renderer, warnings, keeps_samplers, client_meters, remote })
}

/// A server that does not answer is waited for; one that has taken a request in must answer in the usual time.
fn patience(server: &RemotePlan) -> Patience {
    let Deadlines { sampling, training } = Deadlines::default();
    Patience { submit: server.outage, sample: sampling, training, ..Patience::default() }
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
    let (keeps_samplers, client_meters) = (true, Meters::default());
    Ok(Ready { info, service, tokenizer, renderer, warnings, keeps_samplers, client_meters, remote: None })
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
