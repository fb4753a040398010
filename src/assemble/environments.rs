//! Builds environments from their plans: native ones from the registry, all others as Python packages.

use super::ModelService;
use crate::config::RunPlan;
use crate::config::choice::WeightsChoice;
use crate::config::environments::EnvPlan;
use crate::config::error::ConfigError;
use crate::config::rewards::OracleWeights;
use crate::config::supervised::DemonstrationPlan;
use crate::exit::{CommandError, OrExit, ProcessExit};
use minds_core::chat::{Renderer, Tokenizer};
use minds_core::environment::Environment;
use minds_core::sampling::SamplingParams;
use minds_environments::EnvError;
use minds_environments::demonstrations::DemonstrationSet;
use minds_environments::native;
use minds_environments::worker::{self, ModelProfile, PythonEnvironment};
use minds_stages::messages::MixtureComponent;
use std::sync::Arc;

/// Loads all environments of the plan.
///
/// # Errors
/// An environment or an argument is unknown or wrong.
pub fn components(plan: &RunPlan, ready: &ModelService) -> Result<Vec<MixtureComponent>, CommandError> {
    let parts =
        ModelParts { renderer: &ready.renderer, tokenizer: &ready.tokenizer, context: ready.info.context };
    plan.envs.iter().map(|env| component(plan, env, &parts)).collect()
}

/// What environments need to know of the model.
pub(super) struct ModelParts<'a> {
    /// Renders conversations into the model's tokens.
    pub(super) renderer: &'a Arc<dyn Renderer>,
    /// Converts text to the model's tokens and back.
    pub(super) tokenizer: &'a Arc<dyn Tokenizer>,
    /// Context in tokens, prompt and completion together.
    pub(super) context: usize,
}

/// Loads one environment.
///
/// # Errors
/// It or one of its arguments is unknown or wrong.
pub(super) fn component(
    plan: &RunPlan,
    env: &EnvPlan,
    model: &ModelParts<'_>,
) -> Result<MixtureComponent, CommandError> {
    let renderer = model.renderer;
    let mut sampling = SamplingParams { stop: renderer.stop(), ..plan.sampling.clone() };
    if env.weight == 0.0 {
        sampling.temperature = plan.eval_temperature;
    }
    let profile = || ModelProfile {
        renderer: renderer.clone(),
        tokenizer: model.tokenizer.clone(),
        sampling: sampling.clone(),
        context: model.context,
        base_model: plan.base_model.clone(),
    };
    let environment: Arc<dyn Environment> = match &env.demonstrations {
        Some(demonstrations) => {
            let set = demonstration_set(plan, demonstrations).or_exit(ProcessExit::Config)?;
            Arc::new(set.measuring(renderer.clone(), model.context))
        }
        None => match native(plan, env).or_exit(ProcessExit::Config)? {
            Some(environment) => environment,
            None => Arc::new(python(plan, env, profile()).or_exit(ProcessExit::Config)?),
        },
    };
    Ok(MixtureComponent {
        name: env.name.clone(),
        environment,
        renderer: renderer.clone(),
        group_size: plan.group_size,
        sampling,
        max_turns: 64,
        context: model.context,
        score_timeout: plan.score_timeout,
        weight: env.weight,
        evaluate_every: env.evaluate_every,
    })
}

/// The conversations of a supervised run.
///
/// # Errors
/// Their file cannot be read, or a row is wrong.
fn demonstration_set(plan: &RunPlan, of: &DemonstrationPlan) -> Result<DemonstrationSet, ConfigError> {
    let opened = DemonstrationSet::open(&of.options, of.split);
    opened.map_err(|error| plan.wrong("sft.data", format!("is wrong: {error}")))
}

/// Has a supervised run that counts epochs end after them.
///
/// # Errors
/// The file of its conversations cannot be read, or a row is wrong.
pub fn fit_epochs(plan: &mut RunPlan) -> Result<(), ConfigError> {
    let trained = plan.envs.iter().find(|env| env.weight > 0.0);
    if let Some(demonstrations) = trained.and_then(|env| env.demonstrations.clone()) {
        let rows = demonstration_set(plan, &demonstrations)?.items();
        plan.fit_epochs(rows);
    }
    Ok(())
}

/// The environment, if it is built in. A Python package is not loaded; keys that do not apply to it are rejected.
///
/// # Errors
/// An argument is unknown or wrong, or a key does not go with this kind of environment.
pub fn native(plan: &RunPlan, env: &EnvPlan) -> Result<Option<Arc<dyn Environment>>, ConfigError> {
    if let Some(demonstrations) = &env.demonstrations {
        return Ok(Some(Arc::new(demonstration_set(plan, demonstrations)?)));
    }
    let options = &env.options;
    if native::is_native(&options.id) {
        if let Some(key) = env.only_python {
            let problem = format!("is for Python packages, and the environment `{}` is none", env.name);
            return Err(plan.wrong(&format!("{}.{key}", env.key), problem));
        }
        let loaded = native::load(&options.id, &options.args, options.seed);
        return loaded.map(Some).map_err(|error| complaint(plan, env, &error));
    }
    if plan.oracle != WeightsChoice::Named(OracleWeights::Sampled) {
        let problem = format!(
            "cannot be used with the environment `{}`: rewards of Python environments ask the version that played; \
             leave it out",
            env.name
        );
        return Err(plan.wrong("scorer.policy", problem));
    }
    Ok(None)
}

/// Loads a Python package in worker processes.
///
/// # Errors
/// There is no such package, or it cannot be loaded.
pub fn python(
    plan: &RunPlan,
    env: &EnvPlan,
    profile: ModelProfile,
) -> Result<PythonEnvironment, ConfigError> {
    let opened = PythonEnvironment::open(env.options.clone(), profile);
    opened.map_err(|error| complaint(plan, env, &error))
}

/// Looks for a Python package without running its code.
///
/// # Errors
/// There is no such package.
pub fn find_python(plan: &RunPlan, env: &EnvPlan) -> Result<(), ConfigError> {
    worker::find_package(&env.options).map_err(|error| complaint(plan, env, &error))
}

fn complaint(plan: &RunPlan, env: &EnvPlan, error: &EnvError) -> ConfigError {
    let key = match error {
        EnvError::UnknownArg { key, .. } => format!("args.{key}"),
        EnvError::WrongArg { key, .. }
        | EnvError::NoEffect { key, .. }
        | EnvError::MissingArg { key, .. }
        | EnvError::UnusableArg { key, .. } => format!("args.{key}"),
        EnvError::Unknown { .. }
        | EnvError::NoFolder { .. }
        | EnvError::NoPackage { .. }
        | EnvError::ManyModules { .. }
        | EnvError::Python { .. }
        | EnvError::WorkerSetup(_)
        | EnvError::Data { .. } => "id".into(),
    };
    plan.wrong(&format!("{}.{key}", env.key), format!("is wrong: {error}"))
}
