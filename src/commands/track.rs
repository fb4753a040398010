//! `minds-actors track`: sends a run folder to experiment trackers, after the run or while nothing else sends it.

use super::print_line;
use super::signals::{SignalRequest, Signals};
use crate::cli;
use crate::config::choice::Choice;
use crate::config::file::LogConfig;
use crate::config::tracking::TrackingPlan;
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::run_folder::{self, reading};
use crate::tracking::{self, RunTrackers, TrackedOutcome, TrackedRun, TrackerPatience};
use anyhow::{Context as _, anyhow};
use std::path::Path;

/// Runs the command.
///
/// # Errors
/// The folder holds no run, or a package is missing (2); a tracker has not received everything (1).
pub fn run(command: &cli::TrackArgs) -> Result<(), CommandError> {
    let folder = command.folder.canonicalize();
    let folder = folder
        .with_context(|| format!("failed to open {}", command.folder.display()))
        .or_exit(ProcessExit::Config)?;
    let text = reading::config(&folder).or_exit(ProcessExit::Config)?;
    let config: toml::Table = text
        .parse()
        .with_context(|| format!("{} is damaged", run_folder::CONFIG))
        .or_exit(ProcessExit::Config)?;
    let plan = plan(command, &config).or_exit(ProcessExit::Config)?;
    tracking::find_packages(&plan)
        .map_err(|problem| anyhow!("--to {problem}"))
        .or_exit(ProcessExit::Config)?;
    let run = TrackedRun { name: tracking::name_of(&folder), config, folder };
    let outcome = outcome(&run.folder);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("failed to start a thread").or_exit(ProcessExit::Failed)?;
    let unfinished = runtime.block_on(async {
        let mut signals = Signals::listen().or_exit(ProcessExit::Failed)?;
        let trackers = RunTrackers::start(&plan, &run, TrackerPatience::Once);
        let stop = async { while signals.next().await != SignalRequest::Stop {} };
        Ok(trackers.finish(outcome, None, stop).await)
    })?;
    for tracker in plan.to.iter().filter(|tracker| !unfinished.contains(tracker)) {
        print_line!("sent         {} to {}", run.folder.display(), tracker.name());
    }
    match unfinished.is_empty() {
        true => Ok(()),
        false => {
            Err(anyhow!("{} of {} trackers have not received everything", unfinished.len(), plan.to.len()))
                .or_exit(ProcessExit::Failed)
        }
    }
}

/// The settings of the command; what it does not name is as the run's config has it.
fn plan(command: &cli::TrackArgs, config: &toml::Table) -> anyhow::Result<TrackingPlan> {
    let kept = config.get("log").cloned().map_or_else(|| Ok(LogConfig::default()), toml::Value::try_into);
    let kept: LogConfig = kept.with_context(|| format!("[log] of {} is invalid", run_folder::CONFIG))?;
    let log = LogConfig {
        to: command.to.iter().copied().map(Choice).collect(),
        project: command.project.clone().or(kept.project),
        run_name: command.run_name.clone().or(kept.run_name),
        python: command.python.clone().or(kept.python),
        ..kept
    };
    let key = config.get("tinker").and_then(|tinker| tinker.get("api_key_env")).and_then(toml::Value::as_str);
    TrackingPlan::new(&log, key.into_iter().map(str::to_owned).collect())
        .map_err(|error| anyhow!("{} {}", error.key, error.problem))
}

/// How the run ended: one that ends without an error saves its last step.
fn outcome(folder: &Path) -> TrackedOutcome {
    let mut notes = Vec::new();
    let (table, _) = reading::metrics_table(folder, &mut notes);
    notes.iter().for_each(|note| tracing::warn!("{note}"));
    let saved = run_folder::last_checkpoint(folder).ok().flatten().map(|last| last.step);
    match table.steps().last().copied() {
        Some(step) if saved.is_some_and(|saved| saved >= step) => TrackedOutcome::Finished,
        _ => TrackedOutcome::Killed,
    }
}
