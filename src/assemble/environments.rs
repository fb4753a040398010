//! Environments by their plans: native ones from the registry, all others as Python packages.

use super::Ready;
use crate::config::environments::EnvPlan;
use crate::config::plan::{Judge, RunPlan};
use crate::exit::{Exit, Fault, OrExit};
use anyhow::{Context as _, anyhow};
use minds_core::environment::Environment;
use minds_core::sampling::SamplingParams;
use minds_environments::registry;
use minds_environments::worker::{PythonEnvironment, Voice};
use minds_stages::parcels::Component;
use std::sync::Arc;

/// Loads the environments.
///
/// # Errors
/// An environment or an argument is unknown or wrong.
pub fn components(plan: &RunPlan, ready: &Ready) -> Result<Vec<Component>, Fault> {
    plan.envs.iter().map(|env| component(plan, env, ready)).collect()
}

fn component(plan: &RunPlan, env: &EnvPlan, ready: &Ready) -> Result<Component, Fault> {
    let renderer = &ready.renderer;
    let sampling = SamplingParams { stop: renderer.stop(), ..plan.sampling.clone() };
    let options = &env.options;
    let complaint = || format!("{}: the environment `{}`", plan.origin, env.name);
    let environment: Arc<dyn Environment> = if registry::is_native(&options.id) {
        if let Some(key) = env.only_python {
            return Err(anyhow!("`{key}` is for Python packages, and this environment is none"))
                .with_context(complaint)
                .or_exit(Exit::Config);
        }
        registry::load(&options.id, &options.args, options.seed)
            .with_context(complaint)
            .or_exit(Exit::Config)?
    } else {
        if plan.judge != Judge::Sampled {
            return Err(anyhow!(
                "rewards of Python environments ask the version that played: leave `scorer.policy` out"
            ))
            .with_context(complaint)
            .or_exit(Exit::Config);
        }
        let voice = Voice {
            renderer: renderer.clone(),
            tokenizer: ready.tokenizer.clone(),
            sampling: sampling.clone(),
            context: ready.info.context,
            base_model: plan.base_model.clone(),
        };
        let opened = PythonEnvironment::open(options.clone(), voice);
        Arc::new(opened.with_context(complaint).or_exit(Exit::Config)?)
    };
    Ok(Component {
        name: env.name.clone(),
        environment,
        renderer: renderer.clone(),
        group_size: plan.group_size,
        sampling,
        max_turns: 64,
        score_timeout: plan.score_timeout,
        weight: env.weight,
    })
}
