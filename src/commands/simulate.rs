//! `minds-actors simulate`: runs a config's pipeline in virtual time and reports how close it comes to its bound.

use super::print_line;
use crate::cli;
use crate::config::{ProcessVariables, RunPlan};
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::simulate::{self, EventFile, EventLog, SimulationSummary};
use crate::terminal::{self, number_or_dash};
use anyhow::Context as _;

/// Runs the command.
///
/// # Errors
/// The config is wrong or the file of events cannot be created (2), or the run failed or events are missing (1).
pub fn run(command: &cli::SimulateArgs) -> Result<(), CommandError> {
    let config = cli::RunArgs::for_config(command.config.clone(), command.set.clone(), command.seed)
        .at_stage(command.stage.clone());
    let mut plan = RunPlan::load(&config, &ProcessVariables::current()).or_exit(ProcessExit::Config)?;
    plan.can_train().or_exit(ProcessExit::Config)?;
    if plan.pipeline.is_supervised() {
        let problem =
            "makes the run imitate conversations, which takes passes alone: there is nothing to simulate";
        return Err(plan.wrong("sft", problem)).or_exit(ProcessExit::Config);
    }
    if let Some(steps) = command.steps {
        plan.simulate.steps = steps;
    }
    let events = command.events.as_deref().map(EventFile::create).transpose().or_exit(ProcessExit::Config)?;
    let to = events.clone();
    let summary = system().block_on(async { simulate::run(&plan, EventLog::new(to)).await });
    let summary = summary.context("the simulated run failed").or_exit(ProcessExit::Failed)?;
    if command.json {
        print_line!("{}", summary.to_json());
    } else {
        show(&plan, &summary);
    }
    events.as_ref().map_or(Ok(()), EventFile::finish).or_exit(ProcessExit::Failed)?;
    terminal::written().or_exit(ProcessExit::Failed)
}

/// The actor system, on one thread and with a clock that jumps to the next event.
fn system() -> actix::SystemRunner {
    actix::System::with_tokio_rt(|| {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("the operating system refused a runtime")
    })
}

/// Efficiency above which the drawn times explain it, and not rounding.
const NOTED_EFFICIENCY: f64 = 1.005;

fn show(plan: &RunPlan, summary: &SimulationSummary) {
    let credits = plan.pipeline.credits();
    print_line!(
        "simulated    {} steps with {} groups of {} rollouts and {credits} credits, in {:.0} s of virtual time",
        summary.steps,
        plan.pipeline.batch.groups_per_batch,
        plan.group_size,
        summary.seconds
    );
    print_line!(
        "step         {:.3} s, {} samples/s",
        summary.step_s,
        number_or_dash(summary.samples_per_s, 2)
    );
    let parts: Vec<String> =
        summary.bound.named().iter().map(|(name, s)| format!("{name} {s:.3} s")).collect();
    let cause = summary.bound.cause().map(|cause| format!(", limited by {cause}")).unwrap_or_default();
    print_line!(
        "bound        a step takes at least {:.3} s on average{cause} ({})",
        summary.bound.step(),
        parts.join(", ")
    );
    if let Some(slots) = summary.job_slots {
        print_line!(
            "workers      {slots} rewards at a time; {} jobs were delivered again",
            summary.redelivered
        );
    }
    print_line!(
        "efficiency   {} (the bound divided by the time of a step)",
        number_or_dash(summary.efficiency(), 3)
    );
    print_line!(
        "training     {}% of the time",
        number_or_dash(summary.training_share.map(|share| 100.0 * share), 0)
    );
    print_line!(
        "staleness    {:.2} steps on average ({:.2} by token), {} for half of the groups, {} for 99 of 100, {} at most",
        summary.staleness.mean(),
        summary.staleness_of_tokens,
        summary.staleness.percentile(0.5),
        summary.staleness.percentile(0.99),
        summary.staleness.percentile(1.0)
    );
    print_line!(
        "stragglers   the trainer waited for them {}% of the time",
        number_or_dash(summary.held_share.map(|share| 100.0 * share), 1)
    );
    for mailbox in &summary.mailboxes {
        print_line!(
            "mailbox      {:<9} {:.1} on average, {} at most, of {}",
            mailbox.name,
            mailbox.mean,
            mailbox.most,
            mailbox.capacity
        );
    }
    let groups = &summary.groups;
    print_line!(
        "groups       {} opened, {} trained, {} filtered, {} dropped, {} failed",
        groups.opened,
        groups.trained,
        groups.filtered,
        groups.dropped,
        groups.failed
    );
    let service = &summary.service;
    print_line!(
        "faults       {} requests failed, {} were never answered, {} samples without a number, {} rewards missing",
        service.failed,
        service.hung,
        service.not_finite,
        summary.missing
    );
    if summary.efficiency().is_none() {
        print_line!(
            "note         the steps took no time, so there are no rates per second: give `[simulate]` times that \
             are not 0"
        );
    }
    if summary.efficiency().is_some_and(|efficiency| efficiency > NOTED_EFFICIENCY) {
        print_line!(
            "note         the efficiency is above 1 because the drawn times were shorter than they are on average: \
             simulate more steps"
        );
    }
    for warning in &plan.warnings {
        print_line!("note         {warning}");
    }
}
