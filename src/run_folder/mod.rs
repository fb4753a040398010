//! The run folder: everything that a run leaves behind, readable at any moment and after any end.
//!
//! `config.toml` the resolved config · `metrics.json` an array, one step a line · `rollouts/step_000001.jsonl` what
//! was trained · `checkpoints.jsonl` one line per saved state · `spares/` groups that were ready at the last one · `evals.jsonl` one line per evaluation ·
//! `quarantine.jsonl` one line per reward that failed for good · `weights/` the embedded engine's states ·
//! `events.out.tfevents.…` the same numbers for TensorBoard · `environments.json` what the environments are made of.
//! One process at a time works in a folder.

mod admission;
mod checkpoints;
mod environments;
mod lines;
mod metrics;
mod quarantine;
mod rollouts;
mod saved_groups;
mod tensorboard;

use crate::config::file::ConfigFile;
use anyhow::{Context as _, anyhow, bail};
use minds_core::reward::Metrics;
use minds_models::{FileLock, LockError};
use minds_stages::evaluator::Evaluation;
use minds_stages::ledger::GroupCounts;
use minds_stages::messages::{QuarantinedRollout, StepRecord};
use minds_stages::pipeline::ResumePoint;
use minds_stages::trainer::SavedCheckpoint;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

pub use admission::{FolderOutlook, ResumeTerms, inspect, lock_warning};
use admission::{admit, compare};
pub use checkpoints::{CheckpointRecord, FILE as CHECKPOINTS};
pub use environments::{EnvironmentFingerprint, EnvironmentFingerprints};
pub use metrics::FILE as METRICS;
pub use quarantine::FILE as QUARANTINE;

/// An open run folder.
pub struct RunFolder {
    path: PathBuf,
    metrics: metrics::MetricsFile,
    events: Option<tensorboard::TensorBoardWriter>,
    /// Whether the weights to go on from have been evaluated.
    evaluated: bool,
    checkpoints: Vec<CheckpointRecord>,
    /// What had become of the groups when the run was last opened.
    before: GroupCounts,
    /// What the environments are made of, until that stands beside a checkpoint.
    fingerprints: Option<EnvironmentFingerprints>,
    /// Held as long as the folder is open.
    _lock: FileLock,
}

impl RunFolder {
    /// Opens a new folder, or one whose run is to go on.
    ///
    /// # Errors
    /// Another process works in it, it holds something else than a run, or a run that is not to go on under these
    /// terms.
    pub fn open(path: &Path, config: &ConfigFile, terms: ResumeTerms) -> anyhow::Result<Self> {
        fs::create_dir_all(path)
            .with_context(|| format!("failed to make the run folder {}", path.display()))?;
        let path = path.canonicalize().with_context(|| format!("failed to open {}", path.display()))?;
        let lock = lock(&path)?;
        let resolved = toml::to_string(config).context("failed to write the resolved config")?;
        let config_path = path.join(CONFIG);
        let (checkpoints, differences) = admit(&path, &resolved, terms)?;
        differences.iter().for_each(|what| tracing::warn!("goes on with another config: {what}"));
        write_whole(&config_path, &resolved)?;
        fs::create_dir_all(path.join(ROLLOUTS))?;
        let step = checkpoints.last().map_or(0, |c| c.step);
        rollouts::keep_until(&path.join(ROLLOUTS), step)?;
        let metrics = metrics::MetricsFile::open(&path, step)?;
        let evaluated = lines::keep_until(&path, EVALUATIONS, step)?;
        remove_shadows(&path.join(WEIGHTS))?;
        let before = checkpoints.last().map(|last| last.groups).unwrap_or_default();
        Ok(Self {
            path,
            metrics,
            events: None,
            evaluated,
            checkpoints,
            before,
            fingerprints: None,
            _lock: lock,
        })
    }

    /// The same folder, which keeps every number for TensorBoard as well.
    #[must_use]
    pub fn with_tensorboard(mut self) -> Self {
        let step = self.last().map_or(0, |last| last.step);
        self.events = Some(tensorboard::TensorBoardWriter::after(&self.path, step));
        self
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Steps that were taken after the last saved state, and are taken again.
    #[must_use]
    pub fn past_rows(&self) -> usize {
        self.metrics.past
    }

    /// The numbers of all steps that the run goes on from.
    ///
    /// # Errors
    /// The disk refused.
    pub fn rows(&self) -> anyhow::Result<Vec<Metrics>> {
        metrics::rows(&self.path)
    }

    /// The evaluations that the run goes on from, as rows with their step.
    ///
    /// # Errors
    /// The disk refused.
    pub fn evaluations(&self) -> anyhow::Result<Vec<Metrics>> {
        lines::rows(&self.path, EVALUATIONS)
    }

    /// Takes down what the environments are made of, for the next checkpoint, and says what is not as it was at the last
    /// one.
    ///
    /// # Errors
    /// The disk refused.
    pub fn compare(&mut self, now: EnvironmentFingerprints) -> anyhow::Result<Vec<String>> {
        let then = if self.checkpoints.is_empty() { None } else { environments::read(&self.path)? };
        let changes = then.map(|then| environments::changes(&then, &now)).unwrap_or_default();
        self.fingerprints = Some(now);
        Ok(changes)
    }

    /// Where the embedded engine keeps states.
    #[must_use]
    pub fn weights(&self) -> PathBuf {
        self.path.join(WEIGHTS)
    }

    /// The state to go on from, if there is one.
    #[must_use]
    pub fn last(&self) -> Option<&CheckpointRecord> {
        self.checkpoints.last()
    }

    /// All states, the oldest first.
    #[must_use]
    pub fn checkpoints(&self) -> &[CheckpointRecord] {
        &self.checkpoints
    }

    /// Goes back to an earlier state, by its place in [`RunFolder::checkpoints`]. The later ones, and what was kept of
    /// the steps after it, move aside.
    ///
    /// # Errors
    /// The disk refused.
    pub fn roll_back(&mut self, place: usize) -> anyhow::Result<()> {
        let later = self.checkpoints.split_off(place + 1);
        let step = self.last().map_or(0, |last| last.step);
        checkpoints::write(&aside(&self.path, &format!("checkpoints.past_{step:06}"), "jsonl"), &later)?;
        checkpoints::write(&self.path.join(checkpoints::FILE), &self.checkpoints)?;
        self.before = self.last().map(|last| last.groups).unwrap_or_default();
        rollouts::keep_until(&self.path.join(ROLLOUTS), step)?;
        self.metrics = metrics::MetricsFile::open(&self.path, step)?;
        self.events = self.events.take().map(|_| tensorboard::TensorBoardWriter::after(&self.path, step));
        self.evaluated = lines::keep_until(&self.path, EVALUATIONS, step)?;
        Ok(())
    }

    /// Where the run starts.
    #[must_use]
    pub fn start(&self) -> ResumePoint {
        let Some(last) = self.last() else {
            return ResumePoint { evaluated: self.evaluated, ..ResumePoint::default() };
        };
        let kept = last.spares.as_ref();
        let spares = kept.map(|kept| saved_groups::read(&self.path, &last.name, kept)).unwrap_or_default();
        ResumePoint {
            step: last.step,
            settled: last.settled.clone(),
            saved_groups: spares,
            gradient_norms: last.gradient_norms.clone(),
            evaluated: self.evaluated,
        }
    }

    /// Keeps a step's numbers and rollouts.
    ///
    /// # Errors
    /// The disk refused.
    pub fn add_step(&mut self, step: &StepRecord) -> anyhow::Result<()> {
        rollouts::write(&self.path.join(ROLLOUTS), step)?;
        self.metrics.append(&step.metrics)?;
        if let Some(events) = &mut self.events {
            events.append(step.step, &step.metrics);
        }
        Ok(())
    }

    /// Keeps what an evaluation found.
    ///
    /// # Errors
    /// The disk refused.
    pub fn add_evaluation(&mut self, evaluation: &Evaluation) -> anyhow::Result<()> {
        if let Some(events) = &mut self.events {
            events.append(evaluation.step, &evaluation.metrics);
        }
        let mut row = serde_json::Map::new();
        row.insert("step".into(), evaluation.step.into());
        row.extend(evaluation.metrics.iter().map(|(key, value)| (key.clone(), (*value).into())));
        lines::append(&self.path, EVALUATIONS, &row)
    }

    /// Keeps a rollout whose reward failed for good.
    ///
    /// # Errors
    /// The disk refused.
    pub fn quarantine(&self, poison: &QuarantinedRollout) -> anyhow::Result<()> {
        lines::append(&self.path, quarantine::FILE, &quarantine::QuarantineRow::from(poison))
    }

    /// Keeps a saved state.
    ///
    /// # Errors
    /// The disk refused.
    pub fn add_checkpoint(&mut self, saved: &SavedCheckpoint) -> anyhow::Result<()> {
        if let Some(fingerprints) = self.fingerprints.take() {
            environments::write(&self.path, &fingerprints)?;
        }
        let spares = saved_groups::write(&self.path, &saved.name, &saved.saved_groups)?;
        let checkpoint = CheckpointRecord::new(saved, &self.before, spares);
        checkpoints::append(&self.path.join(checkpoints::FILE), &checkpoint)?;
        saved_groups::keep_only(&self.path, &saved.name)?;
        self.checkpoints.push(checkpoint);
        Ok(())
    }

    /// Drops all but the newest `keep` checkpoints from the list and returns them; those at `in_use` steps and later
    /// stay. The service still holds what is returned.
    ///
    /// # Errors
    /// The disk refused.
    pub fn drop_old(
        &mut self,
        keep: NonZeroUsize,
        in_use: Option<u64>,
    ) -> anyhow::Result<Vec<CheckpointRecord>> {
        let many = self.checkpoints.len().saturating_sub(keep.get());
        let unused =
            self.checkpoints.iter().take_while(|old| in_use.is_none_or(|step| old.step < step)).count();
        let old = many.min(unused);
        if old > 0 {
            checkpoints::write(&self.path.join(checkpoints::FILE), &self.checkpoints[old..])?;
        }
        Ok(self.checkpoints.drain(..old).collect())
    }
}

/// Whether a folder holds a run of this config that has steps left of so many.
#[must_use]
pub fn is_unfinished(path: &Path, config: &ConfigFile, steps: u64) -> bool {
    let same = || -> anyhow::Result<bool> {
        let earlier = fs::read_to_string(path.join(CONFIG))?;
        Ok(compare(path, &earlier, &toml::to_string(config)?)?.is_empty())
    };
    let done = last_checkpoint(path).ok().flatten().map_or(0, |last| last.step);
    done < steps && same().unwrap_or(false)
}

/// The last checkpoint of a run folder, without opening it for work.
///
/// # Errors
/// It is no run folder, or its list of checkpoints is damaged.
pub fn last_checkpoint(path: &Path) -> anyhow::Result<Option<CheckpointRecord>> {
    if !path.join(CONFIG).is_file() {
        bail!("{} is no run folder: it has no config.toml", path.display());
    }
    Ok(checkpoints::read(&path.join(checkpoints::FILE))?.pop())
}

/// The resolved config.
pub const CONFIG: &str = "config.toml";
/// One line per evaluation.
pub const EVALUATIONS: &str = "evals.jsonl";
/// A file per step: what was trained.
pub const ROLLOUTS: &str = "rollouts";
const WEIGHTS: &str = "weights";
const LOCK: &str = ".lock";

fn lock(path: &Path) -> anyhow::Result<FileLock> {
    match FileLock::take(&path.join(LOCK)) {
        Ok(lock) => Ok(lock),
        Err(LockError::Held(holder)) => Err(in_use(path, holder.as_deref())),
        Err(LockError::Io(error)) => {
            Err(error).with_context(|| format!("failed to lock the run folder {}", path.display()))
        }
    }
}

/// Another process works in a folder; on a file system without locks, as a file in it says.
fn in_use(path: &Path, holder: Option<&Path>) -> anyhow::Error {
    let place = path.display();
    let help = "wait for its end or name another folder";
    match holder {
        None => anyhow!("another process works in {place}: {help}"),
        Some(holder) => anyhow!(
            "another process works in {place}, as {} says: {help}; if that process is gone, on whichever machine it was, \
             remove the file",
            holder.display()
        ),
    }
}

/// A name for what moves aside that nothing has yet: `stem.ext`, else `stem-2.ext` and so on.
fn aside(folder: &Path, stem: &str, ext: &str) -> PathBuf {
    let names = std::iter::once(format!("{stem}.{ext}")).chain((2..).map(|n| format!("{stem}-{n}.{ext}")));
    names.map(|name| folder.join(name)).find(|path| !path.exists()).expect("the names never end")
}

/// Removes the states that a run which was cut off had kept for its shadows alone.
fn remove_shadows(weights: &Path) -> anyhow::Result<()> {
    let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    for run in folders(weights) {
        let left = folders(&run.path().join("weights")).filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.ends_with("-shadow") || name == "shadow-start"
        });
        for state in left {
            let path = state.path();
            fs::remove_dir_all(&path).with_context(|| format!("failed to remove {}", path.display()))?;
        }
    }
    Ok(())
}

/// The text of a file, if there is one.
fn text_of(path: &Path) -> anyhow::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("failed to read {}", path.display())),
    }
}

/// Replaces a file by another in one step.
fn write_whole(path: &Path, text: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let new = path.with_extension("new");
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
    written.with_context(|| format!("failed to write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_core::reward::Metrics;

    fn open_folder(path: &Path, config: &ConfigFile) -> anyhow::Result<RunFolder> {
        RunFolder::open(path, config, ResumeTerms::SameConfig)
    }

    fn config(text: &str) -> ConfigFile {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_run_goes_on_only_with_its_own_config() {
        let dir = tempfile::tempdir().unwrap();
        let first = config("[trainer]\nseed = 1\ntotal_batches = 5");
        drop(open_folder(dir.path(), &config("[trainer]\nseed = 7")).unwrap());
        let mut begun = open_folder(dir.path(), &first).expect("nothing was trained with the seed 7");
        begun.metrics.append(&Metrics::from([("step".into(), 1.0)])).unwrap();
        drop(begun);
        let other = config("[trainer]\nseed = 2");
        assert_eq!(inspect(dir.path(), &first).unwrap(), FolderOutlook::Restarts);
        assert!(inspect(dir.path(), &other).unwrap_err().to_string().contains("seed: 1 then, 2 now"));
        assert_eq!(inspect(&dir.path().join("new"), &other).unwrap(), FolderOutlook::New);
        let error = open_folder(dir.path(), &other).err().unwrap().to_string();
        assert!(error.contains("trainer.seed: 1 then, 2 now"), "{error}");
        open_folder(dir.path(), &config("[trainer]\nseed = 1\ntotal_batches = 50")).expect("only longer");
    }

    #[test]
    fn what_a_run_that_was_cut_off_kept_for_its_shadows_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        drop(open_folder(dir.path(), &config("")).unwrap());
        let states = dir.path().join("weights/run-1/weights");
        for name in ["000020", "000021-shadow", "shadow-start", "000020-final"] {
            fs::create_dir_all(states.join(name)).unwrap();
            fs::write(states.join(name).join("file"), "x").unwrap();
        }
        drop(open_folder(dir.path(), &config("")).unwrap());
        let left = fs::read_dir(&states).unwrap().map(|entry| entry.unwrap().file_name());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, ["000020", "000020-final"]);
    }

    #[test]
    fn one_process_at_a_time_and_no_strangers() {
        let dir = tempfile::tempdir().unwrap();
        let open = open_folder(dir.path(), &config("")).unwrap();
        assert!(open_folder(dir.path(), &config("")).err().unwrap().to_string().contains("another process"));
        assert!(inspect(dir.path(), &config("")).unwrap_err().to_string().contains("another process"));
        drop(open);
        assert_eq!(inspect(dir.path(), &config("")).unwrap(), FolderOutlook::New);

        let full = tempfile::tempdir().unwrap();
        fs::write(full.path().join("thesis.txt"), "precious").unwrap();
        let error = open_folder(full.path(), &config("")).err().unwrap().to_string();
        assert!(error.contains("holds thesis.txt but no config.toml"), "{error}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_file_that_stands_for_the_lock_holds_off_a_check_as_it_holds_off_a_run() {
        let dir = tempfile::tempdir().unwrap();
        drop(open_folder(dir.path(), &config("")).unwrap());
        assert_eq!(lock_warning(&dir.path().join("not/yet/there")), None);
        let holder = dir.path().join(".lock.holder");
        // No process of another machine can be seen from here.
        fs::write(&holder, "elsewhere\n1\n1\n").unwrap();
        let refused = inspect(dir.path(), &config("")).unwrap_err().to_string();
        assert!(refused.contains(".lock.holder says") && refused.contains("remove the file"), "{refused}");
        fs::remove_file(&holder).unwrap();
        assert_eq!(inspect(dir.path(), &config("")).unwrap(), FolderOutlook::New);
    }
}
