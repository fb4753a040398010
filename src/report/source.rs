//! Reads a run folder in any state: of a run in progress, finished, or cut off.
//!
//! Nothing is written or locked. Files that are damaged, unreadable or not regular are skipped and reported; only a
//! folder without a run is an error.

use super::bounded_lines::{self, BoundedLines, NUMBERS, SkippedLines, TEXTS};
use super::table::{MOST_NAMES, MetricsTable};
use crate::cli;
use crate::config::file::ConfigFile;
use crate::config::{ProcessVariables, RunPlan, mask};
use crate::run_folder::{CHECKPOINTS, CONFIG, CheckpointRecord, EVALUATIONS, METRICS, QUARANTINE, ROLLOUTS};
use anyhow::{Context as _, bail};
use minds_core::reward::Metrics;
use minds_stages::telemetry::names;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufReader, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
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
    /// Saved checkpoints, in the order of their file.
    pub checkpoints: Vec<CheckpointRecord>,
    /// Rewards that failed for good.
    pub quarantine: QuarantineSummary,
    /// Files of the trained rollouts, by step.
    pub files: Vec<StepFile>,
    /// Notes about damaged or missing files.
    pub notes: Vec<String>,
}

/// A line of `evals.jsonl`.
#[derive(Debug, Deserialize)]
pub struct EvaluationRecord {
    /// Optimizer steps done when the weights were evaluated.
    pub step: u64,
    /// Metrics under their full names, `eval/<name>/…`.
    #[serde(flatten)]
    pub metrics: BTreeMap<String, Option<f64>>,
}

/// Counts and last entries of `quarantine.jsonl`.
#[derive(Debug, Default)]
pub struct QuarantineSummary {
    /// Number of lines per environment and kind.
    pub counts: BTreeMap<(String, String), u64>,
    /// The last few lines of the file.
    pub last: VecDeque<StoredQuarantine>,
}

/// A line of `quarantine.jsonl`.
#[derive(Debug, Deserialize)]
pub struct StoredQuarantine {
    /// Name of the environment in metrics.
    pub environment: String,
    /// Index of the item within the environment's data.
    pub item: u64,
    /// Policy version that sampled it.
    pub policy: u64,
    /// Kind of the reward error, such as `timed_out`.
    pub kind: String,
    /// Message of the reward error.
    pub cause: String,
    /// Texts of the completions, in order.
    pub text: Vec<String>,
}

/// The rollout file of a step.
#[derive(Debug)]
pub struct StepFile {
    /// Its step, from 1.
    pub step: u64,
    /// Path of the step's rollout file.
    pub path: PathBuf,
    /// Size of the file in bytes.
    pub bytes: u64,
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
        let (table, written) = table(folder, &mut notes);
        let mut evaluations = Vec::new();
        let mut checkpoints = Vec::new();
        lines(folder, (EVALUATIONS, NUMBERS), &mut notes, |row| evaluations.push(row));
        lines(folder, (CHECKPOINTS, TEXTS), &mut notes, |row| checkpoints.push(row));
        let mut quarantine = QuarantineSummary::default();
        lines(folder, (QUARANTINE, TEXTS), &mut notes, |row: StoredQuarantine| {
            *quarantine.counts.entry((row.environment.clone(), row.kind.clone())).or_default() += 1;
            if quarantine.last.len() == SHOWN {
                quarantine.last.pop_front();
            }
            quarantine.last.push_back(row);
        });
        let evaluated = evaluated(&evaluations).len();
        if evaluated > MOST_EVALUATED {
            notes.push(format!(
                "{EVALUATIONS}: of {evaluated} environments the first {MOST_EVALUATED} are shown"
            ));
        }
        let files = step_files(folder, &mut notes);
        let name = name(folder);
        Ok(Self { name, config, plan, table, written, evaluations, checkpoints, quarantine, files, notes })
    }

    /// The environments that were trained, by their names in metrics.
    pub fn environments(&self) -> Vec<String> {
        let names =
            self.table.names().filter_map(|key| key.strip_prefix("env/")?.strip_suffix("/reward/total"));
        names.filter(|name| *name != "all").map(str::to_owned).collect()
    }

    /// The environments that were evaluated, by their names in metrics.
    pub fn evaluated(&self) -> Vec<String> {
        evaluated(&self.evaluations).into_iter().take(MOST_EVALUATED).map(str::to_owned).collect()
    }
}

fn evaluated(rows: &[EvaluationRecord]) -> BTreeSet<&str> {
    let keys = rows.iter().flat_map(|row| row.metrics.keys());
    keys.filter_map(|key| key.strip_prefix("eval/")?.strip_suffix("/episodes")).collect()
}

impl EvaluationRecord {
    /// A metric of an environment, if it is present and finite.
    pub fn get(&self, environment: &str, key: &str) -> Option<f64> {
        self.metrics.get(&format!("eval/{environment}/{key}")).copied().flatten()
    }

    /// Metrics that the environment reported with its rewards, by name.
    pub fn parts(&self, environment: &str) -> Metrics {
        let own = names::OF_AN_EVALUATION;
        let start = format!("eval/{environment}/");
        let parts =
            self.metrics.iter().filter_map(|(key, value)| Some((key.strip_prefix(&start)?, (*value)?)));
        parts.filter(|(key, _)| !own.contains(key)).map(|(key, value)| (key.to_owned(), value)).collect()
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
    let text = std::str::from_utf8(&bytes).unwrap_or_default();
    // No secret of the file is shown: the table `[tinker]` holds none, and others are masked.
    let text = match (toml::from_str::<ConfigFile>(text), text.parse::<toml::Table>()) {
        _ if text.is_empty() && !bytes.is_empty() => None,
        (Ok(mut config), _) => {
            mask::mask_args(&mut config);
            Some(toml::to_string_pretty(&config)?)
        }
        (Err(_), Ok(mut table)) => {
            notes.push(format!(
                "{CONFIG} is from another version of the program: it is shown but not interpreted"
            ));
            mask::mask(&mut table);
            Some(toml::to_string_pretty(&table)?)
        }
        (Err(_), Err(_)) => None,
    };
    let Some(text) = text else {
        notes.push(format!("{CONFIG} is damaged and not shown"));
        return Ok((String::new(), None));
    };
    let plan =
        RunPlan::load(&cli::RunArgs::for_config(path, Vec::new(), None), &ProcessVariables::default()).ok();
    Ok((text, plan))
}

fn table(folder: &Path, notes: &mut Vec<String>) -> (MetricsTable, Option<SystemTime>) {
    let before = notes.len();
    let Some(file) = open(folder, METRICS, notes) else {
        if notes.len() == before {
            notes.push(format!("{METRICS} is missing: the run has not begun"));
        }
        return (MetricsTable::default(), None);
    };
    let written = file.metadata().and_then(|meta| meta.modified()).ok();
    let (mut table, mut damage) = match MetricsTable::read(BufReader::new(file)) {
        Ok(read) => read,
        Err(error) => {
            notes.push(left_out(METRICS, &error));
            return (MetricsTable::default(), written);
        }
    };
    // Another program may have rewritten the array in another layout.
    if !damage.is_none()
        && let Ok(again) = bounded_lines::open(&folder.join(METRICS))
        && let Some(whole) = MetricsTable::read_array(BufReader::new(again))
    {
        (table, damage) = whole;
    }
    notes.extend(damage.notes(METRICS, NUMBERS));
    if table.left_out() > 0 {
        let numbers = table.left_out();
        notes.push(format!(
            "{METRICS}: {numbers} numbers are left out because their names come after the first {MOST_NAMES}"
        ));
    }
    (table, written)
}

/// Parses the lines of an optional file, each of at most `longest` bytes.
fn lines<T: DeserializeOwned>(
    folder: &Path,
    (name, longest): (&str, u64),
    notes: &mut Vec<String>,
    mut take: impl FnMut(T),
) {
    let Some(file) = open(folder, name, notes) else { return };
    let mut damage = SkippedLines::default();
    let mut lines = BoundedLines::new(BufReader::new(file), longest);
    loop {
        match lines.read() {
            Ok(None) => break,
            Ok(Some(line)) => match line.text.map(|text| (text, serde_json::from_slice(text))) {
                None => damage.long += 1,
                Some((_, Ok(row))) => take(row),
                Some((text, Err(_))) if text.trim_ascii().is_empty() => {}
                Some(_) => damage.add(|| line.number.to_string()),
            },
            Err(error) => {
                notes.push(left_out(name, &error));
                break;
            }
        }
    }
    notes.extend(damage.notes(name, longest));
}

/// Opens a file; `None` if it is missing or unreadable. Only the latter leaves a note.
fn open(folder: &Path, name: &str, notes: &mut Vec<String>) -> Option<File> {
    let path = folder.join(name);
    match bounded_lines::open(&path) {
        Ok(file) => Some(file),
        // A dangling link is reported, unlike a missing file.
        Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => None,
        Err(error) => {
            notes.push(left_out(name, &error));
            None
        }
    }
}

fn left_out(name: &str, error: &io::Error) -> String {
    format!("{name} is left out: {error}")
}

/// Rollout files in the order of their steps, without those that a resumed run replaced.
fn step_files(folder: &Path, notes: &mut Vec<String>) -> Vec<StepFile> {
    let entries = match fs::read_dir(folder.join(ROLLOUTS)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            notes.push(left_out(ROLLOUTS, &error));
            return Vec::new();
        }
        Ok(entries) => entries,
    };
    let mut files = Vec::new();
    let mut unread = Vec::new();
    // An entry that cannot be listed has no name, and so no step.
    for entry in entries.filter_map(Result::ok) {
        let name = entry.file_name();
        let step =
            name.to_str().and_then(|name| name.strip_prefix("step_")?.strip_suffix(".jsonl")?.parse().ok());
        let Some(step) = step else { continue };
        match bounded_lines::regular(&entry.path()) {
            Ok(meta) => files.push(StepFile { step, path: entry.path(), bytes: meta.len() }),
            Err(error) => unread.push((step, name.display().to_string(), error)),
        }
    }
    files.sort_by_key(|file| file.step);
    unread.sort_by_key(|(step, ..)| *step);
    if let [(_, name, error), rest @ ..] = &unread[..] {
        let more =
            if rest.is_empty() { String::new() } else { format!(", and {} more such files", rest.len()) };
        notes.push(format!("{}{more}", left_out(&format!("{ROLLOUTS}/{name}"), error)));
    }
    files
}
