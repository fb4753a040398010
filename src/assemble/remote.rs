//! Environments on workers: how a run offers them over the broker, and how a worker loads them.

use super::environments::{ModelParts, component};
use super::fingerprint::fingerprint;
use crate::cli::VERSION;
use crate::config::RunPlan;
use crate::config::environments::EnvPlan;
use crate::config::error::KeyProblem;
use crate::config::file::{self, ConfigFile, EnvConfig};
use crate::config::nats::NatsPlan;
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::progress;
use crate::run_folder::{BrokerIdentity, EnvironmentFingerprint, RunFolder};
use anyhow::Context as _;
use async_trait::async_trait;
use minds_environments::native::is_path;
use minds_environments::render::TEMPLATE;
use minds_models::{FetchSources, ModelCache};
use minds_stages::messages::MixtureComponent;
use minds_stages::remote::message::Offer;
use minds_stages::remote::{
    Broker, BrokerError, BrokerOptions, Dispatcher, DispatcherOptions, EnvironmentLoader, RemoteEnvironment,
    hash, token,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Timeout for the connection to the broker when a run starts.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout for the connection to the broker when it is only tried.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between two audits for jobs that the broker has lost.
const AUDIT_EVERY: Duration = Duration::from_secs(30);

/// How a worker loads an environment: the smallest config with that environment, and the context of the run's model in
/// tokens.
#[derive(Serialize, Deserialize)]
struct OfferSpec {
    config: ConfigFile,
    context: usize,
}

/// Connects to the broker as a run would and describes its stream; `None` if rewards are computed in the run. Creates
/// nothing.
///
/// # Errors
/// No address is given (2), or the broker cannot be used (3).
pub fn probe_broker(plan: &RunPlan) -> Result<Option<String>, CommandError> {
    let Some(nats) = &plan.nats else { return Ok(None) };
    let Some(options) = plan.broker().or_exit(ProcessExit::Config)? else { return Ok(None) };
    let inbox = nats.run.as_ref().map(|run| nats.names.inbox(run));
    let options = BrokerOptions { inbox, ..options.clone() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("failed to start a thread").or_exit(ProcessExit::Failed)?;
    let looked = runtime.block_on(async {
        let broker = Broker::connect_within(PROBE_TIMEOUT, &options, nats.names.clone()).await?;
        let stream = match broker.stream().await {
            Ok(_) => "its stream has the right settings",
            Err(BrokerError::NoStream { .. }) => "a run creates the stream",
            Err(error) => return Err(error),
        };
        Ok(format!("the broker {} answers; {stream} (`{}`)", broker.address(), nats.names.stream()))
    });
    looked.map(Some).or_exit(ProcessExit::Unavailable)
}

/// Connects to the broker and replaces the environments of a run with remote ones.
///
/// An environment whose rewards keep state stays in the run, with a warning, because one process must compute them all.
///
/// # Errors
/// The broker is unreachable or rejects a request, or the run folder cannot be written.
pub async fn move_environments_to_workers(
    plan: &RunPlan,
    nats: &NatsPlan,
    renderer: &str,
    context: usize,
    folder: &RunFolder,
    components: Vec<MixtureComponent>,
) -> Result<(Vec<MixtureComponent>, Dispatcher), CommandError> {
    let identity = folder.broker_identity(|| BrokerIdentity {
        run: nats
            .run
            .clone()
            .unwrap_or_else(|| token(&format!("{}-{:08x}", plan.stem, rand::random::<u32>()))),
        salt: format!("{:032x}", rand::random::<u128>()),
    });
    let identity = identity.or_exit(ProcessExit::Config)?;
    let is_remote = |component: &MixtureComponent| component.environment.memory().is_none();
    let offers =
        plan.envs.iter().zip(&components).filter(|(_, component)| is_remote(component)).map(|(env, _)| {
            let fingerprint = folder.fingerprint(&env.name).context("an environment has no fingerprint")?;
            offer(plan, env, renderer, context, fingerprint)
        });
    let offers = offers.collect::<anyhow::Result<Vec<Offer>>>().or_exit(ProcessExit::Config)?;
    let run = nats.run.clone().unwrap_or(identity.run);
    let address = nats.broker().map_err(|KeyProblem { key, problem }| plan.wrong(&key, problem));
    let address = address.or_exit(ProcessExit::Config)?;
    let connection = BrokerOptions { inbox: Some(nats.names.inbox(&run)), ..address.clone() };
    let options = DispatcherOptions {
        run,
        salt: identity.salt,
        program: VERSION.into(),
        stream: nats.settings,
        ack_wait: nats.ack_wait,
        max_deliver: nats.max_deliver,
        max_ack_pending: plan.pipeline.scorers.get() as i64,
        audit_every: AUDIT_EVERY,
        buffer_bytes: nats.buffer_bytes,
    };
    let broker = Broker::connect_within(CONNECT_TIMEOUT, &connection, nats.names.clone()).await;
    let broker = broker.or_exit(ProcessExit::Unavailable)?;
    let dispatcher = Dispatcher::start(broker, options, offers).await.or_exit(ProcessExit::Unavailable)?;
    let hand_over = |component: MixtureComponent| {
        if !is_remote(&component) {
            tracing::warn!(
                environment = component.name,
                "not sent to workers: its rewards depend on each other and are computed in the run"
            );
            return component;
        }
        let environment = RemoteEnvironment::new(&component.name, component.environment, dispatcher.clone());
        MixtureComponent { environment: Arc::new(environment), ..component }
    };
    Ok((components.into_iter().map(hand_over).collect(), dispatcher))
}

fn offer(
    plan: &RunPlan,
    env: &EnvPlan,
    renderer: &str,
    context: usize,
    fingerprint: &EnvironmentFingerprint,
) -> anyhow::Result<Offer> {
    let sampling = &plan.sampling;
    let written_args = plan.resolved.model.as_ref().map(|model| model.template_args.clone());
    let config = ConfigFile {
        env: Some(EnvConfig { name: Some(env.name.clone()), weight: None, ..env.written.clone() }),
        trainer: file::TrainerConfig {
            seed: Some(env.options.seed),
            args: file::SamplingConfig {
                max_new_tokens: std::num::NonZeroUsize::new(sampling.max_tokens),
                temperature: Some(sampling.temperature),
                top_k: sampling.top_k.and_then(std::num::NonZeroUsize::new),
                top_p: Some(sampling.top_p),
            },
            ..file::TrainerConfig::default()
        },
        model: Some(file::BaseModelConfig {
            // A worker needs the tokenizer, which all variants of a model share.
            base_model: minds_models::split_variant(&plan.base_model).0.to_owned(),
            renderer_name: Some(renderer.to_owned()),
            // A renderer without a template writes what the template writes with these arguments.
            template_args: written_args.filter(|_| renderer == TEMPLATE).unwrap_or_default(),
            ..file::BaseModelConfig::default()
        }),
        tinker: file::TinkerConfig {
            base_url: Some(crate::config::plan::EMBEDDED.into()),
            ..file::TinkerConfig::default()
        },
        scorer: file::ScorerConfig {
            timeout_s: std::num::NonZeroU64::new(plan.score_timeout.as_secs()),
            ..file::ScorerConfig::default()
        },
        ..ConfigFile::default()
    };
    let spec =
        serde_json::to_value(OfferSpec { config, context }).context("failed to describe an environment")?;
    Ok(Offer { name: env.name.clone(), spec, version: version(fingerprint)? })
}

/// Identity of an environment's code and data. Equal versions give equal rewards.
fn version(fingerprint: &EnvironmentFingerprint) -> anyhow::Result<String> {
    Ok(hash(&[&serde_json::to_vec(fingerprint)?])[..16].to_owned())
}

/// Loads the environments that runs offer.
pub struct WorkerLoader {
    /// Paths of Python packages on this machine, by name of the environment.
    pub paths: BTreeMap<String, PathBuf>,
}

#[async_trait]
impl EnvironmentLoader for WorkerLoader {
    async fn load(&self, offer: &Offer) -> Result<MixtureComponent, String> {
        let offer = offer.clone();
        let path = self.paths.get(&offer.name).cloned();
        // Loading blocks: it starts processes and waits for them.
        let loading = tokio::task::spawn_blocking(move || load(&offer, path.as_deref()));
        let loaded = loading.await.map_err(|error| error.to_string())?;
        loaded.map_err(|error| format!("{error:#}"))
    }
}

fn load(offer: &Offer, path: Option<&Path>) -> anyhow::Result<MixtureComponent> {
    let OfferSpec { mut config, context } =
        serde_json::from_value(offer.spec.clone()).context("the run uses another release of minds-actors")?;
    if let Some(env) = &mut config.env {
        if let Some(path) = path {
            env.id = path.display().to_string();
        }
        // The path may only exist on the run's machine. Without it, a `.venv` or `python3` of this machine is used.
        env.python = env.python.take().filter(|python| python.exists());
        anyhow::ensure!(
            !is_path(&env.id) || Path::new(&env.id).exists() || Path::new(&format!("{}.py", env.id)).exists(),
            "its package {} does not exist on this machine: start the worker with `--env {}=PATH`",
            env.id,
            offer.name
        );
    }
    let plan = RunPlan::for_worker(config)?;
    let tokenizer = minds_models::tokenizer(
        &plan.base_model,
        &ModelCache::from_env(),
        &FetchSources::from_env(),
        &progress::bars(),
    )?;
    let (renderer, _) = super::renderer(&plan, tokenizer.clone())?;
    let env = plan.envs.first().context("the offer has no environment")?;
    for variable in env.options.pass_env.iter().filter(|name| std::env::var_os(name).is_none()) {
        tracing::warn!(
            environment = env.name,
            variable,
            "a variable of `pass_env` is not set on this worker"
        );
    }
    let parts = ModelParts { renderer: &renderer, tokenizer: &tokenizer, context };
    let component = component(&plan, env, &parts).map_err(|error| error.error)?;
    let own = version(&fingerprint(env, &*component.environment))?;
    anyhow::ensure!(
        own == offer.version,
        "its version on this worker is {own}, in the run it is {}: the code, the data or the program differ",
        offer.version
    );
    Ok(component)
}
