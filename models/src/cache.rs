//! Cache of fetched models on disk.
//!
//! A model is in the cache if its `record.json` exists: the record is written last, by rename, after the files that it
//! names are complete. All other files there are unfinished work that the next fetch resumes or removes.

use crate::bounded_file::read_small;
use crate::error::ModelError;
use crate::lock::FileLock;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const RECORD: &str = "record.json";

/// A folder that holds fetched models.
#[derive(Clone, Debug)]
pub struct ModelCache {
    /// `None` if no environment variable determines it.
    root: Option<PathBuf>,
}

/// Where a cached model came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum ModelOrigin {
    /// The full-precision files of the hub.
    Hub {
        /// Commit of the repository.
        commit: String,
    },
    /// The quantised file of a Python package.
    Pypi {
        /// Name and version of the package, as `name==version`.
        package: String,
    },
}

/// A model that needs no fetching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// Name of the model on the hub, `owner/name`.
    pub name: String,
    /// Where it came from.
    pub origin: ModelOrigin,
    /// The folder or GGUF file to open.
    pub path: PathBuf,
    /// Size in bytes of the file, or of all files of the folder.
    pub bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct CacheRecord {
    name: String,
    origin: ModelOrigin,
    /// Relative to the cache's root, with `/`.
    path: String,
    bytes: u64,
}

impl ModelCache {
    /// The cache in this folder; it need not exist yet.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: Some(root.into()) }
    }

    /// `MINDS_MODELS`, or `minds-actors/models` in `XDG_CACHE_HOME` or `~/.cache`. Where none of the variables is set,
    /// `HOME` neither, the cache has no folder: it holds nothing, and only what needs the folder fails.
    #[must_use]
    pub fn from_env() -> Self {
        Self::from_variables(|key| std::env::var_os(key))
    }

    fn from_variables(value: impl Fn(&str) -> Option<OsString>) -> Self {
        let folder = |key: &str| value(key).filter(|v| !v.is_empty()).map(PathBuf::from);
        let below = |base: PathBuf| base.join("minds-actors").join("models");
        let root = folder("MINDS_MODELS")
            .or_else(|| folder("XDG_CACHE_HOME").map(below))
            .or_else(|| folder("HOME").map(|home| below(home.join(".cache"))));
        Self { root }
    }

    /// Folder that holds the cached models.
    ///
    /// # Errors
    /// No environment variable determines the folder.
    pub fn root(&self) -> Result<&Path, ModelError> {
        self.root.as_deref().ok_or_else(|| {
            let hint = "neither HOME nor XDG_CACHE_HOME is set: set MINDS_MODELS to a folder for models";
            ModelError::missing(Path::new("~/.cache"), hint)
        })
    }

    /// The cached model of this name, if it is complete.
    ///
    /// # Errors
    /// Its record cannot be read.
    pub fn get(&self, name: &str) -> Result<Option<CachedModel>, ModelError> {
        let Some(root) = &self.root else { return Ok(None) };
        let path = root.join(folder_of(name)).join(RECORD);
        if !path.is_file() {
            return Ok(None);
        }
        let record: CacheRecord = serde_json::from_slice(&read_small(&path, 1 << 20)?)
            .map_err(|e| ModelError::damaged(&path, e.to_string()))?;
        let model = root.join(&record.path);
        // The files may have been removed without the record.
        let whole = model.is_dir() || fs::metadata(&model).is_ok_and(|m| m.len() == record.bytes);
        Ok(whole.then_some(CachedModel {
            name: record.name,
            origin: record.origin,
            path: model,
            bytes: record.bytes,
        }))
    }

    /// All complete models, sorted by name.
    ///
    /// # Errors
    /// The folder or a record cannot be read.
    pub fn list(&self) -> Result<Vec<CachedModel>, ModelError> {
        let root = self.root()?;
        let entries = match fs::read_dir(root) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|e| ModelError::io("list", root, e))?,
        };
        let mut models = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| ModelError::io("list", root, e))?;
            let folder = entry.file_name();
            if let Some((owner, name)) = folder.to_str().and_then(|s| s.split_once("--")) {
                models.extend(self.get(&format!("{owner}/{name}"))?);
            }
        }
        models.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(models)
    }

    /// Records a complete model, which makes it visible in the cache.
    pub(crate) fn put(
        &self,
        name: &str,
        origin: ModelOrigin,
        path: &Path,
    ) -> Result<CachedModel, ModelError> {
        let bytes = size_of(path).map_err(|e| ModelError::io("measure", path, e))?;
        let relative = path.strip_prefix(self.root()?).unwrap_or(path);
        let parts: Vec<_> = relative.iter().map(|part| part.to_string_lossy()).collect();
        let record =
            CacheRecord { name: name.to_owned(), origin: origin.clone(), path: parts.join("/"), bytes };
        let entry = self.entry(name)?;
        let write = || -> io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(&entry)?;
            serde_json::to_writer_pretty(&mut file, &record)?;
            file.flush()?;
            file.as_file().sync_all()?;
            file.persist(entry.join(RECORD)).map_err(|e| e.error)?;
            Ok(())
        };
        write().map_err(|e| write_error(&entry, bytes, e))?;
        Ok(CachedModel { name: name.to_owned(), origin, path: path.to_owned(), bytes })
    }

    /// Locks this model against fetches by other processes, until the lock is dropped. `waiting` is called if another
    /// process holds the lock.
    pub(crate) fn lock(&self, name: &str, waiting: impl FnOnce()) -> Result<FileLock, ModelError> {
        let entry = self.entry(name)?;
        fs::create_dir_all(&entry).map_err(|e| ModelError::io("create", &entry, e))?;
        let path = entry.join("lock");
        FileLock::wait(&path, waiting).map_err(|e| ModelError::io("lock", &path, e))
    }

    /// The model's own folder. `name` has been checked: one `/`, no path tricks.
    pub(crate) fn entry(&self, name: &str) -> Result<PathBuf, ModelError> {
        Ok(self.root()?.join(folder_of(name)))
    }
}

fn folder_of(name: &str) -> String {
    name.replacen('/', "--", 1)
}

/// Converts an I/O error on writing; a full disk becomes [`ModelError::DiskFull`].
pub(crate) fn write_error(path: &Path, needed: u64, error: io::Error) -> ModelError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ModelError::DiskFull { path: path.to_owned(), needed }
        }
        _ => ModelError::io("write to", path, error),
    }
}

/// Bytes of a file, or of the files of a folder; links count as what they point to.
fn size_of(path: &Path) -> io::Result<u64> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_dir() {
        return Ok(metadata.len());
    }
    let mut sum = 0;
    for entry in fs::read_dir(path)? {
        sum += size_of(&entry?.path())?;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::FetchSources;
    use crate::source::{ModelAvailability, ModelSource, model_availability, resolve_from, tokenizer};
    use std::sync::Arc;

    #[test]
    fn without_a_home_only_what_must_be_fetched_asks_for_the_folder() {
        let cache = ModelCache::from_variables(|_| None);
        let model = tempfile::tempdir().unwrap();
        let gguf = model.path().join("a.gguf");
        fs::write(&gguf, "").unwrap();
        let nowhere = FetchSources { hub: false, hub_endpoint: None, python: None };
        let ask = |name: &str| resolve_from(name, &cache, &nowhere, &(Arc::new(|_| ()) as _));
        assert_eq!(ask("tiny-random").unwrap(), ModelSource::TinyRandom);
        assert_eq!(ask(model.path().to_str().unwrap()).unwrap(), ModelSource::Folder(model.path().into()));
        assert_eq!(ask(gguf.to_str().unwrap()).unwrap(), ModelSource::Gguf(gguf.clone()));
        assert!(tokenizer("tiny-random", &cache, &nowhere, &(Arc::new(|_| ()) as _)).is_ok());
        assert_eq!(
            model_availability("tiny-random", &cache).unwrap(),
            ModelAvailability::Complete(ModelSource::TinyRandom)
        );
        let name = "HuggingFaceTB/SmolLM2-135M-Instruct";
        assert!(matches!(model_availability(name, &cache), Ok(ModelAvailability::Absent { .. })));
        for error in [ask(name).unwrap_err(), cache.list().unwrap_err()] {
            assert!(error.to_string().contains("set MINDS_MODELS"), "{error}");
        }
        let found =
            |set: &'static str| ModelCache::from_variables(move |key| (key == set).then(|| "/x".into()));
        for (set, root) in [
            ("MINDS_MODELS", "/x"),
            ("XDG_CACHE_HOME", "/x/minds-actors/models"),
            ("HOME", "/x/.cache/minds-actors/models"),
        ] {
            assert_eq!(found(set).root().unwrap(), Path::new(root));
        }
    }
}
