//! A run folder as it lies there: of a run that goes on, that has ended, or that was cut off.
//!
//! Nothing is written or locked. What is damaged is left out and told; only a folder that holds no run is an error.

use super::table::Table;
use crate::cli;
use crate::config::file::ConfigFile;
use crate::config::{RunPlan, Variables};
use crate::run_folder::{CHECKPOINTS, CONFIG, Checkpoint, EVALUATIONS, METRICS, QUARANTINE, ROLLOUTS};
use anyhow::{Context as _, bail};
use minds_core::reward::Metrics;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What a run has left behind.
pub struct Source {
    /// Name of the folder, with that of the folder around it.
    pub name: String,
    /// The config, without keys.
    pub config: String,
    /// What it means, if this version of the program knows it.
    pub plan: Option<RunPlan>,
    /// The numbers of all steps.
    pub table: Table,
    /// When the last row was written.
    pub written: Option<SystemTime>,
    /// Evaluations.
    pub evaluations: Vec<Evaluated>,
    /// Saved states.
    pub checkpoints: Vec<Checkpoint>,
    /// Rewards that failed for good.
    pub quarantine: Quarantine,
    /// What was trained, by step.
    pub files: Vec<StepFile>,
    /// What is damaged or missing.
    pub notes: Vec<String>,
}

/// A line of `evals.jsonl`.
#[derive(Debug, Deserialize)]
pub struct Evaluated {
    /// Steps that the weights had behind them.
    pub step: u64,
    /// `eval/<name>/…`
    #[serde(flatten)]
    pub metrics: BTreeMap<String, Option<f64>>,
}

/// `quarantine.jsonl`, counted.
#[derive(Debug, Default)]
pub struct Quarantine {
    /// Lines of each environment and kind.
    pub counts: BTreeMap<(String, String), u64>,
    /// The last few.
    pub last: VecDeque<Poisoned>,
}

/// A line of `quarantine.jsonl`.
#[derive(Debug, Deserialize)]
pub struct Poisoned {
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

impl Source {
    /// Reads a folder.
    ///
    /// # Errors
    /// There is none, it is no run folder, or it cannot be read.
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
        let (table, written) = table(folder, &mut notes)?;
        let (mut evaluations, mut checkpoints) = (Vec::new(), Vec::new());
        lines(folder, EVALUATIONS, &mut notes, |row| evaluations.push(row))?;
        lines(folder, CHECKPOINTS, &mut notes, |row| checkpoints.push(row))?;
        let mut quarantine = Quarantine::default();
        lines(folder, QUARANTINE, &mut notes, |row: Poisoned| {
            *quarantine.counts.entry((row.environment.clone(), row.kind.clone())).or_default() += 1;
            if quarantine.last.len() == SHOWN {
                quarantine.last.pop_front();
            }
            quarantine.last.push_back(row);
        })?;
        let files = step_files(&folder.join(ROLLOUTS))?;
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
        let keys = self.evaluations.iter().flat_map(|row| row.metrics.keys());
        let names = keys.filter_map(|key| key.strip_prefix("eval/")?.strip_suffix("/episodes"));
        let mut names: Vec<String> = names.map(str::to_owned).collect();
        names.sort();
        names.dedup();
        names
    }
}

impl Evaluated {
    /// A number of an environment, where there is one.
    pub fn get(&self, environment: &str, key: &str) -> Option<f64> {
        self.metrics.get(&format!("eval/{environment}/{key}")).copied().flatten()
    }

    /// What rewards were made of, by name.
    pub fn parts(&self, environment: &str) -> Metrics {
        let own = ["reward", "reward_low", "reward_high", "episodes", "missing"];
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
    let text = fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    // Whatever was written into it, no key comes out again: the config keeps none, a table loses it.
    let text = match (toml::from_str::<ConfigFile>(&text), text.parse::<toml::Table>()) {
        (Ok(config), _) => toml::to_string_pretty(&config)?,
        (Err(_), Ok(mut table)) => {
            notes.push(format!(
                "{CONFIG} is of another version of the program: it is shown, but not understood"
            ));
            if let Some(tinker) = table.get_mut("tinker").and_then(toml::Value::as_table_mut) {
                tinker.remove("api_key");
            }
            toml::to_string_pretty(&table)?
        }
        (Err(_), Err(_)) => {
            notes.push(format!("{CONFIG} is damaged and not shown"));
            String::new()
        }
    };
    let plan = RunPlan::load(&cli::Run::of(path, Vec::new(), None), &Variables::default()).ok();
    Ok((text, plan))
}

fn table(folder: &Path, notes: &mut Vec<String>) -> anyhow::Result<(Table, Option<SystemTime>)> {
    let Some(file) = open(folder, METRICS)? else {
        notes.push(format!("there is no {METRICS}: the run has not begun"));
        return Ok((Table::default(), None));
    };
    let written = file.metadata().and_then(|meta| meta.modified()).ok();
    let (table, damaged) =
        Table::read(BufReader::new(file)).with_context(|| format!("failed to read {METRICS}"))?;
    note_damage(METRICS, &damaged, notes);
    Ok((table, written))
}

/// The lines of a file that need not be there.
fn lines<T: DeserializeOwned>(
    folder: &Path,
    name: &str,
    notes: &mut Vec<String>,
    mut take: impl FnMut(T),
) -> anyhow::Result<()> {
    let Some(file) = open(folder, name)? else { return Ok(()) };
    let mut damaged = Vec::new();
    for (n, line) in BufReader::new(file).split(b'\n').enumerate() {
        let line = line.with_context(|| format!("failed to read {name}"))?;
        match serde_json::from_slice(&line) {
            Ok(row) => take(row),
            Err(_) if line.trim_ascii().is_empty() => {}
            Err(_) => damaged.push(n + 1),
        }
    }
    note_damage(name, &damaged, notes);
    Ok(())
}

fn open(folder: &Path, name: &str) -> anyhow::Result<Option<File>> {
    match File::open(folder.join(name)) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("failed to read {}", folder.join(name).display())),
    }
}

fn note_damage(name: &str, lines: &[usize], notes: &mut Vec<String>) {
    let shown: Vec<String> = lines.iter().take(5).map(usize::to_string).collect();
    let more = if lines.len() > shown.len() {
        format!(" and {} more", lines.len() - shown.len())
    } else {
        String::new()
    };
    if !lines.is_empty() {
        notes.push(format!("{name}: damaged lines are left out: {}{more}", shown.join(", ")));
    }
}

/// The files of the steps in their order. What was trained before a step was taken again is not among them.
fn step_files(folder: &Path) -> anyhow::Result<Vec<StepFile>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("failed to read {}", folder.display()))?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("failed to read {}", folder.display()))?;
        let name = entry.file_name();
        let step =
            name.to_str().and_then(|name| name.strip_prefix("step_")?.strip_suffix(".jsonl")?.parse().ok());
        if let (Some(step), Ok(meta)) = (step, entry.metadata()) {
            files.push(StepFile { step, path: entry.path(), bytes: meta.len() });
        }
    }
    files.sort_by_key(|file| file.step);
    Ok(files)
}
