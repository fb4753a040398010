//! The first weights of a run that does not start from its base model.

use super::ModelService;
use crate::config::RunPlan;
use crate::config::error::ConfigError;
use crate::config::file::ConfigFile;
use crate::config::plan::{EMBEDDED, HOSTED_URL};
use crate::config::warm_start::{WarmStart, WeightsLocation};
use crate::run_folder;
use anyhow::Context as _;
use minds_core::checkpoint::CheckpointAddress;
use minds_core::service::TrainingBackend;
use minds_engine::checkpoint::{has_optimizer, read_spec};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Weights that were found where the config says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstWeights {
    source: FirstWeightsSource,
    with_optimizer: bool,
    /// The run and the checkpoint that they are from, if they are from a run.
    checkpoint: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FirstWeightsSource {
    /// The service has them under this path.
    Saved(String),
    /// An adapter in PEFT's format, which the service takes up.
    Adapter(PathBuf),
}

impl fmt::Display for FirstWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.checkpoint, &self.source) {
            (Some(checkpoint), _) => f.write_str(checkpoint)?,
            (None, FirstWeightsSource::Saved(path)) => f.write_str(path)?,
            (None, FirstWeightsSource::Adapter(folder)) => write!(f, "the adapter in {}", folder.display())?,
        }
        f.write_str(if self.with_optimizer { ", with the optimizer's state" } else { "" })
    }
}

impl FirstWeights {
    /// Looks for the weights that a plan starts from. Only this machine is searched: whether a service has a path shows
    /// when the run starts.
    ///
    /// # Errors
    /// There are no such weights, or they do not fit the run.
    pub fn find(plan: &RunPlan) -> Result<Option<Self>, ConfigError> {
        let Some(WarmStart { weights, with_optimizer }) = &plan.warm_start else { return Ok(None) };
        let with_optimizer = *with_optimizer;
        let (source, checkpoint) = match weights {
            WeightsLocation::Saved(path) => (FirstWeightsSource::Saved(path.clone()), None),
            WeightsLocation::Folder(folder) => {
                in_folder(plan, folder).map_err(|why| plan.wrong("model.from", why))?
            }
        };
        if let FirstWeightsSource::Adapter(folder) = &source {
            check_adapter(plan, folder, with_optimizer)?;
        }
        Ok(Some(Self { source, with_optimizer, checkpoint }))
    }

    /// Loads the weights into an adapter of the run.
    ///
    /// # Errors
    /// The service does not have or does not take them.
    pub async fn load(
        &self,
        plan: &RunPlan,
        ready: &ModelService,
        training: &dyn TrainingBackend,
    ) -> anyhow::Result<()> {
        let loading = async {
            let path = match &self.source {
                FirstWeightsSource::Saved(path) => path.clone(),
                FirstWeightsSource::Adapter(folder) => {
                    ready.service.import_weights(folder, &plan.lora).await?
                }
            };
            training.load_state(&path, self.with_optimizer).await?;
            anyhow::Ok(())
        };
        let loaded = ready.unless_stopped(loading).await;
        loaded.with_context(|| format!("{}: `model.from`: failed to load {self}", plan.origin))
    }
}

/// What a folder holds: the last checkpoint of a run, with its description, or an adapter.
fn in_folder(plan: &RunPlan, folder: &Path) -> Result<(FirstWeightsSource, Option<String>), String> {
    let shown = folder.display();
    if folder.join("adapter_config.json").is_file() {
        return match plan.service.engine() {
            Some(_) => Ok((FirstWeightsSource::Adapter(folder.to_owned()), None)),
            None => Err(format!(
                "is {shown}, a folder of this machine, and the Tinker API takes no weights: name a tinker:// path of the \
                 service, or train with the embedded engine"
            )),
        };
    }
    if !folder.is_dir() {
        return Err(format!("is {shown}, which does not exist"));
    }
    if !folder.join(run_folder::CONFIG).is_file() {
        return Err(format!(
            "is {shown}, which is no run folder (it has no config.toml) and no PEFT folder (it has no adapter_config.json)"
        ));
    }
    let last = run_folder::last_checkpoint(folder).map_err(|error| format!("is {shown}: {error:#}"))?;
    let last = last.ok_or_else(|| format!("is {shown}, a run without a checkpoint"))?;
    let checkpoint = format!("checkpoint {} of {shown}", last.name);
    let its_service = service_of(folder).map_err(|error| format!("is {shown}: {error:#}"))?;
    let embedded = its_service == EMBEDDED;
    let source = match plan.service.engine() {
        Some(_) if embedded => {
            let address: CheckpointAddress =
                last.state_path.parse().map_err(|error| format!("is {shown}: {error}"))?;
            FirstWeightsSource::Adapter(folder.join("weights").join(address.run()).join(address.id()))
        }
        None if its_service == plan.service.name() => FirstWeightsSource::Saved(last.state_path),
        _ => {
            return Err(format!(
                "is {shown}, whose weights are on another service ({its_service}); this run trains on {}",
                plan.service.name()
            ));
        }
    };
    Ok((source, Some(checkpoint)))
}

/// `embedded`, or the address of the server of a run.
fn service_of(folder: &Path) -> anyhow::Result<String> {
    let path = folder.join(run_folder::CONFIG);
    let text = fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    let config: ConfigFile =
        toml::from_str(&text).with_context(|| format!("{} is damaged", path.display()))?;
    Ok(config.tinker.base_url.filter(|url| !url.is_empty()).unwrap_or_else(|| HOSTED_URL.into()))
}

/// Refuses an adapter of another shape than the one that the run trains.
fn check_adapter(plan: &RunPlan, folder: &Path, with_optimizer: bool) -> Result<(), ConfigError> {
    let wrong = |why: String| plan.wrong("model.from", format!("is {}: {why}", folder.display()));
    let found = read_spec(folder).map_err(|error| wrong(error.to_string()))?;
    let own = &plan.lora;
    if (found.rank, found.alpha.to_bits()) != (own.rank, own.alpha.to_bits()) {
        let [rank, alpha] = [found.rank.to_string(), found.alpha.to_string()];
        return Err(wrong(format!(
            "its adapter has rank {rank} and alpha {alpha}, this run rank {} and alpha {}: set trainer.training_rank = \
             {rank} and trainer.lora_alpha = {alpha}",
            own.rank, own.alpha
        )));
    }
    if with_optimizer && !has_optimizer(folder) {
        let problem = format!("is true, and {} holds no optimizer's state: leave it out", folder.display());
        return Err(plan.wrong("model.from_optimizer", problem));
    }
    Ok(())
}
