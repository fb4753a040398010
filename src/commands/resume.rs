//! Finds the folder of a run, and the checkpoint from which it resumes.

use crate::assemble::{FirstWeights, ModelService};
use crate::cli::{ResumeArgs, ResumeMode};
use crate::config::RunPlan;
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::run_folder::{self, ResumeTerms, RunFolder};
use anyhow::{Context as _, anyhow};
use minds_core::service::{BackendError, TrainingBackend};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Opens the folder of the run to resume, or a new one.
///
/// # Errors
/// There is no such run, or its folder may not be used.
pub fn open(plan: &RunPlan, args: &ResumeArgs) -> Result<RunFolder, CommandError> {
    let runs = runs_of(plan);
    let path = match (&plan.output_dir, args.resume) {
        (Some(named), ResumeMode::Latest) => {
            return Err(named_and_latest(&runs, named)).or_exit(ProcessExit::Config);
        }
        (Some(named), _) => named.clone(),
        (None, ResumeMode::Latest) => latest(plan, &runs).or_exit(ProcessExit::Config)?,
        (None, ResumeMode::Auto | ResumeMode::Never) => new_folder(&runs),
    };
    let terms = match (args.resume, args.force) {
        (ResumeMode::Never, _) => ResumeTerms::New,
        (_, true) => ResumeTerms::AnyConfig,
        (_, false) => ResumeTerms::SameConfig,
    };
    let folder = RunFolder::open(&path, &plan.resolved, terms).or_exit(ProcessExit::Config)?;
    let folder = folder.with_rollouts(plan.rollouts);
    Ok(if plan.tensorboard { folder.with_tensorboard() } else { folder })
}

/// The folder of all stages of a config: the one that is named, the newest, or a new one.
///
/// # Errors
/// There is none to resume.
pub fn folder_of_stages(plan: &RunPlan, args: &ResumeArgs) -> anyhow::Result<PathBuf> {
    let runs = runs_of(plan);
    match (&plan.output_dir, args.resume) {
        (Some(named), ResumeMode::Latest) => Err(named_and_latest(&runs, named)),
        (Some(named), _) => Ok(named.clone()),
        (None, ResumeMode::Auto | ResumeMode::Never) => Ok(new_folder(&runs)),
        (None, ResumeMode::Latest) => newest_first(&runs).into_iter().next().ok_or_else(|| {
            anyhow!("--resume latest: there is no run of this config under {}", runs.display())
        }),
    }
}

fn runs_of(plan: &RunPlan) -> PathBuf {
    PathBuf::from("outputs").join(&plan.stem)
}

/// A folder named after the time, which does not exist yet.
fn new_folder(runs: &Path) -> PathBuf {
    let time = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let names = std::iter::once(time.clone()).chain((2..).map(|n| format!("{time}-{n}")));
    names.map(|name| runs.join(name)).find(|path| !path.exists()).expect("the names never end")
}

/// Folder names are creation times.
fn newest_first(runs: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(runs).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.sort();
    folders.reverse();
    folders
}

fn named_and_latest(runs: &Path, named: &Path) -> anyhow::Error {
    let why = format!("--resume latest looks under {}, and {} is named", runs.display(), named.display());
    anyhow!("{why}: leave one of them out")
}

/// The newest unfinished run of the plan's config.
fn latest(plan: &RunPlan, runs: &Path) -> anyhow::Result<PathBuf> {
    newest_first(runs)
        .into_iter()
        .find(|path| run_folder::is_unfinished(path, &plan.resolved, plan.pipeline.train.max_steps))
        .ok_or_else(|| {
            anyhow!("--resume latest: there is no unfinished run of this config under {}", runs.display())
        })
}

/// Makes the adapter from the newest checkpoint that the service can load; in a new run, from the `first` weights. Skips
/// rejected checkpoints with a warning; if it rejects all of them, nothing is discarded.
///
/// # Errors
/// The service is unavailable, or can load none of the checkpoints or not the first weights.
pub async fn adapter(
    plan: &RunPlan,
    ready: &ModelService,
    folder: &mut RunFolder,
    first_weights: Option<&FirstWeights>,
) -> anyhow::Result<Arc<dyn TrainingBackend>> {
    let make = || ready.service.create_training(plan.lora.clone());
    let mut training = make().await?;
    let states: Vec<String> = folder.checkpoints().iter().map(|c| c.state_path.clone()).collect();
    let mut first = None;
    for (place, path) in states.iter().enumerate().rev() {
        match training.load_state(path, true).await {
            Ok(()) => {
                if first.is_some() {
                    folder.roll_back(place)?;
                }
                return Ok(training);
            }
            Err(error @ BackendError::Rejected(_)) => {
                tracing::warn!(path, %error, "failed to load a checkpoint, trying the one before it");
                first.get_or_insert((path.clone(), error));
                // The checkpoint may have been loaded in part.
                training = make().await?;
            }
            Err(error) => return Err(error).with_context(|| format!("failed to load the checkpoint {path}")),
        }
    }
    match first {
        None => {
            if let Some(weights) = first_weights {
                weights.load(plan, ready, &*training).await?;
            }
            Ok(training)
        }
        Some((path, error)) => Err(error).with_context(|| {
            format!("failed to load the checkpoint {path} or any before it; --resume never starts over")
        }),
    }
}
