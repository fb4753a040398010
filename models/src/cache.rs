//! Where fetched models lie.
//!
//! A model is in the cache when its `record.json` is: the record is written last, by rename, after the files it
//! names are whole. Whatever else lies there is unfinished work that the next fetch resumes or removes.

use crate::bytes::read_small;
use crate::error::ModelError;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const RECORD: &str = "record.json";

/// A folder of models.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// Where a cached model came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum Origin {
    /// The full-precision files of the hub.
    Hub {
        /// Commit of the repository.
        commit: String,
    },
    /// The quantised file of a Python package.
    Pypi {
        /// `name==version`.
        package: String,
    },
}

/// A model that needs no fetching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// `owner/name`.
    pub name: String,
    /// Where it came from.
    pub origin: Origin,
    /// The folder or GGUF file to open.
    pub path: PathBuf,
    /// Bytes on disk.
    pub bytes: u64,
}

#[derive(Serialize, Deserialize)]
struct Record {
    name: String,
    origin: Origin,
    /// Relative to the cache's root, with `/`.
    path: String,
    bytes: u64,
}

impl Cache {
    /// The cache in this folder; it need not exist yet.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// `MINDS_MODELS`, or `minds-actors/models` in `XDG_CACHE_HOME` or `~/.cache`.
    ///
    /// # Errors
    /// None of the variables is set, `HOME` neither.
    pub fn from_env() -> Result<Self, ModelError> {
        let folder = |key: &str| std::env::var_os(key).filter(|v| !v.is_empty()).map(PathBuf::from);
        let below = |base: PathBuf| base.join("minds-actors").join("models");
        folder("MINDS_MODELS")
            .or_else(|| folder("XDG_CACHE_HOME").map(below))
            .or_else(|| folder("HOME").map(|home| below(home.join(".cache"))))
            .map(Self::at)
            .ok_or_else(|| {
                ModelError::missing(Path::new("~/.cache"), "set MINDS_MODELS to a folder for models")
            })
    }

    /// The folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The model, if it is whole.
    ///
    /// # Errors
    /// Its record cannot be read.
    pub fn get(&self, name: &str) -> Result<Option<CachedModel>, ModelError> {
        let path = self.entry(name).join(RECORD);
        if !path.is_file() {
            return Ok(None);
        }
        let record: Record = serde_json::from_slice(&read_small(&path, 1 << 20)?)
            .map_err(|e| ModelError::damaged(&path, e.to_string()))?;
        let model = self.root.join(&record.path);
        // Someone may have removed the files and left the record.
        let whole = model.is_dir() || fs::metadata(&model).is_ok_and(|m| m.len() == record.bytes);
        Ok(whole.then_some(CachedModel {
            name: record.name,
            origin: record.origin,
            path: model,
            bytes: record.bytes,
        }))
    }

    /// Every whole model, by name.
    ///
    /// # Errors
    /// The folder or a record cannot be read.
    pub fn list(&self) -> Result<Vec<CachedModel>, ModelError> {
        let entries = match fs::read_dir(&self.root) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|e| ModelError::io("list", &self.root, e))?,
        };
        let mut models = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| ModelError::io("list", &self.root, e))?;
            let folder = entry.file_name();
            if let Some((owner, name)) = folder.to_str().and_then(|s| s.split_once("--")) {
                models.extend(self.get(&format!("{owner}/{name}"))?);
            }
        }
        models.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(models)
    }

    /// Declares the model whole.
    pub(crate) fn put(&self, name: &str, origin: Origin, path: &Path) -> Result<CachedModel, ModelError> {
        let bytes = size_of(path).map_err(|e| ModelError::io("measure", path, e))?;
        let relative = path.strip_prefix(&self.root).unwrap_or(path);
        let parts: Vec<_> = relative.iter().map(|part| part.to_string_lossy()).collect();
        let record = Record { name: name.to_owned(), origin: origin.clone(), path: parts.join("/"), bytes };
        let entry = self.entry(name);
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

    /// Holds off every other process that wants to fetch this model, until the file is dropped. `waiting` is called
    /// if another one is at it.
    pub(crate) fn lock(&self, name: &str, waiting: impl FnOnce()) -> Result<File, ModelError> {
        let entry = self.entry(name);
        fs::create_dir_all(&entry).map_err(|e| ModelError::io("create", &entry, e))?;
        let path = entry.join("lock");
        let file = File::create(&path).map_err(|e| ModelError::io("create", &path, e))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                waiting();
                file.lock().map_err(|e| ModelError::io("lock", &path, e))?;
                Ok(file)
            }
            Err(TryLockError::Error(e)) => Err(ModelError::io("lock", &path, e)),
        }
    }

    /// The model's own folder. `name` has been checked: one `/`, no path tricks.
    pub(crate) fn entry(&self, name: &str) -> PathBuf {
        self.root.join(name.replacen('/', "--", 1))
    }
}

/// An I/O error on writing, where a full disk is told apart.
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
