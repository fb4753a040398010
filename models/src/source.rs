//! From what a person writes to a model's files.

use crate::byte_tokenizer::ByteTokenizer;
use crate::cache::Cache;
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::fetch::{Progress, Sources, fetch, fetch_text};
use crate::folder::tokenizer_only;
use crate::registry::{KNOWN_MODELS, TINY_RANDOM, known_model};
use minds_core::chat::Tokenizer;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a model's weights are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// Seeded random weights over bytes; no file.
    TinyRandom,
    /// A Hugging Face folder.
    Folder(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
}

impl ModelSource {
    /// The files, unless there are none.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open(&self) -> Result<Option<Checkpoint>, ModelError> {
        match self {
            Self::TinyRandom => Ok(None),
            Self::Folder(path) | Self::Gguf(path) => Checkpoint::open(path).map(Some),
        }
    }

    fn of(path: PathBuf) -> Self {
        if path.is_dir() { Self::Folder(path) } else { Self::Gguf(path) }
    }
}

/// Finds a model by path, or by name in the cache, or fetches it.
///
/// # Errors
/// There is no such path or name, or no source delivers it; the error lists what was tried.
pub fn resolve(name_or_path: &str, cache: &Cache, progress: &Progress) -> Result<ModelSource, ModelError> {
    resolve_from(name_or_path, cache, &Sources::from_env(), progress)
}

/// As [`resolve`], with the sources named.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_from(
    name_or_path: &str,
    cache: &Cache,
    sources: &Sources,
    progress: &Progress,
) -> Result<ModelSource, ModelError> {
    if name_or_path == TINY_RANDOM {
        return Ok(ModelSource::TinyRandom);
    }
    let path = Path::new(name_or_path);
    let is_gguf = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    if path.is_dir() || (path.is_file() && is_gguf) {
        return Ok(ModelSource::of(path.to_owned()));
    }
    if path.is_file() {
        return Err(ModelError::unsupported(path, "a model is a folder or a file that ends in .gguf"));
    }
    if is_gguf || path.is_absolute() || name_or_path.starts_with(['.', '~']) {
        return Err(ModelError::missing(
            path,
            "a model is a folder, a .gguf file, or a name such as owner/model",
        ));
    }
    let name = known_model(name_or_path).map_or(name_or_path, |model| model.name);
    if !is_name(name) {
        let known: Vec<&str> = KNOWN_MODELS.iter().map(|model| model.name).chain([TINY_RANDOM]).collect();
        let hint = format!("give a path, a name owner/model of the hub, or one of {}", known.join(", "));
        return Err(ModelError::UnknownName { name: name_or_path.to_owned(), hint });
    }
    fetch(name, cache, sources, progress).map(|model| ModelSource::of(model.path))
}

/// The tokenizer of a model whose weights are elsewhere, such as on a server; fetches no weights where the hub is there.
///
/// # Errors
/// As [`resolve`].
pub fn tokenizer(
    name_or_path: &str,
    cache: &Cache,
    sources: &Sources,
    progress: &Progress,
) -> Result<Arc<dyn Tokenizer>, ModelError> {
    if name_or_path == TINY_RANDOM {
        return Ok(Arc::new(ByteTokenizer));
    }
    let path = Path::new(name_or_path);
    if path.is_dir() {
        return Ok(Arc::new(tokenizer_only(path)?));
    }
    let name = known_model(name_or_path).map_or(name_or_path, |model| model.name);
    if is_name(name)
        && !path.is_file()
        && let Some(folder) = fetch_text(name, cache, sources, progress)?
    {
        return Ok(Arc::new(tokenizer_only(&folder)?));
    }
    match resolve_from(name_or_path, cache, sources, progress)?.open()? {
        Some(files) => Ok(Arc::new(files.tokenizer()?)),
        None => Ok(Arc::new(ByteTokenizer)),
    }
}

/// `owner/name` as the hub allows them; nothing that could leave the cache's folder.
fn is_name(name: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty()
            && part.len() <= 96
            && !part.starts_with('.')
            && !part.contains("--")
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    name.split_once('/').is_some_and(|(owner, model)| part(owner) && part(model))
}
