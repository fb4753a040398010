//! From a plan to a service with its model: in this process, or a server.

use crate::config::error::ConfigError;
use crate::config::plan::{EnginePlan, RemotePlan, RunPlan, ServicePlan};
use crate::exit::{BudgetReached, CommandError, OrExit, ProcessExit};
use crate::progress;
use anyhow::Context as _;
use minds_core::chat::{Renderer, Tokenizer};
use minds_core::service::{Service, ServiceInfo};
use minds_engine::embedded::EmbeddedService;
use minds_engine::model::Model;
use minds_engine::runtime::EngineOptions;
use minds_environments::render::template::{TemplateError, TemplateRendererError};
use minds_environments::render::{self, RenderError, RendererRequest};
use minds_models::{ByteTokenizer, FetchSources, ModelCache, ModelError};
use minds_stages::service::deadlines::Deadlines;
use minds_stages::usage::metered::{PassReservation, metered};
use minds_stages::usage::usage_meter::{RequestStop, UsageMeter};
use minds_tinker::client::{
    CREDENTIAL_COMMAND_ENV, Client, ClientError, ClientMetrics, ClientOptions, ClientTimeouts,
};
use minds_tinker::types::FinishReason;
use minds_tinker::{RemoteOptions, RemoteService};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Longest wait for a server at the end of a run.
const SESSION_CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest wait of a probe for a server that does not respond or is overloaded.
const PROBE_OUTAGE_LIMIT: Duration = Duration::from_secs(30);

/// A service with its model, tokenizer and renderer.
pub struct ModelService {
    /// The service that samples and trains.
    pub service: Arc<dyn Service>,
    /// The same without a count of its tokens.
    unmetered: Arc<dyn Service>,
    /// Model and limits that the service reports.
    pub info: ServiceInfo,
    /// Converts text to the model's tokens and back.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// Renders conversations into the model's tokens.
    pub renderer: Arc<dyn Renderer>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// Whether weights can be sampled from while newer ones are trained.
    pub keeps_samplers: bool,
    /// Metrics of the client, if the service is a server.
    pub client_meters: ClientMetrics,
    /// Tokens that the service bills; counts nothing until [`ModelService::meter`].
    pub usage: UsageMeter,
    remote: Option<RemoteClient>,
}

/// A client with threads of its own: its connections outlive the actors that use them.
struct RemoteClient {
    client: Client,
    runtime: Runtime,
}

impl ModelService {
    /// A service in this process, which keeps its samplers and bills nothing.
    fn new(
        service: Arc<dyn Service>,
        tokenizer: Arc<dyn Tokenizer>,
        renderer: Arc<dyn Renderer>,
        warnings: Vec<String>,
    ) -> Self {
        Self {
            info: service.info(),
            unmetered: service.clone(),
            service,
            tokenizer,
            renderer,
            warnings,
            keeps_samplers: true,
            client_meters: ClientMetrics::default(),
            usage: UsageMeter::default(),
            remote: None,
        }
    }

    /// Counts the tokens of all further requests with this meter, if the service bills any.
    pub fn meter(&mut self, usage: UsageMeter) {
        if self.remote.is_some() {
            self.service = metered(self.unmetered.clone(), usage.clone(), PassReservation::ByTrainer);
            self.usage = usage;
        }
    }

    /// The same service for adapters whose passes the trainer does not reserve.
    #[must_use]
    pub fn for_shadows(&self) -> Arc<dyn Service> {
        match self.usage.counts() {
            Some(_) => metered(self.unmetered.clone(), self.usage.clone(), PassReservation::ByPass),
            None => self.service.clone(),
        }
    }

    /// The result of work outside a pipeline. It ends early if the service denies the account a request, or a request does
    /// not fit below the cap: the responses of those requests never come.
    ///
    /// # Errors
    /// Those of the work, [`BudgetReached`] or the denied request.
    pub async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        tokio::select! {
            result = work => result,
            stop = self.usage.stopped() => Err(match stop {
                RequestStop::Denied(error) => error.into(),
                RequestStop::Cap | RequestStop::Ended => BudgetReached.into(),
            }),
        }
    }

    /// Reports to the server how the run ended, so that it can free the resources of the session.
    pub fn close(self, reason: FinishReason) {
        if let Some(remote) = self.remote {
            remote.close(reason);
        }
    }
}

impl RemoteClient {
    fn close(self, reason: FinishReason) {
        let Self { client, runtime } = self;
        let finish = async { tokio::time::timeout(SESSION_CLOSE_TIMEOUT, client.finish(reason)).await };
        match runtime.block_on(finish) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the session was not finished"),
            Err(_) => tracing::debug!("the session was not finished in time"),
        }
        runtime.shutdown_background();
    }
}

/// Fetches the model and starts the service. Without a `state_dir` the embedded engine saves nothing.
///
/// # Errors
/// The model cannot be fetched or read, the service is unavailable, or the renderer does not fit the model.
pub fn service(plan: &RunPlan, state_dir: Option<PathBuf>) -> Result<ModelService, CommandError> {
    match &plan.service {
        ServicePlan::Embedded(engine) => embedded(plan, engine, state_dir),
        ServicePlan::Remote(server) => remote(plan, server),
    }
}

fn remote(plan: &RunPlan, server: &RemotePlan) -> Result<ModelService, CommandError> {
    check_key(plan).or_exit(ProcessExit::Config)?;
    let cache = ModelCache::from_env();
    let sources = FetchSources::from_env();
    let tokenizer = minds_models::tokenizer(&plan.base_model, &cache, &sources, &progress::bars())
        .map_err(|error| no_model(plan, error))?;
    let (renderer, warnings) = renderer(plan, tokenizer.clone()).or_exit(ProcessExit::Config)?;
    let client_meters = ClientMetrics::default();
    let (service, remote) = connect(plan, server, Some(tokenizer.vocab()), &client_meters)?;
    let keeps_samplers = service.keeps_samplers();
    Ok(ModelService {
        keeps_samplers,
        client_meters,
        remote: Some(remote),
        ..ModelService::new(Arc::new(service), tokenizer, renderer, warnings)
    })
}

/// Rejects a service that needs a key when none is set.
///
/// # Errors
/// See [`ConfigError`].
pub fn check_key(plan: &RunPlan) -> Result<(), ConfigError> {
    let ServicePlan::Remote(server) = &plan.service else { return Ok(()) };
    let Some(variable) = &server.missing_key else { return Ok(()) };
    let (key, problem) = match &plan.resolved.tinker.api_key_env {
        Some(_) => ("api_key_env", format!("names the variable {variable}, which is not set")),
        None => {
            ("base_url", format!("needs a key, and neither {variable} nor {CREDENTIAL_COMMAND_ENV} is set"))
        }
    };
    let service = format!("the service is {}", server.base_url);
    let help = "`--set tinker.base_url=embedded` trains in this process";
    Err(plan.wrong(&format!("tinker.{key}"), format!("{problem}; {service}; {help}")))
}

/// Opens and closes a session, and returns what the server reports of the model and whether it keeps samplers; `None`
/// if the service is not a server.
///
/// # Errors
/// The same errors as at the start of a run.
pub fn probe_service(plan: &RunPlan) -> Result<Option<(ServiceInfo, bool)>, CommandError> {
    let ServicePlan::Remote(server) = &plan.service else { return Ok(None) };
    // An overloaded server is an answer, too: nothing is gained by waiting for it as a run does.
    let server = RemotePlan { outage: server.outage.min(PROBE_OUTAGE_LIMIT), ..server.clone() };
    let (service, remote) = connect(plan, &server, None, &ClientMetrics::default())?;
    let found = (service.info(), service.keeps_samplers());
    remote.close(FinishReason::Success);
    Ok(Some(found))
}

fn connect(
    plan: &RunPlan,
    server: &RemotePlan,
    vocab: Option<usize>,
    metrics: &ClientMetrics,
) -> Result<(RemoteService, RemoteClient), CommandError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("tinker")
        .enable_all()
        .build()
        .context("failed to start the client's threads")
        .or_exit(ProcessExit::Unavailable)?;
    let options = ClientOptions {
        api_key: server.api_key.clone(),
        credential_command: server.credential_command.clone(),
        project_id: server.project_id.clone(),
        allow_insecure: server.allow_insecure,
        tags: std::iter::once(plan.stem.clone()).chain(server.tags.iter().cloned()).collect(),
        max_sample_requests: server.max_sample_requests,
        seed: plan.pipeline.seed,
        timeouts: client_timeouts(server),
        metrics: metrics.clone(),
        ..ClientOptions::new(server.base_url.clone())
    };
    let model = RemoteOptions {
        base_model: plan.base_model.clone(),
        vocab,
        any_model: server.any_model,
        ..RemoteOptions::default()
    };
    let service = match runtime.block_on(RemoteService::connect(&options, model)) {
        Err(error @ ClientError::Options(_)) => {
            return Err(plan.wrong("tinker.base_url", format!("is wrong: {error}")))
                .or_exit(ProcessExit::Config);
        }
        other => other
            .with_context(|| format!("failed to connect to {}", server.base_url))
            .or_exit(ProcessExit::Unavailable)?,
    };
    let client = service.client().clone();
    Ok((service, RemoteClient { client, runtime }))
}

/// Waits for a server that does not respond; one that has accepted a request must respond in the usual time.
fn client_timeouts(server: &RemotePlan) -> ClientTimeouts {
    let Deadlines { sampling, training } = Deadlines::default();
    ClientTimeouts { outage: server.outage, sample: sampling, training, ..ClientTimeouts::default() }
}

fn embedded(
    plan: &RunPlan,
    engine: &EnginePlan,
    state_dir: Option<PathBuf>,
) -> Result<ModelService, CommandError> {
    let name = &plan.base_model;
    let cache = ModelCache::from_env();
    minds_models::model_availability(name, &cache).map_err(|error| no_model(plan, error))?;
    let (model, tokenizer) = model(name, plan.pipeline.seed)?;
    let (renderer, warnings) = renderer(plan, tokenizer.clone()).or_exit(ProcessExit::Config)?;
    let settings = EngineOptions {
        threads: Some(engine.threads),
        kv_bytes: engine.kv_bytes,
        max_rows: engine.max_rows,
        swap_kv: engine.swap_kv,
        // Every member of every group in flight may wait for its completion, every reward for its queries, and every
        // shadow for a probe on both sides of its step.
        max_waiting: plan.pipeline.credits() as usize * (plan.group_size.get() as usize + 8)
            + plan.queries.concurrency.get()
            + 2 * plan.shadow.adapters.get()
            + plan.evaluation.concurrency.get() * 8,
        seed: plan.pipeline.seed,
        checkpoint_dir: state_dir,
        ..EngineOptions::new(name.clone())
    };
    let service = EmbeddedService::start(model, Some(tokenizer.clone()), &settings)
        .or_exit(ProcessExit::Unavailable)?;
    Ok(ModelService::new(Arc::new(service), tokenizer, renderer, warnings))
}

/// A model with its tokenizer.
pub(super) type ModelAndTokenizer = (Arc<Model<f32>>, Arc<dyn Tokenizer>);

/// Fetches a model by its name, with its tokenizer; `seed` sets the weights of the built-in random model.
///
/// # Errors
/// The model cannot be fetched or read.
pub(super) fn model(name: &str, seed: u64) -> Result<ModelAndTokenizer, CommandError> {
    let cache = ModelCache::from_env();
    let source = minds_models::resolve(name, &cache, &progress::bars()).or_exit(ProcessExit::Unavailable)?;
    match source.open().or_exit(ProcessExit::Unavailable)? {
        None => {
            let model = Model::random(minds_core::architecture::Architecture::tiny(), seed);
            Ok((Arc::new(model.or_exit(ProcessExit::Unavailable)?), Arc::new(ByteTokenizer)))
        }
        Some(files) => {
            let model = Model::load(files.architecture().clone(), &mut |tensor| files.tensor(tensor));
            let tokenizer = files.tokenizer().or_exit(ProcessExit::Unavailable)?;
            let model =
                model.with_context(|| format!("failed to load {name}")).or_exit(ProcessExit::Unavailable)?;
            Ok((Arc::new(model), Arc::new(tokenizer)))
        }
    }
}

/// The error of a config whose model cannot be fetched: the name is invalid, or there is no such model.
pub fn no_model(plan: &RunPlan, error: ModelError) -> CommandError {
    match error {
        ModelError::UnknownName { .. } => CommandError {
            exit: ProcessExit::Config,
            error: plan.wrong("model.base_model", format!("is wrong: {error}")).into(),
        },
        error => CommandError { exit: ProcessExit::Unavailable, error: error.into() },
    }
}

/// The renderer that the config names, else the one that the model's tokenizer and chat template call for; with warnings for
/// the user.
///
/// # Errors
/// The named renderer does not fit the model, its template does not work, or it has none and is of no known family.
pub fn renderer(
    plan: &RunPlan,
    tokenizer: Arc<dyn Tokenizer>,
) -> Result<(Arc<dyn Renderer>, Vec<String>), ConfigError> {
    let request = RendererRequest {
        base_model: &plan.base_model,
        name: plan.renderer.as_deref(),
        arguments: &plan.template_args,
        tokenizer,
    };
    let selected = render::select(&request).map_err(|error| {
        let key = match &error {
            RenderError::NoneFits { .. } if plan.renderer.is_none() => "model.base_model",
            RenderError::ArgumentsWithoutTemplate { .. } => "model.template_args",
            RenderError::Template(TemplateRendererError::Template(TemplateError::Date(_))) => {
                "model.template_args"
            }
            _ => "model.renderer_name",
        };
        plan.wrong(key, format!("is wrong: {error}"))
    })?;
    Ok((selected.renderer, selected.warnings))
}
