//! Lists of training runs and checkpoints on disk, and their deletion.

use super::RouteResult;
use super::weights::{checkpoint_address, expiry, kind_name};
use crate::checkpoint::{
    CheckpointError, CheckpointNotes, CheckpointPurpose, CheckpointStore, StoredCheckpoint, read_notes,
    read_spec, write_notes,
};
use crate::server::api_error::ApiError;
use crate::server::body::{PathParams, SmallBody};
use crate::server::ids::printable;
use crate::server::outcome::json;
use crate::server::state::ServerState;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse as _;
use minds_core::service::BackendError;
use minds_tinker::types::{
    CheckpointList, PageCursor, SetTtlRequest, TrainingRun, TrainingRunList, WireCheckpoint,
};
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Maximum number of entries per page.
const LONGEST_PAGE: usize = 1000;

/// The part of a list that a request asks for.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PageQuery {
    limit: Option<usize>,
    offset: usize,
}

impl PageQuery {
    pub(super) fn of(uri: &Uri, limit: usize) -> Result<Self, ApiError> {
        let Query(page) = Query::<Self>::try_from_uri(uri)
            .map_err(|e| ApiError::bad_request(format!("the query cannot be read: {}", e.body_text())))?;
        Ok(Self { limit: Some(page.limit.unwrap_or(limit).min(LONGEST_PAGE)), ..page })
    }

    pub(super) fn cut<T>(self, all: Vec<T>) -> (Vec<T>, PageCursor) {
        let limit = self.limit.unwrap_or(LONGEST_PAGE);
        let cursor = PageCursor { offset: self.offset, limit, total_count: all.len() };
        (all.into_iter().skip(self.offset).take(limit).collect(), cursor)
    }
}

/// Runs `work` on a blocking thread, because it accesses the disk.
pub(super) async fn with_store<T: Send + 'static>(
    server: &Arc<ServerState>,
    work: impl FnOnce(&CheckpointStore) -> Result<T, CheckpointError> + Send + 'static,
) -> Result<T, ApiError> {
    let store = server.service.store()?.clone();
    let done = tokio::task::spawn_blocking(move || work(&store)).await;
    let bug = |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error during disk access");
    done.map_err(bug)?.map_err(|error| match error {
        CheckpointError::Missing(_) => ApiError::not_found(error.to_string()),
        other => BackendError::from(other).into(),
    })
}

pub(super) async fn checkpoints(State(server): State<Arc<ServerState>>, uri: Uri) -> RouteResult {
    let page = PageQuery::of(&uri, 100)?;
    let mut all = with_store(&server, |store| {
        let mut all = Vec::new();
        for run in store.runs()? {
            all.extend(store.list(&run)?.into_iter().map(|entry| checkpoint_entry(store, entry)));
        }
        Ok(all)
    })
    .await?;
    all.sort_by(|a, b| b.time.cmp(&a.time));
    let (checkpoints, cursor) = page.cut(all);
    Ok(json(&CheckpointList { checkpoints, cursor: Some(cursor) }))
}

pub(super) async fn checkpoints_of(
    State(server): State<Arc<ServerState>>,
    PathParams(run): PathParams<String>,
) -> RouteResult {
    let checkpoints = with_store(&server, move |store| {
        Ok(store.list(&run)?.into_iter().map(|entry| checkpoint_entry(store, entry)).collect())
    });
    Ok(json(&CheckpointList { checkpoints: checkpoints.await?, cursor: None }))
}

pub(super) async fn runs(State(server): State<Arc<ServerState>>, uri: Uri) -> RouteResult {
    let page = PageQuery::of(&uri, 20)?;
    let base = server.service.base_name().to_owned();
    let mut all = with_store(&server, move |store| {
        let runs = store.runs()?;
        runs.iter().map(|run| training_run_entry(store, run, &base)).collect::<Result<Vec<_>, _>>()
    })
    .await?;
    all.sort_by(|a, b| b.last_request_time.cmp(&a.last_request_time));
    let (training_runs, cursor) = page.cut(all);
    Ok(json(&TrainingRunList { training_runs, cursor }))
}

pub(super) async fn run(
    State(server): State<Arc<ServerState>>,
    PathParams(id): PathParams<String>,
) -> RouteResult {
    let live = server.models.get(&id).map(|handle| (handle.spec().rank, handle.used()));
    let base = server.service.base_name().to_owned();
    let run = id.clone();
    let mut run = with_store(&server, move |store| training_run_entry(store, &run, &base)).await?;
    match live {
        Some((rank, used)) => {
            let idle = used.elapsed();
            let now = (server.options().wall_clock)();
            run.last_request_time = time(now.checked_sub(idle).unwrap_or(now));
            run.lora_rank = Some(rank);
        }
        None if run.last_checkpoint.is_none() && run.last_sampler_checkpoint.is_none() => {
            return Err(ApiError::not_found(format!("there is no training run `{}`", printable(&id))));
        }
        None => {}
    }
    Ok(json(&run))
}

pub(super) async fn delete(
    State(server): State<Arc<ServerState>>,
    PathParams((run, checkpoint)): PathParams<(String, String)>,
) -> RouteResult {
    let address = checkpoint_address(&run, &checkpoint)?;
    let path = address.to_string();
    with_store(&server, move |store| store.remove(&address)).await?;
    server.samplers.forget(&path);
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Handles `PUT …/ttl`; without `ttl_seconds` the checkpoint never expires.
pub(super) async fn set_ttl(
    State(server): State<Arc<ServerState>>,
    PathParams((run, rest)): PathParams<(String, String)>,
    SmallBody(body): SmallBody,
) -> RouteResult {
    let Some(checkpoint) = rest.strip_suffix("/ttl") else { return not_offered().await };
    let address = checkpoint_address(&run, checkpoint)?;
    let request: SetTtlRequest = body.json()?;
    let expires = request.ttl_seconds.map(|ttl| expiry(&server, ttl));
    with_store(&server, move |store| {
        store
            .read(&address, |folder| write_notes(folder, &CheckpointNotes { expires, ..read_notes(folder)? }))
    })
    .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Refuses to publish or archive a checkpoint, with status 400.
pub(super) async fn not_offered() -> RouteResult {
    Err(ApiError::bad_request(
        "this server does not publish or pack checkpoints: they lie in its data folder, in PEFT's format",
    ))
}

/// Deletes the checkpoints that have expired.
pub(in crate::server) async fn delete_expired(server: &Arc<ServerState>) {
    if server.service.store().is_err() {
        return;
    }
    let now = expiry(server, 0);
    let deleted = with_store(server, move |store| {
        let over = |folder: &Path| {
            read_notes(folder).is_ok_and(|notes| notes.expires.is_some_and(|expires| expires <= now))
        };
        let mut deleted = Vec::new();
        for run in store.runs()? {
            for StoredCheckpoint { address, .. } in store.list(&run)? {
                // A checkpoint that cannot be deleted must not prevent the deletion of others.
                match store.remove_if(&address, over) {
                    Ok(true) => deleted.push(address.to_string()),
                    Ok(false) | Err(CheckpointError::Missing(_)) => {}
                    Err(error) => tracing::warn!(%address, %error, "failed to delete a checkpoint"),
                }
            }
        }
        Ok(deleted)
    });
    match deleted.await {
        Ok(deleted) => {
            for path in deleted {
                tracing::info!(path, "deleted an expired checkpoint");
                server.samplers.forget(&path);
            }
        }
        Err(error) => {
            tracing::warn!(why = error.detail, "failed to list expired checkpoints")
        }
    }
}

fn checkpoint_entry(store: &CheckpointStore, entry: StoredCheckpoint) -> WireCheckpoint {
    // A checkpoint whose notes cannot be read is still listed.
    let notes = store.read(&entry.address, read_notes).unwrap_or_default();
    WireCheckpoint {
        checkpoint_id: entry.address.id(),
        checkpoint_type: kind_name(entry.address.kind()).into(),
        time: time(entry.saved),
        tinker_path: entry.address.to_string(),
        size_bytes: Some(entry.bytes),
        public: false,
        user_metadata: notes.user_metadata,
        expires_at: notes.expires.and_then(|s| UNIX_EPOCH.checked_add(Duration::from_secs(s))).map(time),
    }
}

fn training_run_entry(
    store: &CheckpointStore,
    run: &str,
    base: &str,
) -> Result<TrainingRun, CheckpointError> {
    let entries = store.list(run)?;
    let last = |kind: CheckpointPurpose| entries.iter().rfind(|entry| entry.address.kind() == kind);
    let newest = entries.last();
    let spec = newest.and_then(|entry| store.read(&entry.address, read_spec).ok());
    Ok(TrainingRun {
        training_run_id: run.into(),
        base_model: base.into(),
        model_owner: "local".into(),
        is_lora: true,
        last_request_time: time(newest.map_or(UNIX_EPOCH, |entry| entry.saved)),
        lora_rank: spec.map(|spec| spec.rank),
        last_checkpoint: last(CheckpointPurpose::Training)
            .map(|entry| checkpoint_entry(store, entry.clone())),
        last_sampler_checkpoint: last(CheckpointPurpose::Sampler)
            .map(|entry| checkpoint_entry(store, entry.clone())),
        ..TrainingRun::default()
    })
}

/// Formats a time as RFC 3339; one that cannot be represented becomes the latest possible.
fn time(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::MAX).to_string()
}
