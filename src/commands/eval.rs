//! `minds-actors eval`: measures weights on environments, without training them.

use super::{progress, say};
use crate::assemble;
use crate::cli;
use crate::config::RunPlan;
use crate::exit::{Exit, Fault, OrExit};
use crate::run_folder::last_checkpoint;
use anyhow::{Context as _, anyhow};
use minds_core::ids::PolicyVersion;
use minds_stages::evaluator::{Evaluation, Evaluator};
use minds_stages::policy::{Policy, Queries};
use minds_stages::retry::Retry;
use minds_tinker::types::FinishReason;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Runs the command.
///
/// # Errors
/// The config or the checkpoint is wrong (2), or the model or the service cannot be had (3).
pub fn run(command: &cli::Eval) -> Result<(), Fault> {
    let config = cli::Run {
        config: command.config.clone(),
        set: command.set.clone(),
        output_dir: None,
        max_steps: None,
        seed: command.seed,
    };
    let plan = RunPlan::load(&config, &|key| std::env::var(key).ok()).or_exit(Exit::Config)?;
    let Weights { step, path, states } = weights(command.checkpoint.as_deref())?;
    let ready = assemble::service(&plan, states, &progress::bars())?;
    let mut components = assemble::components(&plan, &ready.renderer)?;
    if components.iter().any(|c| c.weight == 0.0) {
        components.retain(|c| c.weight == 0.0);
    }
    let components = components.into_iter().map(Arc::new).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let evaluation = runtime.context("failed to start a runtime").or_exit(Exit::Failed)?.block_on(async {
        let sampler = match &path {
            Some(path) => {
                ready.service.sampler_from(path).await.with_context(|| format!("--checkpoint {path}"))
            }
            None => ready.service.base_sampler().await.context("failed to sample from the base model"),
        };
        let queries = Arc::new(Queries::default());
        let policy = Policy::new(PolicyVersion(step), sampler.or_exit(Exit::Unavailable)?, queries.clone());
        let judge = assemble::judge(&plan, &ready, &queries).await.or_exit(Exit::Unavailable)?;
        let options = assemble::evaluation(&plan);
        let evaluator = Evaluator::new(options, components, plan.seed, Retry::default(), judge);
        Ok(evaluator.evaluate(&policy).await)
    })?;
    ready.close(FinishReason::Success);
    if command.json {
        say!("{}", json!({ "checkpoint": path, "step": step, "metrics": evaluation.metrics }));
    } else {
        show(&evaluation);
    }
    Ok(())
}

/// Prints the rewards of an evaluation.
pub fn show(evaluation: &Evaluation) {
    let metrics = &evaluation.metrics;
    for name in metrics.keys().filter_map(|key| key.strip_suffix("/episodes")) {
        let get = |key: &str| metrics.get(&format!("{name}/{key}")).copied().unwrap_or(f64::NAN);
        say!(
            "eval {:<7} {name} reward {:.3} [{:.3}, {:.3}] over {} episodes, {} without a reward",
            evaluation.step,
            get("reward"),
            get("reward_low"),
            get("reward_high"),
            get("episodes"),
            get("missing"),
        );
    }
}

/// Which weights, and where an embedded engine finds them.
struct Weights {
    step: u64,
    path: Option<String>,
    states: Option<PathBuf>,
}

fn weights(written: Option<&str>) -> Result<Weights, Fault> {
    match written {
        None => Ok(Weights { step: 0, path: None, states: None }),
        Some(path) if path.starts_with("tinker://") => {
            Ok(Weights { step: 0, path: Some(path.into()), states: None })
        }
        Some(folder) => {
            let folder = Path::new(folder);
            let last = last_checkpoint(folder).or_exit(Exit::Config)?;
            let none = || {
                anyhow!("--checkpoint {}: the run has no checkpoint with sampler weights", folder.display())
            };
            let last = last.ok_or_else(none).or_exit(Exit::Config)?;
            let path = last.sampler_path.ok_or_else(none).or_exit(Exit::Config)?;
            Ok(Weights { step: last.step, path: Some(path), states: Some(folder.join("weights")) })
        }
    }
}
