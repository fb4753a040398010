//! Decides which folders a run may use, and whether it resumes the run in one.
//!
//! Nothing is written here: a folder can be inspected before a run opens it.

use super::checkpoints::{self, CheckpointRecord};
use super::{CONFIG, EVALUATIONS, LOCK, QUARANTINE, in_use, metrics, text_of};
use crate::config::file::ConfigFile;
use crate::config::plan::EMBEDDED;
use crate::regular_file;
use anyhow::{Context as _, bail};
use minds_models::LockError;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Which runs may resume in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeTerms {
    /// Only a run of the same config.
    SameConfig,
    /// A run of any config; differences are logged.
    AnyConfig,
    /// No run: the new run must not resume one.
    New,
}

/// What a run would find in its folder, determined without opening it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FolderOutlook {
    /// No earlier steps or checkpoints: the run begins.
    New,
    /// A run of the same config with a checkpoint, which it resumes from.
    Resumes {
        /// Optimizer steps done at the last checkpoint.
        step: u64,
    },
    /// A run of the same config without a checkpoint: it starts over.
    Restarts,
}

/// A warning if the file system of the folder, which need not exist yet, does not support locks.
#[must_use]
pub fn lock_warning(path: &Path) -> Option<String> {
    let existing = path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."));
    (!minds_models::has_locks(existing)).then(|| {
        format!(
            "output_dir: the file system of {} has no locks: a file in the run folder stands for one, and after a kill on \
             another machine it has to be removed by hand",
            existing.display()
        )
    })
}

/// Inspects the folder that a run would open.
///
/// # Errors
/// The run would be refused: another process uses the folder, or it holds other files or a run of another config.
pub fn inspect(path: &Path, config: &ConfigFile) -> anyhow::Result<FolderOutlook> {
    if !path.exists() {
        return Ok(FolderOutlook::New);
    }
    if let Err(LockError::Held(holder)) = minds_models::check_lock(&path.join(LOCK)) {
        return Err(in_use(path, holder.as_deref()));
    }
    let resolved = toml::to_string(config).context("failed to write the resolved config")?;
    let (checkpoints, _) = admit(path, &resolved, ResumeTerms::SameConfig)?;
    Ok(match checkpoints.last() {
        Some(last) => FolderOutlook::Resumes { step: last.step },
        None if metrics::any_rows(path) => FolderOutlook::Restarts,
        None => FolderOutlook::New,
    })
}

/// Checkpoints of a folder that a run of this config may use, and the differences from the config that it holds, if
/// the terms allow any.
pub(super) fn admit(
    path: &Path,
    resolved: &str,
    terms: ResumeTerms,
) -> anyhow::Result<(Vec<CheckpointRecord>, Vec<String>)> {
    refuse_other_than_files(path)?;
    let list = path.join(checkpoints::FILE);
    let checkpoints = checkpoints::read(&list)?;
    if checkpoints.is_empty() && list.exists() {
        tracing::warn!(
            file = %list.display(),
            "holds no complete checkpoint, as after a crash during the first save or a damaged disk: the run restarts from \
             step 0; saved weights stay in the folder"
        );
    }
    // The config of a run that was refused, or ended before its first step, is not binding.
    let begun = !checkpoints.is_empty() || metrics::any_rows(path);
    match text_of(&path.join(CONFIG))? {
        Some(_) if begun && terms == ResumeTerms::New => {
            bail!(
                "{} holds a run already, and `--resume never` requires a new one: name another folder",
                path.display()
            );
        }
        Some(earlier) if begun => {
            let differences = compare(path, &earlier, resolved)?;
            if terms == ResumeTerms::AnyConfig {
                return Ok((checkpoints, differences));
            }
            if !differences.is_empty() {
                bail!(
                    "{} holds a run with another config:\n  {}\nuse the same config to resume, name another folder, \
                     or go on all the same with --force",
                    path.display(),
                    differences.join("\n  ")
                )
            }
        }
        Some(_) => {}
        None => {
            let strangers = fs::read_dir(path)?.filter_map(Result::ok).map(|entry| entry.file_name());
            let is_lock = |name: &OsString| name.to_str().is_some_and(|name| name.starts_with(LOCK));
            if let Some(stranger) = strangers.into_iter().find(|name| !is_lock(name)) {
                bail!(
                    "{} holds {} but no config.toml, so it is not a run folder: name an empty or a new one",
                    path.display(),
                    stranger.display()
                );
            }
        }
    }
    Ok((checkpoints, Vec::new()))
}

/// Refuses a pipe or a folder where a run has a file: opening a pipe would block.
fn refuse_other_than_files(folder: &Path) -> anyhow::Result<()> {
    for name in [CONFIG, checkpoints::FILE, metrics::FILE, EVALUATIONS, QUARANTINE] {
        let path = folder.join(name);
        match regular_file::regular(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("failed to open {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Differences between the config that a run began with and the one that it is to resume with. The length of the run,
/// its folder, the weights that it began with, and the address of its server may change.
pub(super) fn compare(path: &Path, earlier: &str, now: &str) -> anyhow::Result<Vec<String>> {
    let mut configs: [toml::Table; 2] = [
        earlier.parse().with_context(|| format!("{}/config.toml is not readable", path.display()))?,
        now.parse().context("the resolved config is not readable")?,
    ];
    for config in &mut configs {
        config.remove("output_dir");
        config.remove("engine");
        config.remove("run");
        config.remove("log");
        // The weights that it began with are in its checkpoints.
        if let Some(model) = config.get_mut("model").and_then(toml::Value::as_table_mut) {
            model.remove("from");
            model.remove("from_optimizer");
        }
        if let Some(tinker) = config.get_mut("tinker").and_then(toml::Value::as_table_mut) {
            // Checkpoints are on the server, whatever its address; those of the embedded engine are in the folder.
            tinker.retain(|key, value| key == "base_url" && value.as_str() == Some(EMBEDDED));
        }
        if let Some(trainer) = config.get_mut("trainer").and_then(toml::Value::as_table_mut) {
            trainer.remove("total_batches");
            trainer.remove("save_every");
        }
    }
    let [before, after] = &configs;
    let mut differences = Vec::new();
    differ(
        "",
        Some(&toml::Value::Table(before.clone())),
        Some(&toml::Value::Table(after.clone())),
        &mut differences,
    );
    Ok(differences)
}

fn differ(key: &str, before: Option<&toml::Value>, after: Option<&toml::Value>, out: &mut Vec<String>) {
    match (before, after) {
        (Some(toml::Value::Table(a)), Some(toml::Value::Table(b))) => {
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort();
            keys.dedup();
            for name in keys {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                differ(&key, a.get(name), b.get(name), out);
            }
        }
        (a, b) if a == b => {}
        (a, b) => {
            let show = |value: Option<&toml::Value>| value.map_or("nothing".into(), ToString::to_string);
            out.push(format!("{key}: {} then, {} now", show(a), show(b)));
        }
    }
}
