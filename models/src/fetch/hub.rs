//! Fetches a model folder from the Hugging Face hub.
//!
//! Files are kept in hf-hub's own layout, so that a fetch that was cut off goes on with the files it lacks. The
//! config comes first: a model that cannot be used is refused before its weights are fetched.

use super::{Failure, Progress, Step, attempt};
use crate::bytes::read_small;
use crate::cache::Origin;
use crate::config::Config;
use crate::error::ModelError;
use hf_hub::HFError;
use hf_hub::progress::{DownloadEvent, ProgressEvent, ProgressHandler};
use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// An unreachable hub should be noticed while someone still watches.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Of silence, not of the whole transfer.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const TEXT_FILES: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];
const WEIGHT_FILES: &str = "*.safetensors*";

/// The snapshot folder.
pub(super) fn fetch(
    name: &str,
    root: &Path,
    endpoint: Option<&str>,
    progress: &Progress,
) -> Result<(PathBuf, Origin), Failure> {
    progress(Step::Trying { way: format!("the hub, {name}"), total: None });
    let failed = |error: HFError| classify(name, root, &error);
    let client = client(root, endpoint).map_err(failed)?;
    let (owner, model) = hf_hub::split_id(name);
    let repository = client.model(owner, model);

    let config = repository.download_file().filename("config.json").send().map_err(failed)?;
    let json = read_small(&config, 1 << 20).map_err(Failure::Final)?;
    Config::parse(&config, &json).map_err(Failure::Final)?;

    let folder = repository
        .snapshot_download()
        .allow_patterns(TEXT_FILES.iter().chain([&WEIGHT_FILES]).map(|file| (*file).to_owned()).collect())
        // Sub-folders hold other formats of the same weights.
        .ignore_patterns(vec!["*/*".into()])
        .max_workers(4)
        .progress(hf_hub::progress::Progress::new(Meter::new(progress.clone())))
        .send()
        .map_err(failed)?;
    let commit = folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    Ok((folder, Origin::Hub { commit }))
}

/// The snapshot folder with everything but the weights; the network may be of any kind.
pub(super) fn fetch_text(
    name: &str,
    root: &Path,
    endpoint: Option<&str>,
    progress: &Progress,
) -> Result<PathBuf, Failure> {
    progress(Step::Trying { way: format!("the hub, the tokenizer of {name}"), total: None });
    let failed = |error: HFError| classify(name, root, &error);
    let client = client(root, endpoint).map_err(failed)?;
    let (owner, model) = hf_hub::split_id(name);
    client
        .model(owner, model)
        .snapshot_download()
        .allow_patterns(TEXT_FILES.map(str::to_owned).to_vec())
        .ignore_patterns(vec!["*/*".into()])
        .send()
        .map_err(failed)
}

fn client(root: &Path, endpoint: Option<&str>) -> Result<hf_hub::HFClientSync, HFError> {
    let http = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .user_agent(concat!("minds-actors/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(HFError::from)?;
    let mut builder =
        hf_hub::HFClient::builder().client(http).cache_dir(root.join("hub")).retry_max_attempts(1);
    if let Some(endpoint) = endpoint {
        builder = builder.endpoint(endpoint);
    }
    builder.build_sync()
}

/// Removes what the hub has delivered of a model.
pub(super) fn forget(name: &str, root: &Path) {
    super::remove(&super::hub_folder(name, root));
}

fn classify(name: &str, root: &Path, error: &HFError) -> Failure {
    if let HFError::Io(e) = error {
        if matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            return Failure::Final(ModelError::DiskFull { path: root.to_owned(), needed: 0 });
        }
        return Failure::Final(ModelError::io("write to", root, io::Error::new(e.kind(), e.to_string())));
    }
    let (reason, advice) = match error {
        HFError::RepoNotFound { .. } => (
            format!("it has no model `{name}`, or a private one"),
            "check the name; set HF_TOKEN for private models",
        ),
        HFError::EntryNotFound { path, .. } => (
            format!("it has no {path} of `{name}`"),
            "check the name; it must be a model in Hugging Face format",
        ),
        HFError::AuthRequired { .. } | HFError::Forbidden { .. } => (
            format!("access to `{name}` is refused, or there is no such model"),
            "check the name; accept the model's licence on its page and set HF_TOKEN",
        ),
        HFError::RateLimited { .. } => ("it asks to slow down".into(), "wait a few minutes, or set HF_TOKEN"),
        other => (chain(other), "check the network, or set HF_ENDPOINT to a mirror that is reachable"),
    };
    Failure::Next(attempt("the hub", reason, advice))
}

/// An error with its causes: the outermost seldom says that a name did not resolve.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text
}

/// Adds up the bytes of all files.
struct Meter {
    progress: Progress,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    total: u64,
    files: HashMap<String, u64>,
    batch: u64,
}

impl Meter {
    fn new(progress: Progress) -> Self {
        Self { progress, state: Mutex::default() }
    }
}

impl ProgressHandler for Meter {
    fn on_progress(&self, event: &ProgressEvent) {
        let ProgressEvent::Download(event) = event else { return };
        let (done, total) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            match event {
                DownloadEvent::Start { total_bytes, .. } => state.total = *total_bytes,
                DownloadEvent::Progress { files } => {
                    for file in files {
                        state.files.insert(file.filename.clone(), file.bytes_completed);
                    }
                }
                DownloadEvent::AggregateProgress { bytes_completed, .. } => state.batch = *bytes_completed,
                DownloadEvent::Complete => return,
            }
            // Files of a batch may be reported once more one by one when they are complete.
            let singly: u64 = state.files.values().sum();
            ((singly + state.batch).min(state.total), state.total)
        };
        (self.progress)(Step::Received { done, total });
    }
}
