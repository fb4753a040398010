//! `minds-actors eval`: measures weights on environments, without training them.

use super::cost::{cost_json, cost_line};
use super::print_line;
use crate::assemble::{self, StandaloneShadowTrainer};
use crate::cli;
use crate::config::rewards::ShadowFrom;
use crate::config::{ProcessVariables, RunPlan};
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::run_folder::last_checkpoint;
use anyhow::{Context as _, anyhow};
use minds_core::ids::PolicyVersion;
use minds_core::record::EvaluationRecord;
use minds_stages::evaluator::Evaluator;
use minds_stages::pipeline::{PipelineOptions, ShadowStart};
use minds_stages::policy::{Policy, QueryBudget, ShadowOrigin};
use minds_stages::usage::usage_meter::UsageCounts;
use minds_tinker::types::FinishReason;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Runs the command.
///
/// # Errors
/// The config or the checkpoint is wrong (2), the model or the service is unavailable (3), the evaluation could cost more
/// than its cap (4), the service denies the account a request (5), or an environment has no rollout with a reward (1).
pub fn run(command: &cli::EvalArgs) -> Result<(), CommandError> {
    let config = cli::RunArgs::for_config(command.config.clone(), command.set.clone(), command.seed)
        .at_stage(command.stage.clone());
    let mut plan = RunPlan::load(&config, &ProcessVariables::current()).or_exit(ProcessExit::Config)?;
    let EvaluatedWeights { step, path, state, states } = weights(command.checkpoint.as_deref())?;
    let scratch;
    let states = match states {
        // Shadow adapters are saved here while they measure.
        None => {
            scratch = tempfile::tempdir().context("failed to make a folder").or_exit(ProcessExit::Failed)?;
            Some(scratch.path().to_owned())
        }
        states => states,
    };
    // The cap holds for this evaluation by itself: it has no run folder that would know of others.
    let ready = assemble::metered_service(&mut plan, states, UsageCounts::default())?;
    if plan.fit_answers(ready.info.context)
        && let Some(note) = plan.warnings.last()
    {
        tracing::warn!("{note}");
    }
    let mut components = assemble::components(&plan, &ready)?;
    if components.iter().any(|c| c.weight == 0.0) {
        components.retain(|c| c.weight == 0.0);
    }
    let asked = components.iter().map(|c| &*c.environment);
    let shadow = assemble::shadow(&plan, &ready, asked, ShadowStart::Base);
    let follows = shadow.is_some() && plan.shadow_from == ShadowFrom::Policy;
    if let (true, Some(path), None) = (follows, &path, &state) {
        return Err(anyhow!(
            "--checkpoint {path}: these are weights to sample from, and the rewards ask what a training step would \
             change: name the run's folder, or use `--set shadow.from=base`"
        ))
        .or_exit(ProcessExit::Config);
    }
    let components = components.into_iter().map(Arc::new).collect();
    let evaluation = super::system().block_on(async {
        let sampler = match &path {
            Some(path) => {
                ready.service.sampler_from(path).await.with_context(|| format!("--checkpoint {path}"))
            }
            None => ready.service.base_sampler().await.context("failed to sample from the base model"),
        };
        let sampler = sampler.or_exit(ProcessExit::Unavailable)?;
        let queries = Arc::new(QueryBudget::new(plan.queries).with_service(ready.service.clone()));
        let origin = state.filter(|_| follows).map(|path| ShadowOrigin::kept(path, sampler.clone()));
        let policy = Policy::new(PolicyVersion(step), sampler, queries.clone(), origin);
        let judge = assemble::oracle(&plan, &ready).await.or_exit(ProcessExit::Unavailable)?;
        let measuring = shadow.map(|shadow| StandaloneShadowTrainer::start(shadow, &queries));
        let PipelineOptions { seed, retry, .. } = plan.pipeline;
        let evaluator = Evaluator::new(plan.evaluation, components, seed, retry, judge, &queries);
        let evaluation = ready.unless_stopped(async { Ok(evaluator.evaluate(&policy).await) }).await;
        if let Some(measuring) = measuring {
            measuring.close().await;
        }
        evaluation.context("the evaluation was stopped").or_exit(ProcessExit::Failed)
    });
    let usage = ready.usage.clone();
    ready.close(match &evaluation {
        Ok(_) => FinishReason::Success,
        Err(_) => FinishReason::Errored,
    });
    if let Some(line) = cost_line(&usage).filter(|_| !command.json) {
        print_line!("{line}");
    }
    let evaluation = evaluation?;
    if command.json {
        let mut result = json!({ "checkpoint": path, "step": step, "metrics": evaluation.numbers() });
        if let Some(cost) = cost_json(&usage) {
            result["cost"] = cost;
        }
        print_line!("{result}");
    } else {
        show(&evaluation);
    }
    match unmeasured(&evaluation) {
        None => Ok(()),
        Some(name) => {
            let why =
                anyhow!("eval/{name} was not measured: no rollout has a reward; the warnings above say why");
            Err(why).or_exit(ProcessExit::Failed)
        }
    }
}

/// The first environment without a rewarded rollout.
fn unmeasured(evaluation: &EvaluationRecord) -> Option<&str> {
    let none = evaluation.environments.iter().find(|(_, found)| found.rollouts == Some(0.0));
    none.map(|(name, _)| name.as_str())
}

/// Prints the rewards of an evaluation.
pub fn show(evaluation: &EvaluationRecord) {
    let known = |number: Option<f64>| number.unwrap_or(f64::NAN);
    for (name, found) in &evaluation.environments {
        print_line!(
            "eval {:<7} eval/{name} reward {:.3} [{:.3}, {:.3}] over {} episodes, {} without a reward",
            evaluation.step,
            known(found.reward),
            known(found.reward_low),
            known(found.reward_high),
            known(found.rollouts),
            known(found.reward_errors),
        );
    }
}

/// The evaluated weights, and where an embedded engine finds them.
struct EvaluatedWeights {
    step: u64,
    path: Option<String>,
    /// Path of the same weights for adapters, if they come from a run.
    state: Option<String>,
    states: Option<PathBuf>,
}

fn weights(written: Option<&str>) -> Result<EvaluatedWeights, CommandError> {
    match written {
        None => Ok(EvaluatedWeights { step: 0, path: None, state: None, states: None }),
        Some(path) if path.starts_with("tinker://") => {
            Ok(EvaluatedWeights { step: 0, path: Some(path.into()), state: None, states: None })
        }
        Some(folder) => {
            let folder = Path::new(folder);
            let last = last_checkpoint(folder).or_exit(ProcessExit::Config)?;
            let none = || {
                anyhow!("--checkpoint {}: the run has no checkpoint with sampler weights", folder.display())
            };
            let last = last.ok_or_else(none).or_exit(ProcessExit::Config)?;
            let path = last.sampler_path.ok_or_else(none).or_exit(ProcessExit::Config)?;
            let state = Some(last.state_path);
            let states = Some(folder.join("weights"));
            Ok(EvaluatedWeights { step: last.step, path: Some(path), state, states })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_without_a_single_reward_was_not_measured() {
        let evaluation = |episodes: f64| -> EvaluationRecord {
            let row =
                json!({"step": 1, "eval/a/episodes": 5, "eval/b/episodes": episodes, "eval/b/missing": 5});
            serde_json::from_value(row).unwrap()
        };
        assert_eq!(unmeasured(&evaluation(0.0)), Some("b"));
        assert_eq!(unmeasured(&evaluation(1.0)), None);
    }
}
