//! The run folder: all files that a run writes, readable at any moment and after any end.
//!
//! `config.toml` the resolved config · `metrics.json` an array, one step a line · `rollouts/step_000001.jsonl`, or
//! `.jsonl.zst`, the trained rollouts · `checkpoints.jsonl` one line per checkpoint · `spares/` groups that were ready at the last one ·
//! `evals.jsonl` one line per evaluation · `quarantine.jsonl` one line per reward that failed for good · `weights/`
//! checkpoints of the embedded engine · `events.out.tfevents.…` the same metrics for TensorBoard · `environments.json`
//! fingerprints of the environments · `broker.json` who the run is on a broker · `usage.json`
//! the tokens that the service billed · `tracking/` what experiment trackers were sent. Only one process at a time uses a folder.

mod admission;
mod bounded_lines;
mod broker_identity;
mod checkpoints;
mod environments;
mod lines;
mod metrics;
mod metrics_reader;
pub mod reading;
mod rollout_choice;
mod rollout_writer;
mod rollouts;
mod saved_groups;
mod usage;

use crate::config::file::ConfigFile;
use crate::regular_file;
use anyhow::{Context as _, anyhow, ensure};
use minds_core::record::{EvaluationRecord, StepRecord, WrittenRollouts};
use minds_models::{FileLock, LockError};
use minds_observe::TensorBoardWriter;
use minds_stages::ledger::GroupCounts;
use minds_stages::messages::{CommittedStep, QuarantinedRollout};
use minds_stages::pipeline::ResumePoint;
use minds_stages::trainer::SavedCheckpoint;
use minds_stages::usage::usage_meter::UsageCounts;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

pub use admission::{FolderOutlook, ResumeTerms, inspect, lock_warning};
use admission::{admit, compare};
pub use broker_identity::BrokerIdentity;
pub use checkpoints::CheckpointRecord;
use checkpoints::FILE as CHECKPOINTS;
pub use environments::{EnvironmentFingerprint, EnvironmentFingerprints};
use metrics::FILE as METRICS;
pub use rollout_choice::chosen_rollouts;
use rollout_writer::RolloutWriter;

/// An open run folder.
pub struct RunFolder {
    path: PathBuf,
    metrics: metrics::MetricsFile,
    rollouts: RolloutWriter,
    events: Option<TensorBoardWriter>,
    /// Whether the weights of the last checkpoint have been evaluated.
    evaluated: bool,
    checkpoints: Vec<CheckpointRecord>,
    /// Number of groups by outcome when the folder was opened.
    before: GroupCounts,
    /// Fingerprints of the environments, until a checkpoint writes them.
    fingerprints: Option<EnvironmentFingerprints>,
    /// Held while the folder is open.
    _lock: FileLock,
}

impl RunFolder {
    /// Opens a new folder, or one whose run is to be resumed.
    ///
    /// # Errors
    /// Another process uses it, it holds files other than a run, or these terms do not allow its run to resume.
    pub fn open(path: &Path, config: &ConfigFile, terms: ResumeTerms) -> anyhow::Result<Self> {
        fs::create_dir_all(path)
            .with_context(|| format!("failed to make the run folder {}", path.display()))?;
        let path = path.canonicalize().with_context(|| format!("failed to open {}", path.display()))?;
        let lock = lock(&path)?;
        let resolved = toml::to_string(config).context("failed to write the resolved config")?;
        let config_path = path.join(CONFIG);
        let (checkpoints, differences) = admit(&path, &resolved, terms)?;
        differences.iter().for_each(|what| tracing::warn!("resumes with a different config: {what}"));
        write_whole(&config_path, &resolved)?;
        fs::create_dir_all(path.join(rollouts::FOLDER))?;
        let step = checkpoints.last().map_or(0, |c| c.step);
        rollouts::move_later_aside(&path, step)?;
        let metrics = metrics::MetricsFile::open(&path, step)?;
        let evaluated = lines::keep_until(&path, EVALUATIONS, step)?;
        remove_shadows(&path.join(WEIGHTS))?;
        let before = checkpoints.last().map(|last| last.groups).unwrap_or_default();
        let rollouts = RolloutWriter::new(&path, WrittenRollouts::default());
        Ok(Self {
            path,
            metrics,
            rollouts,
            events: None,
            evaluated,
            checkpoints,
            before,
            fingerprints: None,
            _lock: lock,
        })
    }

    /// Writes these of the trained rollouts.
    #[must_use]
    pub fn with_rollouts(mut self, which: WrittenRollouts) -> Self {
        self.rollouts = RolloutWriter::new(&self.path, which);
        self
    }

    /// Also writes all metrics for TensorBoard.
    #[must_use]
    pub fn with_tensorboard(mut self) -> Self {
        let step = self.last().map_or(0, |last| last.step);
        self.events = Some(TensorBoardWriter::after(&self.path, step));
        self
    }

    /// Absolute path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Who the run is on the broker; a new identity is made by `make`, and kept.
    ///
    /// # Errors
    /// Its file is damaged, or cannot be read or written.
    pub fn broker_identity(&self, make: impl FnOnce() -> BrokerIdentity) -> anyhow::Result<BrokerIdentity> {
        broker_identity::open(&self.path, make)
    }

    /// Number of steps done after the last checkpoint, which are taken again.
    #[must_use]
    pub fn past_rows(&self) -> usize {
        self.metrics.past
    }

    /// Records of all steps up to the last checkpoint.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn rows(&self) -> anyhow::Result<Vec<StepRecord>> {
        metrics::rows(&self.path)
    }

    /// Records of all evaluations up to the last checkpoint.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn evaluations(&self) -> anyhow::Result<Vec<EvaluationRecord>> {
        lines::read(&self.path, EVALUATIONS)
    }

    /// Keeps the fingerprints of the environments for the next checkpoint, and returns the changes since the last one.
    ///
    /// # Errors
    /// The stored fingerprints cannot be read.
    pub fn compare(&mut self, now: EnvironmentFingerprints) -> anyhow::Result<Vec<String>> {
        let then = if self.checkpoints.is_empty() { None } else { environments::read(&self.path)? };
        let changes = then.map(|then| environments::changes(&then, &now)).unwrap_or_default();
        self.fingerprints = Some(now);
        Ok(changes)
    }

    /// Fingerprint of the environment with this name, if [`RunFolder::compare`] received it.
    #[must_use]
    pub fn fingerprint(&self, environment: &str) -> Option<&EnvironmentFingerprint> {
        self.fingerprints.as_ref()?.get(environment)
    }

    /// Folder of the embedded engine's checkpoints.
    #[must_use]
    pub fn weights(&self) -> PathBuf {
        self.path.join(WEIGHTS)
    }

    /// Checkpoint to resume from, if there is one.
    #[must_use]
    pub fn last(&self) -> Option<&CheckpointRecord> {
        self.checkpoints.last()
    }

    /// All checkpoints, oldest first.
    #[must_use]
    pub fn checkpoints(&self) -> &[CheckpointRecord] {
        &self.checkpoints
    }

    /// Rolls back to an earlier checkpoint, by its index in [`RunFolder::checkpoints`]. Later checkpoints and the
    /// records of later steps move aside.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn roll_back(&mut self, place: usize) -> anyhow::Result<()> {
        let later = self.checkpoints.split_off(place + 1);
        let step = self.last().map_or(0, |last| last.step);
        checkpoints::write(&aside(&self.path, &format!("checkpoints.past_{step:06}"), "jsonl"), &later)?;
        checkpoints::write(&self.path.join(CHECKPOINTS), &self.checkpoints)?;
        self.before = self.last().map(|last| last.groups).unwrap_or_default();
        rollouts::move_later_aside(&self.path, step)?;
        self.metrics = metrics::MetricsFile::open(&self.path, step)?;
        self.events = self.events.take().map(|_| TensorBoardWriter::after(&self.path, step));
        self.evaluated = lines::keep_until(&self.path, EVALUATIONS, step)?;
        Ok(())
    }

    /// Point from which the run starts or resumes.
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

    /// Tokens that the service has billed to the run.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn usage(&self) -> anyhow::Result<UsageCounts> {
        usage::read(&self.path)
    }

    /// Writes the tokens that the service has billed to the run.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_usage(&self, counts: &UsageCounts) -> anyhow::Result<()> {
        usage::write(&self.path, counts)
    }

    /// Writes the record of a step, and begins to write its rollouts. Waits while those of the step before are being
    /// written.
    ///
    /// # Errors
    /// The record, or the rollouts of the step before, cannot be written.
    pub async fn add_step(&mut self, step: &CommittedStep) -> anyhow::Result<()> {
        self.rollouts.write(step).await?;
        self.metrics.append(&step.record)?;
        if let Some(events) = &mut self.events {
            events.append(step.record.step, step.record.numbers());
        }
        Ok(())
    }

    /// Returns the error of rollouts that could not be written in the meantime.
    ///
    /// # Errors
    /// They could not be written.
    pub async fn check_rollouts(&mut self) -> anyhow::Result<()> {
        self.rollouts.check().await
    }

    /// Waits until the rollouts of all steps are written.
    ///
    /// # Errors
    /// They cannot be written.
    pub async fn finish_rollouts(&mut self) -> anyhow::Result<()> {
        self.rollouts.finish().await
    }

    /// Writes the record of an evaluation.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn add_evaluation(&mut self, evaluation: &EvaluationRecord) -> anyhow::Result<()> {
        if let Some(events) = &mut self.events {
            events.append(evaluation.step, evaluation.numbers());
        }
        lines::append(&self.path, EVALUATIONS, evaluation)
    }

    /// Writes a rollout whose reward failed for good.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn quarantine(&self, rollout: &QuarantinedRollout) -> anyhow::Result<()> {
        lines::append(&self.path, QUARANTINE, &rollout.row())
    }

    /// Adds a saved checkpoint to the list, with the groups that were ready. The rollouts of its steps are written
    /// before, so that a run that resumes from it has all of them.
    ///
    /// # Errors
    /// A file cannot be written.
    pub async fn add_checkpoint(&mut self, saved: &SavedCheckpoint) -> anyhow::Result<()> {
        self.rollouts.finish().await?;
        if let Some(fingerprints) = self.fingerprints.take() {
            environments::write(&self.path, &fingerprints)?;
        }
        let spares = saved_groups::write(&self.path, &saved.name, &saved.saved_groups)?;
        let checkpoint = CheckpointRecord::new(saved, &self.before, spares);
        checkpoints::append(&self.path.join(CHECKPOINTS), &checkpoint)?;
        saved_groups::keep_only(&self.path, &saved.name)?;
        self.checkpoints.push(checkpoint);
        Ok(())
    }

    /// Drops all but the newest `keep` checkpoints from the list and returns them; those at `in_use` steps and later
    /// stay. The service still holds what is returned.
    ///
    /// # Errors
    /// A file cannot be written.
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
            checkpoints::write(&self.path.join(CHECKPOINTS), &self.checkpoints[old..])?;
        }
        Ok(self.checkpoints.drain(..old).collect())
    }
}

/// Whether a folder holds a run of this config with fewer than `steps` steps done.
#[must_use]
pub fn is_unfinished(path: &Path, config: &ConfigFile, steps: u64) -> bool {
    let same = || -> anyhow::Result<bool> {
        let Some(earlier) = text_of(&path.join(CONFIG))? else { return Ok(false) };
        Ok(compare(path, &earlier, &toml::to_string(config)?)?.is_empty())
    };
    let done = last_checkpoint(path).ok().flatten().map_or(0, |last| last.step);
    done < steps && same().unwrap_or(false)
}

/// Reads the last checkpoint of a run folder without opening it.
///
/// # Errors
/// The path is not a run folder, or its list of checkpoints is damaged.
pub fn last_checkpoint(path: &Path) -> anyhow::Result<Option<CheckpointRecord>> {
    ensure_run_folder(path)?;
    Ok(checkpoints::read(&path.join(CHECKPOINTS))?.pop())
}

/// Fails if the path is not a run folder.
fn ensure_run_folder(path: &Path) -> anyhow::Result<()> {
    ensure!(path.join(CONFIG).is_file(), "{} is not a run folder: it has no {CONFIG}", path.display());
    Ok(())
}

/// File with the resolved config.
pub const CONFIG: &str = "config.toml";
/// File with one line per evaluation.
const EVALUATIONS: &str = "evals.jsonl";
/// File with one line per reward that failed for good.
const QUARANTINE: &str = "quarantine.jsonl";
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

/// Error for a folder in use; `holder` is the file that stands for a lock if the file system has none.
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

/// Unused path for a file that moves aside: `stem.ext`, else `stem-2.ext` and so on.
fn aside(folder: &Path, stem: &str, ext: &str) -> PathBuf {
    let names = std::iter::once(format!("{stem}.{ext}")).chain((2..).map(|n| format!("{stem}-{n}.{ext}")));
    names.map(|name| folder.join(name)).find(|path| !path.exists()).expect("the names never end")
}

/// Removes checkpoints that an interrupted run kept only for its shadow adapters.
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

/// Reads a text file; `None` if it does not exist.
fn text_of(path: &Path) -> anyhow::Result<Option<String>> {
    match regular_file::open(path).and_then(std::io::read_to_string) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("failed to read {}", path.display())),
    }
}

/// Replaces the content of a file atomically, by a rename.
fn write_whole(path: &Path, text: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let new = path.with_extension("new");
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
    written.with_context(|| format!("failed to write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_folder(path: &Path, config: &ConfigFile) -> anyhow::Result<RunFolder> {
        RunFolder::open(path, config, ResumeTerms::SameConfig)
    }

    fn config(text: &str) -> ConfigFile {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_run_resumes_only_with_its_own_config() {
        let dir = tempfile::tempdir().unwrap();
        let first = config("[trainer]\nseed = 1\ntotal_batches = 5");
        drop(open_folder(dir.path(), &config("[trainer]\nseed = 7")).unwrap());
        let mut begun = open_folder(dir.path(), &first).expect("nothing was trained with the seed 7");
        begun.metrics.append(&StepRecord { step: 1, ..StepRecord::default() }).unwrap();
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
    fn a_pipe_or_a_folder_where_a_file_belongs_is_refused_by_name() {
        for name in [CONFIG, CHECKPOINTS, METRICS, EVALUATIONS, QUARANTINE] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(name);
            let refused = |why: &str| {
                let opened = open_folder(dir.path(), &config("")).err().unwrap();
                let inspected = inspect(dir.path(), &config("")).unwrap_err();
                assert!(!is_unfinished(dir.path(), &config(""), 1));
                for error in [opened, inspected] {
                    let error = format!("{error:#}");
                    assert!(error.contains(name) && error.ends_with(why), "{error}");
                }
            };
            let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
            assert!(made.success());
            refused("it is not a regular file");
            fs::remove_file(&path).unwrap();
            fs::create_dir(&path).unwrap();
            refused("it is a folder");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_lock_file_blocks_a_check_as_it_blocks_a_run() {
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
