//! `minds-actors run`: trains from a config, or goes on with an unfinished run.

mod follow;
mod states;
mod totals;

use super::{progress, resume, say};
use crate::assemble::{self, Ready};
use crate::cli;
use crate::config::plan::ServicePlan;
use crate::config::{RunPlan, Variables};
use crate::dashboard::{self, Facts, Hub, Listening};
use crate::exit::{Exit, Fault, OrExit};
use crate::run_folder::RunFolder;
use crate::terminal::Bars;
use anyhow::Context as _;
use follow::{Follower, GOODBYE};
use minds_stages::line::{Line, StartFrom};
use minds_stages::meters::Meters;
use minds_tinker::types::FinishReason;
use states::States;
use std::sync::Arc;
use tokio::task::JoinSet;
use totals::Totals;

/// Runs the command.
///
/// # Errors
/// See [`Exit`].
pub fn run(command: &cli::Run) -> Result<(), Fault> {
    let mut plan = RunPlan::load(command, &Variables::of_process()).or_exit(Exit::Config)?;
    plan.can_train().or_exit(Exit::Config)?;
    let system = super::system();
    let mut folder = resume::open(&plan, &command.going)?;
    if is_done(&plan, &folder) {
        return Ok(());
    }
    let listening = Listening::take(&plan.metrics).or_exit(Exit::Unavailable)?;
    let ready = assemble::service(&plan, Some(folder.weights()), &progress::bars())?;
    if let Err(error) = assemble::check_samplers(&plan, &ready.info.name, ready.keeps_samplers) {
        ready.close(FinishReason::Errored);
        return Err(error).or_exit(Exit::Config);
    }
    plan.fit_answers(ready.info.context);
    let components = assemble::components(&plan, &ready)?;
    let changes = folder.compare(assemble::fingerprints(&plan, &components)).or_exit(Exit::Config)?;
    changes.iter().for_each(|change| tracing::warn!("{change}; the run continues with the current version"));
    let result = system.block_on(async {
        let place = folder.path().display().to_string();
        let setting_up = || format!("failed to set up the run in {place}");
        // Before anything is made on the service: weights that are not there end the run.
        let judge =
            assemble::judge(&plan, &ready).await.with_context(setting_up).or_exit(Exit::Unavailable)?;
        let reference = assemble::reference(&plan, &ready).await;
        let reference = reference.with_context(setting_up).or_exit(Exit::Unavailable)?;
        let training = resume::adapter(&plan, &ready, &mut folder).await;
        let training = training.with_context(setting_up).or_exit(Exit::Unavailable)?;
        if let Some(last) = folder.last() {
            assemble::recall(&components, &last.memories)?;
        }
        banner(&plan, &ready, &folder, listening.as_ref());
        let state = folder.last().map(|last| last.state_path.clone());
        let parts = assemble::parts(&plan, &ready, components, judge, reference, training, state.as_deref())
            .await
            .with_context(setting_up)
            .or_exit(Exit::Unavailable)?;
        let meters = parts.meters.clone();
        let starts_shadows =
            parts.shadow.as_ref().is_some_and(|shadow| matches!(shadow.from, StartFrom::Policy { .. }));
        let mut line = Line::start(&assemble::options(&plan), parts, folder.start()).or_exit(Exit::Config)?;
        let rows = folder.rows().or_exit(Exit::Config)?;
        let totals = Totals::after(&rows);
        let hub = Arc::new(hub(&plan, &ready, &folder, &line, meters));
        hub.earlier(rows, folder.evaluations().or_exit(Exit::Config)?, folder.checkpoints());
        let dashboard =
            listening.map(|listening| listening.serve(hub.clone())).transpose().or_exit(Exit::Failed)?;
        let states = States {
            service: ready.service.clone(),
            keep: plan.keep_states,
            ttl: plan.state_ttl.filter(|_| matches!(plan.service, ServicePlan::Remote(_))),
            pinned: plan.pinned(),
            starts_shadows,
            leaving: JoinSet::new(),
        };
        let bars = Bars::show(plan.max_steps, hub.first_step());
        let follower = Follower::new(&mut line, &mut folder, states, hub, bars, totals);
        let result = follower.follow(plan.deadline).await;
        if tokio::time::timeout(GOODBYE, line.close()).await.is_err() {
            tracing::debug!("what the run kept for itself on the service was not given up in time");
        }
        if let Some(dashboard) = dashboard {
            dashboard.close().await;
        }
        result
    });
    ready.close(match &result {
        Ok(()) => FinishReason::Success,
        Err(fault) if fault.exit == Exit::Interrupted => FinishReason::Interrupted,
        Err(_) => FinishReason::Errored,
    });
    result
}

/// Says so if no step is left.
fn is_done(plan: &RunPlan, folder: &RunFolder) -> bool {
    let step = folder.last().map_or(0, |last| last.step);
    let done = step >= plan.max_steps;
    if done {
        say!("{}: all {step} steps are done", folder.path().display());
    }
    done
}

/// The run as it is seen from outside.
fn hub(plan: &RunPlan, ready: &Ready, folder: &RunFolder, line: &Line, meters: Meters) -> Hub {
    let (facts, line) = (Facts::new(plan, ready, folder), line.observer().clone());
    let ends = plan.envs.iter().map(|env| (env.name.clone(), env.options.ends.clone())).collect();
    Hub::new(facts, line, meters, ready.client_meters.clone(), ends, ready.tokenizer.clone())
}

fn steps(number: u64) -> String {
    format!("{number} step{}", if number == 1 { "" } else { "s" })
}

fn banner(plan: &RunPlan, ready: &Ready, folder: &RunFolder, listening: Option<&Listening>) {
    let envs: Vec<String> = plan.envs.iter().map(|e| format!("{} ({})", e.name, e.weight)).collect();
    say!("service      {}", dashboard::service(plan));
    say!(
        "model        {}, renderer {}, LoRA rank {}",
        ready.info.base_model,
        ready.renderer.name(),
        plan.lora.rank
    );
    say!("environments {}", envs.join(", "));
    say!(
        "batch        {} groups of {}, up to {} off policy, {} credits",
        plan.pace.groups_per_batch,
        plan.group_size,
        steps(plan.pace.max_steps_off_policy),
        assemble::options(plan).credits()
    );
    say!("run folder   {}", folder.path().display());
    match listening {
        Some(listening) if listening.elsewhere => {
            say!("dashboard    {} (the usual port is taken)", listening.url());
        }
        Some(listening) => say!("dashboard    {}", listening.url()),
        None => {}
    }
    for warning in plan.warnings.iter().chain(&ready.warnings) {
        say!("note         {warning}");
    }
    match folder.last() {
        Some(last) => say!("goes on      after step {}, from {}", last.step, last.name),
        None if folder.past_rows() > 0 => say!(
            "starts over  {} steps; no state was saved, {} steps without one moved to metrics.past_000000.json",
            plan.max_steps,
            folder.past_rows()
        ),
        None => say!("starts       {} steps", plan.max_steps),
    }
}
