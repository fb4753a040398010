//! Fetches a model folder from the Hugging Face hub.
//!
//! Files have the layout of the hub's own client, `models--<owner>--<name>/snapshots/<commit>`. An interrupted fetch
//! resumes: complete files are kept, and a partial file continues where it ended. The config is fetched first, so that
//! an unsupported model is refused before its weights are fetched.

use super::{FetchFailure, FetchProgress, FetchStep, attempt, hub_folder};
use crate::bounded_file::read_small;
use crate::cache::{ModelOrigin, write_error};
use crate::config::HuggingFaceConfig;
use crate::error::ModelError;
use reqwest::header::{AUTHORIZATION, RANGE};
use reqwest::{Client, Response, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

const ENDPOINT: &str = "https://huggingface.co";
/// Short, so that an unreachable hub is reported soon.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time without data, not for the whole transfer.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const CONFIG: &str = "config.json";
const TEXT_FILES: [&str; 6] = [
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tiktoken.model",
    "chat_template.jinja",
];
const NETWORK_ADVICE: &str = "check the network, or set HF_ENDPOINT to a mirror that is reachable";

/// Fetches the model and returns its snapshot folder.
pub(super) fn fetch(
    name: &str,
    root: &Path,
    endpoint: Option<&str>,
    progress: &FetchProgress,
) -> Result<(PathBuf, ModelOrigin), FetchFailure> {
    progress(FetchStep::Trying { way: format!("the hub, {name}"), total: None });
    blocking(|| async {
        let model = HubModel::find(name, root, endpoint).await?;
        let silent: FetchProgress = std::sync::Arc::new(|_| ());
        model.download(|file| file == CONFIG, &silent).await?;
        let config = model.snapshot.join(CONFIG);
        let json = read_small(&config, 1 << 20).map_err(FetchFailure::Final)?;
        HuggingFaceConfig::parse(&config, &json).map_err(FetchFailure::Final)?;
        model.download(|file| TEXT_FILES.contains(&file) || file.contains(".safetensors"), progress).await?;
        Ok((model.snapshot, ModelOrigin::Hub { commit: model.commit }))
    })
}

/// Fetches everything but the weights and returns the snapshot folder; the architecture may be unsupported.
pub(super) fn fetch_text(
    name: &str,
    root: &Path,
    endpoint: Option<&str>,
    progress: &FetchProgress,
) -> Result<PathBuf, FetchFailure> {
    progress(FetchStep::Trying { way: format!("the hub, the tokenizer of {name}"), total: None });
    blocking(|| async {
        let model = HubModel::find(name, root, endpoint).await?;
        model.download(|file| TEXT_FILES.contains(&file), progress).await?;
        Ok(model.snapshot)
    })
}

/// Removes all fetched files of a model.
pub(super) fn forget(name: &str, root: &Path) {
    super::remove(&hub_folder(name, root));
}

/// Runs a transfer on a thread and a runtime of its own, since callers may be on a runtime that must not block.
fn blocking<T, F>(transfer: impl FnOnce() -> F + Send) -> Result<T, FetchFailure>
where
    T: Send,
    F: Future<Output = Result<T, FetchFailure>>,
{
    std::thread::scope(|scope| {
        let transfer = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime
                .map_err(|e| FetchFailure::Final(ModelError::io("start", Path::new("a runtime"), e)))?;
            runtime.block_on(transfer())
        });
        transfer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Timeout for fetching a small file.
const SMALL_FILE_TIMEOUT: Duration = Duration::from_secs(5);

/// Largest small file in bytes.
const TEXT_BYTES: usize = 4 << 20;

/// Fetches a small text file within a few seconds.
pub(super) fn text(url: &str) -> Result<String, String> {
    let fetched = blocking(|| async { small_text(url).await.map_err(|error| failed(&error)) });
    match fetched {
        Ok(text) if text.len() <= TEXT_BYTES => Ok(text),
        Ok(text) => Err(format!("it has {} bytes, the limit is {TEXT_BYTES}", text.len())),
        Err(FetchFailure::Next(failure)) => Err(failure.reason),
        Err(FetchFailure::Final(error)) => Err(error.to_string()),
    }
}

async fn small_text(url: &str) -> reqwest::Result<String> {
    // An error means that the process has installed a provider already.
    drop(rustls::crypto::ring::default_provider().install_default());
    let client = Client::builder()
        .timeout(SMALL_FILE_TIMEOUT)
        .user_agent(concat!("minds-actors/", env!("CARGO_PKG_VERSION")))
        .build()?;
    client.get(url).send().await?.error_for_status()?.text().await
}

/// A model of the hub at its newest commit.
struct HubModel<'a> {
    client: Client,
    endpoint: &'a str,
    name: &'a str,
    commit: String,
    /// The files of its top folder; other folders hold other formats of the same weights.
    files: Vec<HubFile>,
    /// Folder that the files are fetched into.
    snapshot: PathBuf,
}

#[derive(Deserialize)]
struct HubRevision {
    sha: String,
}

#[derive(Deserialize)]
struct HubFile {
    path: String,
    /// Size of the file in bytes.
    size: u64,
    #[serde(rename = "type")]
    kind: String,
}

impl<'a> HubModel<'a> {
    async fn find(name: &'a str, root: &Path, endpoint: Option<&'a str>) -> Result<Self, FetchFailure> {
        // An error means that the process has installed a provider already.
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .user_agent(concat!("minds-actors/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| failed(&error))?;
        let endpoint = endpoint.unwrap_or(ENDPOINT).trim_end_matches('/');
        let folder = hub_folder(name, root);
        let mut model = Self {
            client,
            endpoint,
            name,
            commit: String::new(),
            files: Vec::new(),
            snapshot: PathBuf::new(),
        };
        let revision: HubRevision = model.ask("revision/main").await?;
        let is_commit = !revision.sha.is_empty() && revision.sha.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_commit {
            let reason = format!("it calls `{}` the commit of `{name}`, which is none", revision.sha);
            return Err(FetchFailure::Next(attempt("the hub", reason, NETWORK_ADVICE)));
        }
        let files: Vec<HubFile> = model.ask(&format!("tree/{}", revision.sha)).await?;
        model.files =
            files.into_iter().filter(|file| file.kind == "file" && !file.path.contains('/')).collect();
        model.snapshot = folder.join("snapshots").join(&revision.sha);
        let refs = folder.join("refs");
        fs::create_dir_all(&model.snapshot).map_err(|error| disk(&model.snapshot, 0, error))?;
        fs::create_dir_all(&refs)
            .and_then(|()| fs::write(refs.join("main"), &revision.sha))
            .map_err(|error| disk(&refs, 0, error))?;
        model.commit = revision.sha;
        Ok(model)
    }

    /// Requests one endpoint of the hub's API for this model, as JSON.
    async fn ask<T: DeserializeOwned>(&self, part: &str) -> Result<T, FetchFailure> {
        let response = self.get(&format!("{}/api/models/{}/{part}", self.endpoint, self.name), 0).await?;
        let text = self.accept(response, None)?.bytes().await.map_err(|error| failed(&error))?;
        serde_json::from_slice(&text).map_err(|error| failed(&error))
    }

    /// Fetches the files that `wanted` accepts and that are not complete yet.
    async fn download(
        &self,
        wanted: impl Fn(&str) -> bool,
        progress: &FetchProgress,
    ) -> Result<(), FetchFailure> {
        let files: Vec<&HubFile> = self.files.iter().filter(|file| wanted(&file.path)).collect();
        let total = files.iter().map(|file| file.size).sum();
        let mut done = 0;
        for file in files {
            let path = self.snapshot.join(&file.path);
            if !fs::metadata(&path).is_ok_and(|found| found.len() == file.size) {
                self.download_file(file, &path, &|bytes| {
                    progress(FetchStep::Received { done: done + bytes, total });
                })
                .await?;
            }
            done += file.size;
            progress(FetchStep::Received { done, total });
        }
        Ok(())
    }

    /// Continues the partial file of an earlier fetch, if any, and renames it when it is complete.
    async fn download_file(
        &self,
        file: &HubFile,
        path: &Path,
        received: &dyn Fn(u64),
    ) -> Result<(), FetchFailure> {
        let part = path.with_file_name(format!("{}.part", file.path));
        let have = fs::metadata(&part).map_or(0, |found| found.len());
        let mut have = if have > file.size { 0 } else { have };
        if have < file.size || file.size == 0 {
            let url = format!("{}/{}/resolve/{}/{}", self.endpoint, self.name, self.commit, file.path);
            let response = self.accept(self.get(&url, have).await?, Some(&file.path))?;
            if response.status() != StatusCode::PARTIAL_CONTENT {
                have = 0;
            }
            let mut out = open(&part, have > 0).map_err(|error| disk(&part, file.size, error))?;
            let mut response = response;
            while let Some(bytes) = response.chunk().await.map_err(|error| failed(&error))? {
                out.write_all(&bytes).map_err(|error| disk(&part, file.size - have.min(file.size), error))?;
                have += bytes.len() as u64;
                received(have.min(file.size));
            }
            out.sync_all().map_err(|error| disk(&part, 0, error))?;
        }
        if have != file.size {
            let reason = format!("{} ended after {have} of {} bytes", file.path, file.size);
            return Err(FetchFailure::Next(attempt(
                "the hub",
                reason,
                "run again, which continues where it ended",
            )));
        }
        fs::rename(&part, path).map_err(|error| disk(path, 0, error))
    }

    /// Requests `url` from byte `start` on.
    async fn get(&self, url: &str, start: u64) -> Result<Response, FetchFailure> {
        let mut request = self.client.get(url);
        if let Some(token) = token() {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if start > 0 {
            request = request.header(RANGE, format!("bytes={start}-"));
        }
        request.send().await.map_err(|error| failed(&error))
    }

    /// Returns a successful response, or the error that its status means for `file` or for the whole model.
    fn accept(&self, response: Response, file: Option<&str>) -> Result<Response, FetchFailure> {
        let status = response.status();
        let name = self.name;
        if status.is_success() {
            return Ok(response);
        }
        // Without a token, the hub also returns 401 for names that do not exist.
        let said = response.headers().get("x-error-code").and_then(|code| code.to_str().ok());
        let (reason, advice) = match (status.as_u16(), said, file) {
            (_, Some("RepoNotFound"), _) | (404, _, None) => (
                format!("it has no model `{name}`, or a private one"),
                "check the name; set HF_TOKEN for private models",
            ),
            (404, _, Some(file)) => (
                format!("it has no {file} of `{name}`"),
                "check the name; it must be a model in Hugging Face format",
            ),
            (401 | 403, ..) => (
                format!("access to `{name}` is refused, or there is no such model"),
                "check the name; accept the model's licence on its page and set HF_TOKEN",
            ),
            (429, ..) => ("it asks to slow down".into(), "wait a few minutes, or set HF_TOKEN"),
            _ => (format!("it answered {status}"), NETWORK_ADVICE),
        };
        Err(FetchFailure::Next(attempt("the hub", reason, advice)))
    }
}

/// `HF_TOKEN`, or the token that `huggingface-cli login` has stored.
fn token() -> Option<String> {
    let var = |key: &str| std::env::var(key).ok().filter(|value| !value.is_empty());
    let stored = || {
        let home = var("HF_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(PathBuf::from(var("HOME")?).join(".cache/huggingface")))?;
        fs::read_to_string(home.join("token")).ok()
    };
    let token = var("HF_TOKEN").or_else(stored)?.trim().to_owned();
    (!token.is_empty()).then_some(token)
}

fn open(part: &Path, append: bool) -> io::Result<File> {
    OpenOptions::new().create(true).write(true).append(append).truncate(!append).open(part)
}

fn disk(path: &Path, needed: u64, error: io::Error) -> FetchFailure {
    FetchFailure::Final(write_error(path, needed, error))
}

/// A failed transfer, with all causes: the outermost error rarely says that a name did not resolve.
fn failed(error: &dyn Error) -> FetchFailure {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    FetchFailure::Next(attempt("the hub", text, NETWORK_ADVICE))
}
