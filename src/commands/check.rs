//! `minds-actors check`: what a config means, whether a run of it would start, and what it would ask of whom.

use super::say;
use crate::assemble;
use crate::check::{self, Found};
use crate::cli;
use crate::config::environments::EnvPlan;
use crate::config::plan::{RunPlan, ServicePlan};
use crate::config::{Variables, schema};
use crate::exit::{Exit, Fault, OrExit};
use crate::run_folder::Outlook;
use indicatif::HumanBytes;
use minds_stages::batcher::Staleness;
use serde_json::{Value, json};

/// Runs the command.
///
/// # Errors
/// A run of this config would not start: for its own sake (2), or for that of the model or the service (3).
pub fn run(command: &cli::Check) -> Result<(), Fault> {
    let Some(config) = command.config.clone() else {
        say!("{:#}", schema::schema());
        return Ok(());
    };
    let config = cli::Run {
        output_dir: command.output_dir.clone(),
        ..cli::Run::of(config, command.set.clone(), None)
    };
    let found = RunPlan::load(&config, &Variables::of_process())
        .or_exit(Exit::Config)
        .and_then(|plan| Found::look(plan, command.offline));
    match &found {
        Ok(found) if command.json => say!("{}", found.as_json()),
        Ok(found) => found.show(),
        Err(fault) if command.json => {
            say!("{}", json!({ "error": fault.to_string(), "exit_code": fault.exit as u8 }));
        }
        Err(_) => {}
    }
    found.map(drop)
}

impl Found {
    fn show(&self) {
        let Self { plan, .. } = self;
        let pace = &plan.pace;
        let verdict = if self.offline {
            "nothing is wrong with it; nobody was asked"
        } else {
            "a run of it would start"
        };
        say!("config       {}: {verdict}", plan.origin);
        say!("service      {}", service(plan));
        let reads = self.context.map(|n| format!(", reads {n} tokens")).unwrap_or_default();
        say!("model        {}: {}{reads}", plan.base_model, self.model);
        say!(
            "             renderer {}, LoRA rank {}, alpha {}",
            self.renderer,
            plan.lora.rank,
            plan.lora.alpha
        );
        for (env, share) in plan.envs.iter().zip(shares(&plan.envs)) {
            let share =
                if env.weight > 0.0 { format!("{:.0} %", 100.0 * share) } else { "evaluated only".into() };
            say!("environment  {}: {}, weight {}, {share}", env.name, env.options.id, env.weight);
        }
        let credits = assemble::options(plan).credits();
        say!("batch        {} groups of {}, {credits} credits", pace.groups_per_batch, plan.group_size);
        let lanes: Vec<String> = check::lanes(plan).iter().map(|(name, n)| format!("{name} {n}")).collect();
        say!("lanes        {}", lanes.join(", "));
        say!(
            "staleness    up to {} steps off policy, rollouts at most {} steps old; {}",
            pace.max_steps_off_policy,
            pace.max_staleness,
            match pace.staleness {
                Staleness::Wait => "the trainer waits for stragglers",
                Staleness::Drop => "older ones are dropped and played again",
            }
        );
        say!("loss         {}, learning rate {}", plan.loss.name(), plan.adam.learning_rate);
        say!(
            "tokens       at most {} sampled a step and turn, {} an answer",
            self.tokens.sampled_at_most,
            plan.sampling.max_tokens
        );
        if let Some(prompts) = &self.tokens.prompts {
            say!(
                "             prompts of {:.0} tokens on average, {} at most, in the first {} items",
                prompts.mean,
                prompts.longest,
                prompts.items
            );
        }
        for request in &self.requests {
            let count = request.count.map(|n| format!("{n} × ")).unwrap_or_default();
            let often = if request.every == 1 {
                "each step".into()
            } else {
                format!("every {} steps", request.every)
            };
            let note = if request.note.is_empty() { String::new() } else { format!(": {}", request.note) };
            say!("asks         {often}, {count}{}{note}", request.what);
        }
        if !self.memory.is_empty() {
            let parts: Vec<String> = self
                .memory
                .iter()
                .map(|share| format!("{} {}", share.what, HumanBytes(share.bytes)))
                .collect();
            say!("memory       about {}: {}", HumanBytes(check::sum(&self.memory)), parts.join(", "));
        }
        let every = |n: u64| if n == 0 { "never".to_owned() } else { format!("every {n} steps") };
        let steps = plan.max_steps;
        say!(
            "steps        {steps}; saved {} and at the end, evaluated {}{}",
            every(plan.save_every),
            every(plan.eval_every),
            if plan.eval_every == 0 { "" } else { " and at the end" }
        );
        say!("run folder   {}", self.folder_line());
        for tried in &self.tried {
            say!("tried        {tried}");
        }
        for warning in &self.warnings {
            say!("note         {warning}");
        }
    }

    fn folder_line(&self) -> String {
        match (&self.plan.output_dir, &self.folder) {
            (Some(path), Some(Outlook::GoesOn { step })) if *step >= self.plan.max_steps => {
                format!("{}: all its {step} steps are done", path.display())
            }
            (Some(path), Some(Outlook::GoesOn { step })) => {
                format!("{}: the run in it goes on after step {step}", path.display())
            }
            (Some(path), Some(Outlook::StartsOver)) => {
                format!("{}: the run in it saved no state and starts over", path.display())
            }
            (Some(path), _) => format!("{}: a new run", path.display()),
            (None, _) => format!("outputs/{}/<time>: a new run", self.plan.stem),
        }
    }

    fn as_json(&self) -> Value {
        let Self { plan, .. } = self;
        let service = match &plan.service {
            ServicePlan::Embedded(engine) => json!({
                "kind": "embedded",
                "threads": engine.threads,
                "kv_cache_bytes": engine.kv_bytes,
                "max_rows": engine.max_rows,
            }),
            ServicePlan::Remote(server) => json!({
                "kind": "server",
                "address": server.base_url,
                "has_key": server.api_key.is_some(),
            }),
        };
        let environments: Vec<Value> = plan
            .envs
            .iter()
            .zip(shares(&plan.envs))
            .map(|(env, share)| {
                json!({ "name": env.name, "id": env.options.id, "weight": env.weight, "share": share })
            })
            .collect();
        let (folder, goes_on) = match (&plan.output_dir, &self.folder) {
            (path, Some(Outlook::GoesOn { step })) => (path, Some(*step)),
            (path, _) => (path, None),
        };
        json!({
            "config": plan.origin,
            "offline": self.offline,
            "service": service,
            "model": { "base_model": plan.base_model, "place": self.model, "context": self.context,
                       "renderer": self.renderer, "lora": plan.lora },
            "environments": environments,
            "groups_per_batch": plan.pace.groups_per_batch,
            "group_size": plan.group_size,
            "credits": assemble::options(plan).credits(),
            "lanes": check::lanes(plan).into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            "max_steps_off_policy": plan.pace.max_steps_off_policy,
            "max_staleness": plan.pace.max_staleness,
            "loss": plan.loss.name(),
            "optim": plan.adam,
            "tokens": self.tokens,
            "requests": self.requests,
            "memory": self.memory,
            "steps": plan.max_steps,
            "save_every": plan.save_every,
            "eval_every": plan.eval_every,
            "run_folder": { "path": folder, "goes_on_after": goes_on },
            "tried": self.tried,
            "warnings": self.warnings,
        })
    }
}

/// The share of the training that each environment has.
fn shares(envs: &[EnvPlan]) -> impl Iterator<Item = f64> {
    let all: f64 = envs.iter().map(|env| env.weight).sum();
    envs.iter().map(move |env| env.weight / all)
}

fn service(plan: &RunPlan) -> String {
    match &plan.service {
        ServicePlan::Embedded(engine) => {
            format!(
                "embedded engine, {} threads, up to {} sequences at a time",
                engine.threads, engine.max_rows
            )
        }
        ServicePlan::Remote(server) => {
            let key = if server.api_key.is_some() { "with a key" } else { "without a key" };
            format!("{}, {key}", server.base_url)
        }
    }
}
