//! Collects what the report shows of a run folder.
//!
//! Files that are damaged, unreadable or not regular are skipped and reported; only a folder without a run is an error.

use crate::cli;
use crate::config::environments::EnvPlan;
use crate::config::file::ConfigFile;
use crate::config::{ProcessVariables, RunPlan, mask};
use crate::run_folder::{CONFIG, reading};
use minds_core::record::EvaluationRecord;
use minds_observe::report::{QuarantineSummary, ReportSource, ReportedConfig};
use std::collections::BTreeSet;
use std::path::Path;

/// Maximum number of quarantined rollouts shown.
const SHOWN: usize = 10;
/// Maximum number of environments whose evaluations are shown.
const MOST_EVALUATED: usize = 64;

/// Reads a run folder, but for its rollouts.
///
/// # Errors
/// The folder does not exist, is not a run folder, or its config cannot be read.
pub(super) fn read(folder: &Path) -> anyhow::Result<ReportSource> {
    let mut notes = Vec::new();
    let (config, settings) = config(folder, &mut notes)?;
    let (table, written) = reading::metrics_table(folder, &mut notes);
    let evaluations = reading::evaluations(folder, &mut notes);
    let checkpoints = reading::checkpoints(folder, &mut notes);
    let mut quarantine = QuarantineSummary::default();
    reading::quarantine(folder, &mut notes, |row| {
        let kind = (row.environment.to_string(), row.kind.to_string());
        *quarantine.counts.entry(kind).or_default() += 1;
        if quarantine.last.len() == SHOWN {
            quarantine.last.pop_front();
        }
        quarantine.last.push_back(row);
    });
    let evaluated = evaluated(&evaluations, &mut notes);
    let name = name(folder);
    Ok(ReportSource {
        name,
        config,
        settings,
        table,
        written,
        evaluations,
        evaluated,
        checkpoints,
        quarantine,
        notes,
    })
}

/// Names of the environments that were evaluated.
fn evaluated(evaluations: &[EvaluationRecord], notes: &mut Vec<String>) -> Vec<String> {
    let names: BTreeSet<_> = evaluations.iter().flat_map(|row| row.environments.keys()).collect();
    if names.len() > MOST_EVALUATED {
        notes.push(format!(
            "evaluations: of {} environments the first {MOST_EVALUATED} are shown",
            names.len()
        ));
    }
    names.into_iter().take(MOST_EVALUATED).cloned().collect()
}

/// Name of the folder with its parent: run folders are named by time, so the parent identifies the config.
fn name(folder: &Path) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let mut parts: Vec<_> =
        whole.iter().rev().take(2).map(|part| part.to_string_lossy().into_owned()).collect();
    parts.reverse();
    parts.join(" / ")
}

/// The config as text and as settings.
fn config(folder: &Path, notes: &mut Vec<String>) -> anyhow::Result<(String, Option<ReportedConfig>)> {
    let text = reading::config(folder)?;
    let Ok(mut table) = text.parse::<toml::Table>() else {
        notes.push(format!("{CONFIG} is damaged and not shown"));
        return Ok((String::new(), None));
    };
    let text = match toml::from_str::<ConfigFile>(&text) {
        Ok(config) => mask::masked(&config),
        Err(_) => {
            notes.push(format!(
                "{CONFIG} is from another version of the program: it is shown but not interpreted"
            ));
            mask::mask(&mut table);
            table.to_string()
        }
    };
    let command = cli::RunArgs::for_config(folder.join(CONFIG), Vec::new(), None);
    let plan = RunPlan::load(&command, &ProcessVariables::default()).ok();
    Ok((text, plan.map(settings)))
}

fn settings(plan: RunPlan) -> ReportedConfig {
    ReportedConfig {
        service: plan.service.name().to_owned(),
        threads: plan.resolved.engine.threads.filter(|_| plan.service.engine().is_some()),
        environments: plan.envs.iter().map(EnvPlan::share).collect(),
        group_size: plan.group_size.get(),
        base_model: plan.base_model,
        renderer: plan.renderer,
        pipeline: plan.pipeline,
        lora: plan.lora,
        sampling: plan.sampling,
        rollouts: plan.rollouts,
        warnings: plan.warnings,
    }
}
