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
use minds_core::mean::MeanEstimate;
use minds_core::paired::PairedDifference;
use minds_core::record::EvaluationRecord;
use minds_stages::evaluator::{Evaluator, EvaluatorOptions, MeasuredComponent};
use minds_stages::pipeline::{PipelineOptions, ShadowStart};
use minds_stages::policy::{Policy, QueryBudget, ShadowOrigin};
use minds_stages::usage::usage_meter::{UsageCounts, UsageMeter};
use minds_tinker::types::FinishReason;
use serde_json::json;
use std::iter::successors;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Runs the command.
///
/// # Errors
/// The config or the checkpoint is wrong (2), the model or the service is unavailable (3), the evaluation could cost more
/// than its cap (4), the service denies the account a request (5), or an environment has no rollout with a reward (1).
pub fn run(command: &cli::EvalArgs) -> Result<(), CommandError> {
    if let [first, second] = &command.compare[..] {
        return compare(command, first, second);
    }
    let measured = measure(command, command.checkpoint.as_deref())?;
    let evaluation = measured.record();
    if let Some(line) = cost_line(&measured.usage).filter(|_| !command.json) {
        print_line!("{line}");
    }
    if command.json {
        print_line!("{}", measured.to_json());
    } else {
        show(&evaluation);
    }
    unmeasured(&evaluation).map_or(Ok(()), |name| Err(nothing_measured(name)).or_exit(ProcessExit::Failed))
}

/// Measures two weights on the same items, and compares them item by item.
fn compare(command: &cli::EvalArgs, first: &str, second: &str) -> Result<(), CommandError> {
    let [first, second] = [measure(command, Some(first))?, measure(command, Some(second))?];
    for measured in [&first, &second] {
        let evaluation = measured.record();
        if let Some(name) = unmeasured(&evaluation) {
            return Err(nothing_measured(name)).or_exit(ProcessExit::Failed);
        }
        if !command.json {
            print_line!("weights      {}", measured.weights);
            show(&evaluation);
        }
    }
    let mut differences = serde_json::Map::new();
    for (before, after) in first.components.iter().zip(&second.components) {
        let pairs: Vec<(f64, f64)> = before
            .rewards()
            .into_iter()
            .zip(after.rewards())
            .filter_map(|(before, after)| Some((before?, after?)))
            .collect();
        let PairedDifference { pairs, estimate, p } = PairedDifference::of(&pairs);
        let MeanEstimate { mean, error } = estimate;
        let interval = error.map(|error| [mean - 1.96 * error, mean + 1.96 * error]);
        if !command.json {
            let interval =
                interval.map(|[low, high]| format!(" [{low:+.3}, {high:+.3}]")).unwrap_or_default();
            print_line!(
                "difference   eval/{} {mean:+.3}{interval} over {pairs} items, p = {p:.3}",
                before.name
            );
        }
        let difference = json!({ "difference": mean, "interval": interval, "items": pairs, "p": p });
        differences.insert(before.name.clone(), difference);
    }
    if command.json {
        let [first, second] = [first.to_json(), second.to_json()];
        print_line!("{}", json!({ "first": first, "second": second, "differences": differences }));
    }
    Ok(())
}

/// Weights with the scores that they got.
struct MeasuredWeights {
    /// What the command line calls them.
    weights: String,
    path: Option<String>,
    step: u64,
    components: Vec<MeasuredComponent>,
    options: EvaluatorOptions,
    usage: UsageMeter,
}

impl MeasuredWeights {
    fn record(&self) -> EvaluationRecord {
        let summary = |of: &MeasuredComponent| (of.name.clone(), of.summary(&self.options));
        EvaluationRecord { step: self.step, environments: self.components.iter().map(summary).collect() }
    }

    fn to_json(&self) -> serde_json::Value {
        let metrics = self.record().numbers();
        let mut result = json!({ "checkpoint": self.path, "step": self.step, "metrics": metrics });
        if let Some(cost) = cost_json(&self.usage) {
            result["cost"] = cost;
        }
        result
    }
}

/// Measures one checkpoint, or the base model.
fn measure(command: &cli::EvalArgs, checkpoint: Option<&str>) -> Result<MeasuredWeights, CommandError> {
    let config = cli::RunArgs::for_config(command.config.clone(), command.set.clone(), command.seed)
        .at_stage(command.stage.clone());
    let mut plan = RunPlan::load(&config, &ProcessVariables::current()).or_exit(ProcessExit::Config)?;
    let EvaluatedWeights { step, path, state, states } = weights(checkpoint)?;
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
    components.iter_mut().for_each(|c| c.sampling.temperature = plan.eval_temperature);
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
        let evaluation = ready.unless_stopped(async { Ok(evaluator.measure(&policy).await) }).await;
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
    let components = evaluation.inspect_err(|_| {
        if let Some(line) = cost_line(&usage).filter(|_| !command.json) {
            print_line!("{line}");
        }
    })?;
    Ok(MeasuredWeights {
        weights: checkpoint.unwrap_or(BASE).to_owned(),
        path,
        step,
        components,
        options: plan.evaluation,
        usage,
    })
}

fn nothing_measured(name: &str) -> anyhow::Error {
    anyhow!("eval/{name} was not measured: no rollout has a reward; the warnings above say why")
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
        let passed = |k: &u64| Some(format!(", pass@{k} {:.3}", found.parts.get(&format!("pass@{k}"))?));
        let passes: String =
            successors(Some(1_u64), |k| k.checked_mul(2)).map_while(|k| passed(&k)).collect();
        print_line!(
            "eval {:<7} eval/{name} reward {:.3} [{:.3}, {:.3}]{passes} over {} episodes, {} without a reward",
            evaluation.step,
            known(found.reward),
            known(found.reward_low),
            known(found.reward_high),
            known(found.rollouts),
            known(found.reward_errors),
        );
    }
}

/// What stands for the base model where a checkpoint is named.
const BASE: &str = "base";

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
        None | Some(BASE) => Ok(EvaluatedWeights { step: 0, path: None, state: None, states: None }),
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
