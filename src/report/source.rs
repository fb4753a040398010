//! Collects what the report needs of a run folder.
//!
//! Files that are damaged, unreadable or not regular are skipped and reported; only a folder without a run is an error.

use crate::cli;
use crate::config::file::ConfigFile;
use crate::config::{ProcessVariables, RunPlan, mask};
use crate::run_folder::bounded_lines::{self, NUMBERS, TEXTS};
use crate::run_folder::metrics_table::MetricsTable;
use crate::run_folder::rollouts::{self, StepFile};
use crate::run_folder::{CHECKPOINTS, CONFIG, CheckpointRecord, EVALUATIONS, QUARANTINE, reading};
use anyhow::{Context as _, bail};
use minds_core::record::{self, ALL_ENVIRONMENTS, EvaluationRecord, QuarantineRow};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Read as _;
use std::path::Path;
use std::time::SystemTime;

/// The content of a run folder, as the report needs it.
pub struct ReportSource {
    /// Name of the folder and its parent.
    pub name: String,
    /// The config as text, with secrets masked.
    pub config: String,
    /// The config as a plan, if this version of the program can read it.
    pub plan: Option<RunPlan>,
    /// Metrics of all steps.
    pub table: MetricsTable,
    /// Modification time of the metrics file.
    pub written: Option<SystemTime>,
    /// Evaluations, in the order of their file.
    pub evaluations: Vec<EvaluationRecord>,
    /// The environments that were evaluated, by their names in metrics; not too many to be shown.
    pub evaluated: Vec<String>,
    /// Saved checkpoints, in the order of their file.
    pub checkpoints: Vec<CheckpointRecord>,
    /// Rewards that failed for good.
    pub quarantine: QuarantineSummary,
    /// Files of the trained rollouts, by step.
    pub files: Vec<StepFile>,
    /// Notes about damaged or missing files.
    pub notes: Vec<String>,
}

/// Counts and last entries of `quarantine.jsonl`.
#[derive(Debug, Default)]
pub struct QuarantineSummary {
    /// Number of lines per environment and kind.
    pub counts: BTreeMap<(String, String), u64>,
    /// The last few lines of the file.
    pub last: VecDeque<QuarantineRow<'static>>,
}

/// Maximum number of quarantined rollouts shown.
const SHOWN: usize = 10;
/// Maximum number of environments whose evaluations are shown.
const MOST_EVALUATED: usize = 64;

impl ReportSource {
    /// Reads a run folder.
    ///
    /// # Errors
    /// The folder does not exist, is not a run folder, or its config cannot be read.
    pub fn read(folder: &Path) -> anyhow::Result<Self> {
        let place = folder.display();
        if !folder.is_dir() {
            bail!("{place} is not a folder: name the run folder that `run` prints");
        }
        if !folder.join(CONFIG).is_file() {
            bail!("{place} is not a run folder: it has no {CONFIG}");
        }
        let mut notes = Vec::new();
        let (config, plan) = config(folder, &mut notes)?;
        let (table, written) = reading::metrics_table(folder, &mut notes);
        let mut evaluations: Vec<EvaluationRecord> = Vec::new();
        let mut checkpoints = Vec::new();
        reading::lines(folder, (EVALUATIONS, NUMBERS), &mut notes, |row| evaluations.push(row));
        reading::lines(folder, (CHECKPOINTS, TEXTS), &mut notes, |row| checkpoints.push(row));
        let mut quarantine = QuarantineSummary::default();
        reading::lines(folder, (QUARANTINE, TEXTS), &mut notes, |row: QuarantineRow<'static>| {
            let kind = (row.environment.to_string(), row.kind.to_string());
            *quarantine.counts.entry(kind).or_default() += 1;
            if quarantine.last.len() == SHOWN {
                quarantine.last.pop_front();
            }
            quarantine.last.push_back(row);
        });
        let names = evaluations.iter().flat_map(|row| row.environments.keys());
        let mut evaluated: Vec<String> = names.collect::<BTreeSet<_>>().into_iter().cloned().collect();
        if evaluated.len() > MOST_EVALUATED {
            let number = evaluated.len();
            notes.push(format!(
                "{EVALUATIONS}: of {number} environments the first {MOST_EVALUATED} are shown"
            ));
            evaluated.truncate(MOST_EVALUATED);
        }
        Ok(Self {
            name: name(folder),
            config,
            plan,
            table,
            written,
            evaluations,
            evaluated,
            checkpoints,
            quarantine,
            files: rollouts::step_files(folder, &mut notes),
            notes,
        })
    }

    /// The environments that were trained, by their names in metrics.
    pub fn environments(&self) -> Vec<String> {
        let names = self.table.names().filter_map(record::environment_of);
        names.filter(|name| *name != ALL_ENVIRONMENTS).map(str::to_owned).collect()
    }
}

/// Name of the folder with its parent: run folders are named by time, so the parent identifies the config.
fn name(folder: &Path) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let mut parts: Vec<_> =
        whole.iter().rev().take(2).map(|part| part.to_string_lossy().into_owned()).collect();
    parts.reverse();
    parts.join(" / ")
}

/// The config as text and as a plan.
fn config(folder: &Path, notes: &mut Vec<String>) -> anyhow::Result<(String, Option<RunPlan>)> {
    let path = folder.join(CONFIG);
    let mut bytes = Vec::new();
    let read = bounded_lines::open(&path).and_then(|file| file.take(TEXTS).read_to_end(&mut bytes));
    read.with_context(|| format!("failed to read {}", path.display()))?;
    let text = String::from_utf8_lossy(&bytes);
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
    let plan =
        RunPlan::load(&cli::RunArgs::for_config(path, Vec::new(), None), &ProcessVariables::default()).ok();
    Ok((text, plan))
}
