//! A run folder as it lies there: of a run that goes on, that has ended, or that was cut off.
//!
//! Nothing is written or locked. What is damaged, cannot be read or is no regular file is left out and told; only a folder
//! that holds no run is an error.

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

/// What a run has left behind.
pub struct ReportSource {
    /// Name of the folder, with that of the folder around it.
    pub name: String,
    /// The config, its keys hidden.
    pub config: String,
    /// What it means, if this version of the program knows it.
    pub plan: Option<RunPlan>,
    /// The numbers of all steps.
    pub table: MetricsTable,
    /// When the last row was written.
    pub written: Option<SystemTime>,
    /// Evaluations.
    pub evaluations: Vec<EvaluationRecord>,
    /// Saved states.
    pub checkpoints: Vec<CheckpointRecord>,
    /// Rewards that failed for good.
    pub quarantine: QuarantineSummary,
    /// What was trained, by step.
    pub files: Vec<StepFile>,
    /// What is damaged or missing.
    pub notes: Vec<String>,
}

/// A line of `evals.jsonl`.
#[derive(Debug, Deserialize)]
pub struct EvaluationRecord {
    /// Steps that the weights had behind them.
    pub step: u64,
    /// `eval/<name>/…`
    #[serde(flatten)]
    pub metrics: BTreeMap<String, Option<f64>>,
}

/// `quarantine.jsonl`, counted.
#[derive(Debug, Default)]
pub struct QuarantineSummary {
    /// Lines of each environment and kind.
    pub counts: BTreeMap<(String, String), u64>,
    /// The last few.
    pub last: VecDeque<StoredQuarantine>,
}

/// A line of `quarantine.jsonl`.
#[derive(Debug, Deserialize)]
pub struct StoredQuarantine {
    /// The environment.
    pub environment: String,
    /// Index of the item within the environment's data.
    pub item: u64,
    /// The weights that played.
    pub policy: u64,
    /// What went wrong, in a word.
    pub kind: String,
    /// The same in words.
    pub cause: String,
    /// The answers.
    pub text: Vec<String>,
}

/// The file of a step.
#[derive(Debug)]
pub struct StepFile {
    /// Its step, from 1.
    pub step: u64,
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// Lines of the quarantine that are shown.
const SHOWN: usize = 10;
/// Environments whose evaluations are shown.
const MOST_EVALUATED: usize = 64;

impl ReportSource {
    /// Reads a folder.
    ///
    /// # Errors
    /// There is none, it is no run folder, or its config cannot be read.
    pub fn read(folder: &Path) -> anyhow::Result<Self> {
        let place = folder.display();
        if !folder.is_dir() {
            bail!("{place} is no folder: name the folder of a run, as `run` prints it");
        }
        if !folder.join(CONFIG).is_file() {
            bail!("{place} is no run folder: it has no {CONFIG}");
        }
        let mut notes = Vec::new();
        let (config, plan) = config(folder, &mut notes)?;
        let (table, written) = table(folder, &mut notes);
        let (mut evaluations, mut checkpoints) = (Vec::new(), Vec::new());
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
    /// A number of an environment, where there is one.
    pub fn get(&self, environment: &str, key: &str) -> Option<f64> {
        self.metrics.get(&format!("eval/{environment}/{key}")).copied().flatten()
    }

    /// What rewards were made of, by name.
    pub fn parts(&self, environment: &str) -> Metrics {
        let own = names::OF_AN_EVALUATION;
        let start = format!("eval/{environment}/");
        let parts =
            self.metrics.iter().filter_map(|(key, value)| Some((key.strip_prefix(&start)?, (*value)?)));
        parts.filter(|(key, _)| !own.contains(key)).map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// Runs are named by the time, so the folder above says of what.
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
    // Whatever was written into it, no key comes out again: the table `[tinker]` keeps none, and others are masked.
    let text = match (toml::from_str::<ConfigFile>(text), text.parse::<toml::Table>()) {
        _ if text.is_empty() && !bytes.is_empty() => None,
        (Ok(mut config), _) => {
            mask::mask_args(&mut config);
            Some(toml::to_string_pretty(&config)?)
        }
        (Err(_), Ok(mut table)) => {
            notes.push(format!(
                "{CONFIG} is of another version of the program: it is shown, but not understood"
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
            notes.push(format!("there is no {METRICS}: the run has not begun"));
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
    // Another program may have written the array anew, with other ends of lines.
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
            "{METRICS}: {numbers} numbers are left out, whose names come after the first {MOST_NAMES}"
        ));
    }
    (table, written)
}

/// The lines of a file that need not be there, each of at most so many bytes.
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

/// A file, if there is one that can be read; what is there instead is told.
fn open(folder: &Path, name: &str, notes: &mut Vec<String>) -> Option<File> {
    let path = folder.join(name);
    match bounded_lines::open(&path) {
        Ok(file) => Some(file),
        // A link that leads nowhere is something.
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

/// The files of the steps in their order. What was trained before a step was taken again is not among them.
fn step_files(folder: &Path, notes: &mut Vec<String>) -> Vec<StepFile> {
    let entries = match fs::read_dir(folder.join(ROLLOUTS)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            notes.push(left_out(ROLLOUTS, &error));
            return Vec::new();
        }
        Ok(entries) => entries,
    };
    let (mut files, mut unread) = (Vec::new(), Vec::new());
    // What cannot be listed has no name, and so no step.
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
