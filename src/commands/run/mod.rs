//! `minds-actors run`: trains from a config, or resumes an unfinished run.

mod monitor;
mod retention;
mod spending;
mod summary;

use super::signals::{SignalRequest, Signals};
use super::{print_line, resume};
use crate::assemble::{self, ComparedEnvironment, FirstWeights, ModelService};
use crate::cli;
use crate::config::environments::EnvPlan;
use crate::config::metrics::MetricsPlan;
use crate::config::stages::stages;
use crate::config::{ProcessVariables, RunPlan, mask};
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::run_folder::{CheckpointRecord, RunFolder};
use crate::terminal::ProgressBars;
use crate::tracking::{self, RunTrackers, TrackedOutcome, TrackedRun, TrackerPatience};
use anyhow::Context as _;
use minds_observe::dashboard::{DashboardListener, RunInfo, RunView};
use minds_stages::pipeline::{Pipeline, ShadowStart};
use minds_stages::remote::Dispatcher;
use minds_tinker::types::FinishReason;
use monitor::{RunMonitor, SHUTDOWN_TIMEOUT};
use retention::{CheckpointRetention, expiring_paths};
use spending::Spending;
use std::sync::Arc;
use std::time::Duration;
use summary::RunSummary;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Runs the command: one run, or the stages of a config until one of them is stopped.
///
/// # Errors
/// See [`ProcessExit`].
pub fn run(command: &cli::RunArgs) -> Result<(), CommandError> {
    let stages = match command.stage {
        None => stages(&command.config).or_exit(ProcessExit::Config)?,
        Some(_) => Vec::new(),
    };
    let Some(first) = stages.first() else { return train(command, Duration::ZERO).map(drop) };
    let begun = Instant::now();
    let first = command.clone().at_stage(Some(first.name.clone()));
    let all = RunPlan::load(&first, &ProcessVariables::current()).or_exit(ProcessExit::Config)?;
    let all = resume::folder_of_stages(&all, &command.resume_args).or_exit(ProcessExit::Config)?;
    let mut before = None;
    for stage in &stages {
        print_line!("stage        {} of {}, {}", stage.index + 1, stages.len(), stage.name);
        let folder = stage.folder(&all);
        let command = cli::RunArgs {
            output_dir: Some(folder.clone()),
            from: before.replace(folder),
            resume_args: cli::ResumeArgs {
                resume: command.resume_args.resume.within(),
                ..command.resume_args.clone()
            },
            ..command.clone().at_stage(Some(stage.name.clone()))
        };
        if train(&command, begun.elapsed())? == RunEnd::Stopped {
            break;
        }
    }
    Ok(())
}

/// How a run ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunEnd {
    /// All steps are done.
    Done,
    /// It was stopped before.
    Stopped,
}

/// Trains one run. The stages before have taken `spent` of its deadline.
fn train(command: &cli::RunArgs, spent: Duration) -> Result<RunEnd, CommandError> {
    let mut plan = RunPlan::load(command, &ProcessVariables::current()).or_exit(ProcessExit::Config)?;
    plan.deadline = plan.deadline.map(|deadline| deadline.saturating_sub(spent));
    plan.can_train().or_exit(ProcessExit::Config)?;
    plan.broker().or_exit(ProcessExit::Config)?;
    assemble::fit_epochs(&mut plan).or_exit(ProcessExit::Config)?;
    tracking::find_packages(&plan.tracking)
        .map_err(|problem| plan.wrong("log.to", problem))
        .or_exit(ProcessExit::Config)?;
    let system = super::system();
    let mut folder = resume::open(&plan, &command.resume_args)?;
    if is_done(&plan, &folder) {
        return Ok(RunEnd::Done);
    }
    // A run that resumes has weights of its own, and does not need those that it started from.
    let first_weights = match folder.last() {
        None => FirstWeights::find(&plan).or_exit(ProcessExit::Config)?,
        Some(_) => None,
    };
    let MetricsPlan { addr, is_written, token } = plan.metrics.clone();
    let listening = addr.map(|addr| DashboardListener::bind(addr, is_written, token));
    let listening = listening.transpose().or_exit(ProcessExit::Unavailable)?;
    let used = folder.usage().or_exit(ProcessExit::Config)?;
    let ready = assemble::metered_service(&mut plan, Some(folder.weights()), used)?;
    if let Err(error) = assemble::check_samplers(&plan, &ready.info.name, ready.keeps_samplers) {
        ready.close(FinishReason::Errored);
        return Err(error).or_exit(ProcessExit::Config);
    }
    plan.fit_answers(ready.info.context);
    let components = assemble::components(&plan, &ready)?;
    let compared: Vec<ComparedEnvironment<'_>> = components
        .iter()
        .map(|c| ComparedEnvironment { name: &c.name, trained: c.weight > 0.0, environment: &*c.environment })
        .collect();
    plan.warnings.extend(assemble::contamination(&compared));
    let changes = folder.compare(assemble::fingerprints(&plan, &components)).or_exit(ProcessExit::Config)?;
    changes.iter().for_each(|change| tracing::warn!("{change}; the run continues with the current version"));
    let teacher = assemble::teacher_service(&plan, &ready)?;
    let result = system.block_on(async {
        let place = folder.path().display().to_string();
        let setting_up = || format!("failed to set up the run in {place}");
        // Before anything is created on the service: missing weights end the run.
        let judge = assemble::oracle(&plan, &ready)
            .await
            .with_context(setting_up)
            .or_exit(ProcessExit::Unavailable)?;
        let reference = assemble::reference(&plan, &ready, teacher.as_ref()).await;
        let reference = reference.with_context(setting_up).or_exit(ProcessExit::Unavailable)?;
        let training = resume::adapter(&plan, &ready, &mut folder, first_weights.as_ref()).await;
        let training = training.with_context(setting_up).or_exit(ProcessExit::Unavailable)?;
        if let Some(last) = folder.last() {
            assemble::restore_memories(&components, &last.memories)?;
        }
        let (components, dispatcher) = match &plan.nats {
            None => (components, None),
            Some(nats) => {
                let renderer = ready.renderer.name();
                let context = ready.info.context;
                let moved = assemble::move_environments_to_workers(
                    &plan, nats, renderer, context, &folder, components,
                );
                let (components, dispatcher) = moved.await?;
                (components, Some(dispatcher))
            }
        };
        banner(&plan, &ready, &folder, listening.as_ref());
        if let Some(weights) = &first_weights {
            print_line!("from         {weights}");
        }
        if let Some(dispatcher) = &dispatcher {
            print_line!("workers      {}, run {}", dispatcher.broker().address(), dispatcher.run());
        }
        let parts = assemble::parts(&plan, &ready, components, judge, reference, training, folder.last())
            .await
            .with_context(setting_up)
            .or_exit(ProcessExit::Unavailable)?;
        let starts_shadows =
            parts.shadow.as_ref().is_some_and(|shadow| matches!(shadow.from, ShadowStart::Policy { .. }));
        let mut pipeline =
            Pipeline::start(&plan.pipeline, parts, folder.start()).or_exit(ProcessExit::Config)?;
        let rows = folder.rows().or_exit(ProcessExit::Config)?;
        let summary = RunSummary::after(&rows);
        let view = Arc::new(run_view(&plan, &ready, &folder, &pipeline, dispatcher.clone()));
        let evaluations = folder.evaluations().or_exit(ProcessExit::Config)?;
        view.restore(rows, evaluations, folder.checkpoints().iter().map(CheckpointRecord::summary).collect());
        let dashboard = listening
            .map(|listening| listening.serve(view.clone(), ready.client_meters.collectors()))
            .transpose()
            .or_exit(ProcessExit::Failed)?;
        let retention = CheckpointRetention {
            service: ready.service.clone(),
            keep: plan.keep_states,
            ttl: plan.state_ttl.filter(|_| plan.service.expires_checkpoints()),
            newest: folder.last().map_or_else(Vec::new, |last| {
                expiring_paths(&last.name, &last.state_path, last.sampler_path.as_ref())
            }),
            pinned: plan.pinned(),
            starts_shadows,
            deletions: JoinSet::new(),
        };
        let bars = ProgressBars::show(plan.pipeline.train.max_steps, view.run_info.first_step);
        let spending = Spending::new(ready.usage.clone(), plan.budget.max_usd);
        let trackers = RunTrackers::start(&plan.tracking, &tracked(&plan, &folder)?, TrackerPatience::Run);
        let follower = RunMonitor::new(&mut pipeline, &mut folder, retention, view, bars, summary, spending);
        let result = follower.follow(plan.deadline).await;
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, pipeline.close()).await.is_err() {
            tracing::debug!("temporary weights on the service were not deleted in time");
        }
        if let Some(dispatcher) = dispatcher {
            let finished = folder.last().is_some_and(|last| last.step >= plan.pipeline.train.max_steps);
            dispatcher.close(finished).await;
        }
        finish_tracking(&plan, trackers, &result).await;
        if let Some(dashboard) = dashboard {
            dashboard.close().await;
        }
        result
    });
    let reason = match &result {
        Ok(()) => FinishReason::Success,
        Err(fault) if matches!(fault.exit, ProcessExit::Interrupted | ProcessExit::Budget) => {
            FinishReason::Interrupted
        }
        Err(_) => FinishReason::Errored,
    };
    for service in teacher.into_iter().chain([ready]) {
        service.close(reason);
    }
    let steps = folder.last().map_or(0, |last| last.step);
    result.map(|()| match steps >= plan.pipeline.train.max_steps {
        true => RunEnd::Done,
        false => RunEnd::Stopped,
    })
}

/// The run as trackers show it.
fn tracked(plan: &RunPlan, folder: &RunFolder) -> Result<TrackedRun, CommandError> {
    let config = toml::Table::try_from(&plan.resolved).context("failed to write the config for trackers");
    let place = folder.path().file_name().unwrap_or_default().display();
    Ok(TrackedRun {
        folder: folder.path().to_owned(),
        name: format!("{}-{place}", plan.stem),
        config: config.or_exit(ProcessExit::Failed)?,
    })
}

/// Reports the outcome to trackers, and waits a limited time until they have sent everything; after a second signal it
/// does neither.
async fn finish_tracking(plan: &RunPlan, trackers: RunTrackers, result: &Result<(), CommandError>) {
    if plan.tracking.to.is_empty() {
        return;
    }
    let outcome = match result {
        Ok(()) => TrackedOutcome::Finished,
        Err(fault) if fault.exit == ProcessExit::Interrupted => return,
        Err(fault) if fault.exit == ProcessExit::Budget => TrackedOutcome::Finished,
        Err(_) => TrackedOutcome::Failed,
    };
    let limit = plan.tracking.timeout;
    print_line!("tracking     {}: the rest is sent within {} s", plan.tracking.names(), limit.as_secs_f64());
    let stop = async {
        match Signals::listen() {
            Ok(mut signals) => while signals.next().await != SignalRequest::Stop {},
            Err(_) => std::future::pending().await,
        }
    };
    drop(trackers.finish(outcome, Some(limit), stop).await);
}

/// Whether no step is left; prints a message if so.
fn is_done(plan: &RunPlan, folder: &RunFolder) -> bool {
    let step = folder.last().map_or(0, |last| last.step);
    let done = step >= plan.pipeline.train.max_steps;
    if done {
        print_line!("{}: all {step} steps are done", folder.path().display());
    }
    done
}

/// The view of the run for the dashboard.
fn run_view(
    plan: &RunPlan,
    ready: &ModelService,
    folder: &RunFolder,
    pipeline: &Pipeline,
    workers: Option<Dispatcher>,
) -> RunView {
    let run_info = run_info(plan, ready, folder);
    let pipeline = pipeline.observer().clone();
    let exits = plan.envs.iter().map(|env| (env.name.clone(), env.options.worker_exits.clone())).collect();
    RunView::new(run_info, pipeline, exits, workers, ready.tokenizer.clone())
}

/// The facts of a run that is about to start.
fn run_info(plan: &RunPlan, ready: &ModelService, folder: &RunFolder) -> RunInfo {
    RunInfo {
        name: plan.stem.clone(),
        folder: folder.path().to_owned(),
        version: env!("CARGO_PKG_VERSION"),
        commit: option_env!("MINDS_COMMIT"),
        service: plan.service.describe(),
        base_model: ready.info.base_model.clone(),
        renderer: ready.renderer.name().to_owned(),
        loss: plan.pipeline.train.loss.name(),
        environments: plan.envs.iter().map(EnvPlan::share).collect(),
        steps: plan.pipeline.train.max_steps,
        first_step: folder.last().map_or(0, |last| last.step),
        started: jiff::Timestamp::now().as_duration().as_secs_f64(),
        groups_per_batch: plan.pipeline.batch.groups_per_batch.get(),
        group_size: plan.group_size.get(),
        batches_ahead: plan.pipeline.batches_ahead(),
        weights: plan.pipeline.train.weights,
        max_staleness: plan.pipeline.max_staleness,
        staleness: plan.pipeline.batch.staleness,
        credits: plan.pipeline.credits(),
        scorers: plan.pipeline.scorers.get(),
        rollouts: plan.rollouts,
        config: mask::masked(&plan.resolved),
        warnings: plan.warnings.iter().chain(&ready.warnings).cloned().collect(),
    }
}

fn steps(number: u64) -> String {
    format!("{number} step{}", if number == 1 { "" } else { "s" })
}

fn banner(plan: &RunPlan, ready: &ModelService, folder: &RunFolder, listening: Option<&DashboardListener>) {
    let envs: Vec<String> = plan.envs.iter().map(|e| format!("{} ({})", e.name, e.weight)).collect();
    print_line!("service      {}", plan.service.describe());
    print_line!(
        "model        {}, renderer {}, LoRA rank {}",
        ready.info.base_model,
        ready.renderer.name(),
        plan.lora.rank
    );
    print_line!("environments {}", envs.join(", "));
    match plan.pipeline.is_supervised() {
        true => print_line!("batch        {} conversations", plan.pipeline.batch.groups_per_batch),
        false => print_line!(
            "batch        {} groups of {}, up to {} off policy, {} credits",
            plan.pipeline.batch.groups_per_batch,
            plan.group_size,
            steps(plan.pipeline.max_steps_off_policy),
            plan.pipeline.credits()
        ),
    }
    if let Some(teacher) = &plan.teacher {
        print_line!("teacher      {}", teacher.describe(&plan.base_model));
    }
    print_line!("run folder   {}", folder.path().display());
    if !plan.tracking.to.is_empty() {
        print_line!("tracking     {}, project {}", plan.tracking.names(), plan.tracking.project);
    }
    match listening {
        Some(listening) if listening.elsewhere => {
            print_line!("dashboard    {} (the usual port is in use)", listening.url());
        }
        Some(listening) => print_line!("dashboard    {}", listening.url()),
        None => {}
    }
    for warning in plan.warnings.iter().chain(&ready.warnings) {
        print_line!("note         {warning}");
    }
    match folder.last() {
        Some(last) => print_line!("resumed      at step {} from checkpoint {}", last.step, last.name),
        None if folder.past_rows() > 0 => print_line!(
            "restarts     {} steps; no checkpoint was found, {} steps moved to metrics.past_000000.json",
            plan.pipeline.train.max_steps,
            folder.past_rows()
        ),
        None => print_line!("starts       {} steps", plan.pipeline.train.max_steps),
    }
}
