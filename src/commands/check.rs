//! `minds-actors check`: what a config means, whether a run of it would start, and which requests it would send.

use super::print_line;
use crate::check::CheckResult;
use crate::cli;
use crate::config::environments::EnvPlan;
use crate::config::plan::RunPlan;
use crate::config::stages::stages;
use crate::config::{ProcessVariables, schema};
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::run_folder::FolderOutlook;
use indicatif::HumanBytes;
use minds_core::service::SamplerWeights;
use minds_stages::batcher::StalenessHandling;
use minds_stages::pipeline::PipelineOptions;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Runs the command.
///
/// # Errors
/// A run would not start because of the config (2), or because of the model or the service (3).
pub fn run(command: &cli::CheckArgs) -> Result<(), CommandError> {
    let Some(config) = command.config.clone() else {
        print_line!("{:#}", schema::schema());
        return Ok(());
    };
    let stages = match command.stage {
        None => stages(&config).or_exit(ProcessExit::Config)?,
        Some(_) => Vec::new(),
    };
    if stages.is_empty() {
        return check(command, config, command.stage.clone(), command.output_dir.clone());
    }
    for stage in stages {
        if !command.json {
            print_line!("stage        {}", stage.name);
        }
        let folder = command.output_dir.as_deref().map(|all| stage.folder(all));
        check(command, config.clone(), Some(stage.name), folder)?;
    }
    Ok(())
}

/// Checks a run, or one stage of a config.
fn check(
    command: &cli::CheckArgs,
    config: PathBuf,
    stage: Option<String>,
    output_dir: Option<PathBuf>,
) -> Result<(), CommandError> {
    let config = cli::RunArgs {
        output_dir,
        ..cli::RunArgs::for_config(config, command.set.clone(), None).at_stage(stage)
    };
    let found = RunPlan::load(&config, &ProcessVariables::current())
        .or_exit(ProcessExit::Config)
        .and_then(|plan| CheckResult::run(plan, command.offline));
    match &found {
        Ok(found) if command.json => print_line!("{}", found.as_json()),
        Ok(found) => found.show(),
        Err(fault) if command.json => {
            print_line!("{}", json!({ "error": fault.to_string(), "exit_code": fault.exit as u8 }));
        }
        Err(_) => {}
    }
    found.map(drop)
}

impl CheckResult {
    fn show(&self) {
        let Self { plan, .. } = self;
        let PipelineOptions { batch, train, evaluate, .. } = &plan.pipeline;
        let status =
            if self.offline { "no errors found; no request was sent" } else { "a run of it would start" };
        print_line!("config       {}: {status}", plan.origin);
        print_line!("service      {}", plan.service.describe_settings());
        let reads = self.context.map(|n| format!(", reads {n} tokens")).unwrap_or_default();
        print_line!("model        {}: {}{reads}", plan.base_model, self.model);
        print_line!(
            "             renderer {}, LoRA rank {}, alpha {}",
            self.renderer,
            plan.lora.rank,
            plan.lora.alpha
        );
        if let Some(weights) = &self.first_weights {
            print_line!("             starts from {weights}");
        }
        if let Some(teacher) = &plan.teacher {
            print_line!("teacher      {}", teacher.describe(&plan.base_model));
        }
        for (env, share) in plan.envs.iter().zip(shares(&plan.envs)) {
            let share =
                if env.weight > 0.0 { format!("{:.0}%", 100.0 * share) } else { "evaluated only".into() };
            print_line!("environment  {}: {}, weight {}, {share}", env.name, env.options.id, env.weight);
        }
        let credits = plan.pipeline.credits();
        match plan.pipeline.is_supervised() {
            true => print_line!("batch        {} conversations", batch.groups_per_batch),
            false => print_line!(
                "batch        {} groups of {}, {credits} credits",
                batch.groups_per_batch,
                plan.group_size
            ),
        }
        let mailboxes: Vec<String> =
            crate::check::mailboxes(plan).iter().map(|(name, n)| format!("{name} {n}")).collect();
        print_line!("mailboxes    {}", mailboxes.join(", "));
        if !plan.pipeline.is_supervised() {
            print_line!(
                "staleness    {}, at most {}; {}",
                mean_staleness(&plan.pipeline),
                plan.pipeline.max_staleness,
                match batch.staleness {
                    StalenessHandling::Wait => "the trainer waits for stragglers",
                    StalenessHandling::Drop => "staler ones are dropped and resampled",
                }
            );
        }
        if train.weights == SamplerWeights::InFlight {
            print_line!("weights      in flight: rollouts follow those in training while they are sampled");
        }
        print_line!("loss         {}, learning rate {}", train.loss.name(), train.adam.learning_rate);
        if !plan.pipeline.is_supervised() {
            print_line!(
                "tokens       sampled: at most {} per completion, {} per step of rollouts with one turn",
                plan.sampling.max_tokens,
                self.tokens.sampled_at_most
            );
        }
        if let Some(prompts) = &self.tokens.prompts {
            print_line!(
                "             prompts of {:.0} tokens on average, {} at most, in the first {} items",
                prompts.mean,
                prompts.longest,
                prompts.items
            );
        }
        if let Some(forecast) = &self.forecast {
            print_line!("cost         {}", forecast.line());
        }
        for request in &self.requests {
            let count = request.count.map(|n| format!("{n} × ")).unwrap_or_default();
            let often = if request.every == 1 {
                "each step".into()
            } else {
                format!("every {} steps", request.every)
            };
            let note = if request.note.is_empty() { String::new() } else { format!(": {}", request.note) };
            print_line!("requests     {often}, {count}{}{note}", request.what);
        }
        if !self.memory.is_empty() {
            let parts: Vec<String> = self
                .memory
                .iter()
                .map(|share| format!("{} {}", share.what, HumanBytes(share.bytes)))
                .collect();
            print_line!(
                "memory       about {}: {}",
                HumanBytes(crate::check::total_bytes(&self.memory)),
                parts.join(", ")
            );
        }
        let every = |n: u64| if n == 0 { "never".to_owned() } else { format!("every {n} steps") };
        let steps = train.max_steps;
        let eval_every = evaluate.map_or(0, |evaluation| evaluation.every.get());
        print_line!(
            "steps        {steps}; saved {} and at the end, evaluated {}{}",
            every(train.save_every),
            every(eval_every),
            if eval_every == 0 { "" } else { " and at the end" }
        );
        print_line!("run folder   {}", self.folder_line());
        print_line!("             keeps {} of each step", plan.rollouts.describe());
        for tried in &self.tried {
            print_line!("tried        {tried}");
        }
        for warning in &self.warnings {
            print_line!("note         {warning}");
        }
    }

    fn folder_line(&self) -> String {
        match (&self.plan.output_dir, &self.folder) {
            (Some(path), Some(FolderOutlook::Resumes { step }))
                if *step >= self.plan.pipeline.train.max_steps =>
            {
                format!("{}: all its {step} steps are done", path.display())
            }
            (Some(path), Some(FolderOutlook::Resumes { step })) => {
                format!("{}: its run resumes after step {step}", path.display())
            }
            (Some(path), Some(FolderOutlook::Restarts)) => {
                format!("{}: its run saved no checkpoint and starts over", path.display())
            }
            (Some(path), _) => format!("{}: a new run", path.display()),
            (None, _) => format!("outputs/{}/<time>: a new run", self.plan.stem),
        }
    }

    fn as_json(&self) -> Value {
        let Self { plan, .. } = self;
        let environments: Vec<Value> = plan
            .envs
            .iter()
            .zip(shares(&plan.envs))
            .map(|(env, share)| {
                json!({ "name": env.name, "id": env.options.id, "weight": env.weight, "share": share })
            })
            .collect();
        let (folder, resumes_after) = match (&plan.output_dir, &self.folder) {
            (path, Some(FolderOutlook::Resumes { step })) => (path, Some(*step)),
            (path, _) => (path, None),
        };
        json!({
            "config": plan.origin,
            "offline": self.offline,
            "service": plan.service.to_json(),
            "model": { "base_model": plan.base_model, "place": self.model, "context": self.context,
                       "renderer": self.renderer, "lora": plan.lora,
                       "from": self.first_weights.as_ref().map(ToString::to_string) },
            "environments": environments,
            "groups_per_batch": plan.pipeline.batch.groups_per_batch,
            "group_size": plan.group_size,
            "credits": plan.pipeline.credits(),
            "mailboxes": crate::check::mailboxes(plan).into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            "max_steps_off_policy": plan.pipeline.max_steps_off_policy,
            "max_staleness": plan.pipeline.max_staleness,
            "weights": plan.pipeline.train.weights,
            "loss": plan.pipeline.train.loss.name(),
            "optim": plan.pipeline.train.adam,
            "tokens": self.tokens,
            "forecast": self.forecast,
            "requests": self.requests,
            "memory": self.memory,
            "steps": plan.pipeline.train.max_steps,
            "save_every": plan.pipeline.train.save_every,
            "eval_every": plan.pipeline.evaluate.map_or(0, |evaluation| evaluation.every.get()),
            "run_folder": { "path": folder, "resumes_after": resumes_after },
            "rollouts": plan.rollouts,
            "tried": self.tried,
            "warnings": self.warnings,
        })
    }
}

/// The staleness of rollouts that all take the same time, in steps.
fn mean_staleness(options: &PipelineOptions) -> String {
    let steps = match options.max_steps_off_policy {
        1 => "1 step".to_owned(),
        steps => format!("{steps} steps"),
    };
    let unpublished = match options.train.publish_every.get() {
        1 => String::new(),
        every => format!(" plus up to {} until the weights are published", every - 1),
    };
    match options.train.weights {
        SamplerWeights::Snapshot => format!("about {steps} on average{unpublished}"),
        SamplerWeights::InFlight => format!(
            "about {steps} on average over the tokens, {} for the oldest weights of a rollout{unpublished}",
            options.batches_ahead()
        ),
    }
}

/// The share of the training that each environment has.
fn shares(envs: &[EnvPlan]) -> impl Iterator<Item = f64> {
    let all: f64 = envs.iter().map(|env| env.weight).sum();
    envs.iter().map(move |env| env.weight / all)
}
