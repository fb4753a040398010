//! Fetching: from a hub, twice at once, cut off, damaged.

use crate::hub::{COMMIT, Hub};
use crate::make::{config_json, safetensors, small_tensors};
use crate::tokenizer::tokenizer_json;
use minds_models::{
    FetchProgress, FetchSources, FetchStep, ModelCache, ModelError, ModelOrigin, resolve_from,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const NAME: &str = "someone/small-model";

fn files() -> BTreeMap<String, Vec<u8>> {
    BTreeMap::from([
        ("config.json".into(), config_json("LlamaForCausalLM").to_string().into_bytes()),
        ("model.safetensors".into(), safetensors(&small_tensors())),
        ("README.md".into(), b"not wanted".to_vec()),
        ("onnx/model.safetensors".into(), b"not wanted".to_vec()),
    ])
}

fn from(hub: &Hub) -> FetchSources {
    FetchSources { hub: true, hub_endpoint: Some(hub.endpoint.clone()), python: None }
}

fn recorder() -> (FetchProgress, Arc<Mutex<Vec<FetchStep>>>) {
    let steps = Arc::new(Mutex::new(Vec::new()));
    let sink = steps.clone();
    (Arc::new(move |step| sink.lock().unwrap().push(step)), steps)
}

#[test]
fn a_model_of_the_hub_is_fetched_once_and_recorded() {
    let hub = Hub::serve(NAME, files());
    let root = tempfile::tempdir().unwrap();
    let cache = ModelCache::at(root.path());
    let (progress, steps) = recorder();
    let source = resolve_from(NAME, &cache, &from(&hub), &progress).unwrap();
    let checkpoint = source.open().unwrap().unwrap();
    assert_eq!(checkpoint.tensor("model.norm.weight").unwrap().into_values()[0], 1000.0);

    let models = cache.list().unwrap();
    assert_eq!(models.len(), 1);
    assert_eq!(models[0].name, NAME);
    assert_eq!(models[0].origin, ModelOrigin::Hub { commit: COMMIT.into() });
    let sizes = files();
    assert_eq!(models[0].bytes as usize, sizes["config.json"].len() + sizes["model.safetensors"].len());
    assert_eq!(hub.count("README") + hub.count("onnx"), 0);
    assert!(matches!(steps.lock().unwrap().last(), Some(FetchStep::Ready(_))));
    assert!(
        steps
            .lock()
            .unwrap()
            .iter()
            .any(|step| matches!(step, FetchStep::Received { done, total } if done == total))
    );

    let asked = hub.requests.lock().unwrap().len();
    assert_eq!(resolve_from(NAME, &cache, &from(&hub), &progress).unwrap(), source);
    assert_eq!(hub.requests.lock().unwrap().len(), asked);
}

#[test]
fn four_at_once_fetch_once() {
    let hub = Hub::serve(NAME, files());
    let root = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                resolve_from(NAME, &ModelCache::at(root.path()), &from(&hub), &recorder().0).unwrap()
            });
        }
    });
    let gets = hub
        .requests
        .lock()
        .unwrap()
        .iter()
        .filter(|r| r.starts_with("GET") && r.contains("safetensors"))
        .count();
    assert_eq!(gets, 1);
}

#[test]
fn damaged_weights_are_not_recorded_and_fetched_again() {
    let mut cut = files();
    let weights = cut["model.safetensors"].len();
    cut.get_mut("model.safetensors").unwrap().truncate(weights / 2);
    let root = tempfile::tempdir().unwrap();
    let cache = ModelCache::at(root.path());
    let error = resolve_from(NAME, &cache, &from(&Hub::serve(NAME, cut)), &recorder().0).unwrap_err();
    assert!(matches!(error, ModelError::Damaged { .. }), "{error}");
    assert_eq!(cache.list().unwrap(), []);
    resolve_from(NAME, &cache, &from(&Hub::serve(NAME, files())), &recorder().0).unwrap();
}

#[test]
fn an_interrupted_fetch_continues_with_the_missing_files() {
    let root = tempfile::tempdir().unwrap();
    let cache = ModelCache::at(root.path());
    let broken = Hub::serve_but("model.safetensors", NAME, files());
    let error = resolve_from(NAME, &cache, &from(&broken), &recorder().0).unwrap_err();
    assert!(matches!(error, ModelError::Fetch { .. }), "{error}");
    assert_eq!(broken.count(&format!("GET /someone/small-model/resolve/{COMMIT}/config.json")), 1);
    let mended = Hub::serve(NAME, files());
    resolve_from(NAME, &cache, &from(&mended), &recorder().0).unwrap();
    assert_eq!(mended.count(&format!("GET /someone/small-model/resolve/{COMMIT}/config.json")), 0);
}

#[test]
fn an_unsupported_model_is_refused_before_its_weights_are_fetched() {
    let mut files = files();
    files.insert("config.json".into(), config_json("MambaForCausalLM").to_string().into_bytes());
    let hub = Hub::serve(NAME, files);
    let root = tempfile::tempdir().unwrap();
    let error = resolve_from(NAME, &ModelCache::at(root.path()), &from(&hub), &recorder().0).unwrap_err();
    assert!(error.to_string().contains("MambaForCausalLM"), "{error}");
    assert_eq!(hub.count("safetensors"), 0);
}

#[test]
fn an_unknown_name_is_reported() {
    let hub = Hub::serve(NAME, files());
    let root = tempfile::tempdir().unwrap();
    let cache = ModelCache::at(root.path());
    let said = resolve_from("someone/else", &cache, &from(&hub), &recorder().0).unwrap_err().to_string();
    assert!(said.contains("someone/else") && said.contains("check the name"), "{said}");
}

#[test]
fn an_unreachable_hub_is_reported() {
    let root = tempfile::tempdir().unwrap();
    let sources = FetchSources { hub: true, hub_endpoint: Some("http://127.0.0.1:9".into()), python: None };
    let (progress, steps) = recorder();
    let error = resolve_from(NAME, &ModelCache::at(root.path()), &sources, &progress).unwrap_err();
    let ModelError::Fetch { attempts, advice, .. } = &error else { panic!("{error}") };
    assert_eq!(attempts.len(), 1);
    assert!(advice.contains("HF_ENDPOINT"));
    assert!(error.to_string().to_lowercase().contains("refused"), "{error}");
    assert!(steps.lock().unwrap().iter().any(|step| matches!(step, FetchStep::Failed(_))));
}

/// A model that is trained on a server may be of a kind that is not read here, and too large for this machine.
#[test]
fn a_tokenizer_is_fetched_without_the_weights() {
    let tokens = tokenizer_json(&[("<|im_start|>", true), ("<|im_end|>", true)]).to_string();
    let config = r#"{"architectures": ["SomethingNew"], "text_config": {"eos_token_id": 257}}"#;
    let mut files = files();
    files.insert("config.json".into(), config.into());
    files.insert("tokenizer.json".into(), tokens.into_bytes());
    let hub = Hub::serve(NAME, files);
    let root = tempfile::tempdir().unwrap();
    let (progress, _) = recorder();
    let tokenizer =
        minds_models::tokenizer(NAME, &ModelCache::at(root.path()), &from(&hub), &progress).unwrap();
    assert_eq!((tokenizer.vocab(), tokenizer.stop_tokens()), (258, vec![257]));
    assert_eq!(tokenizer.decode(&tokenizer.encode("text")), "text");
    assert_eq!(hub.count("model.safetensors"), 0);
    assert!(ModelCache::at(root.path()).list().unwrap().is_empty(), "it is no model");
}
