//! Lists of training runs and checkpoints on disk, and their deletion.

use super::weights::{checkpoint_address, expiry, kind_name};
use super::{RouteResult, Server};
use crate::api_error::ApiError;
use crate::body::{PathParams, SmallBody};
use crate::ids::printable;
use crate::outcome::json;
use crate::state::ServerState;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse as _;
use minds_core::checkpoint::{CheckpointAddress, CheckpointPurpose, StoredCheckpoint};
use minds_core::service::BackendError;
use minds_tinker::types::{
    CheckpointList, PageCursor, SetTtlRequest, TrainingRun, TrainingRunList, WireCheckpoint,
};
use serde::Deserialize;
use std::collections::BTreeMap;
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

/// The error of a checkpoint that does not exist.
pub(super) fn missing(address: &CheckpointAddress) -> ApiError {
    ApiError::not_found(format!("no weights are saved at `{address}`"))
}

pub(super) async fn checkpoints(State(server): Server, uri: Uri) -> RouteResult {
    let page = PageQuery::of(&uri, 100)?;
    let mut all: Vec<_> = server.service.checkpoints(None).await?.iter().map(checkpoint_entry).collect();
    all.sort_by(|a, b| b.time.cmp(&a.time));
    let (checkpoints, cursor) = page.cut(all);
    Ok(json(&CheckpointList { checkpoints, cursor: Some(cursor) }))
}

pub(super) async fn checkpoints_of(
    State(server): Server,
    PathParams(run): PathParams<String>,
) -> RouteResult {
    let stored = server.service.checkpoints(Some(&run)).await?;
    let checkpoints = stored.iter().map(checkpoint_entry).collect();
    Ok(json(&CheckpointList { checkpoints, cursor: None }))
}

pub(super) async fn runs(State(server): Server, uri: Uri) -> RouteResult {
    let page = PageQuery::of(&uri, 20)?;
    let mut by_run: BTreeMap<String, Vec<StoredCheckpoint>> = BTreeMap::new();
    for stored in server.service.checkpoints(None).await? {
        by_run.entry(stored.address.run().into()).or_default().push(stored);
    }
    let mut all = Vec::new();
    for (run, stored) in by_run {
        all.push(training_run_entry(&server, run, &stored).await);
    }
    all.sort_by(|a, b| b.last_request_time.cmp(&a.last_request_time));
    let (training_runs, cursor) = page.cut(all);
    Ok(json(&TrainingRunList { training_runs, cursor }))
}

pub(super) async fn run(State(server): Server, PathParams(id): PathParams<String>) -> RouteResult {
    let live = server.models.get(&id).map(|handle| (handle.spec().rank, handle.used()));
    let stored = server.service.checkpoints(Some(&id)).await?;
    if live.is_none() && stored.is_empty() {
        return Err(ApiError::not_found(format!("there is no training run `{}`", printable(&id))));
    }
    let mut run = training_run_entry(&server, id, &stored).await;
    if let Some((rank, used)) = live {
        let idle = used.elapsed();
        let now = (server.options().wall_clock)();
        run.last_request_time = time(now.checked_sub(idle).unwrap_or(now));
        run.lora_rank = Some(rank);
    }
    Ok(json(&run))
}

pub(super) async fn delete(
    State(server): Server,
    PathParams((run, checkpoint)): PathParams<(String, String)>,
) -> RouteResult {
    let address = checkpoint_address(&run, &checkpoint)?;
    if !server.service.remove_checkpoint(&address, None).await? {
        return Err(missing(&address));
    }
    server.samplers.forget(&address.to_string());
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Handles `PUT …/ttl`; without `ttl_seconds` the checkpoint never expires.
pub(super) async fn set_ttl(
    State(server): Server,
    PathParams((run, rest)): PathParams<(String, String)>,
    SmallBody(body): SmallBody,
) -> RouteResult {
    let Some(checkpoint) = rest.strip_suffix("/ttl") else { return not_offered().await };
    let address = checkpoint_address(&run, checkpoint)?;
    let request: SetTtlRequest = body.json()?;
    let expires = request.ttl_seconds.map(|ttl| expiry(&server, ttl));
    match server.service.set_expiry(&address, expires).await? {
        true => Ok(StatusCode::NO_CONTENT.into_response()),
        false => Err(missing(&address)),
    }
}

/// Refuses to publish or archive a checkpoint, with status 400.
pub(super) async fn not_offered() -> RouteResult {
    Err(ApiError::bad_request(
        "this server does not publish or pack checkpoints: they lie in its data folder, in PEFT's format",
    ))
}

/// Deletes the checkpoints that have expired.
pub(crate) async fn delete_expired(server: &Arc<ServerState>) {
    let stored = match server.service.checkpoints(None).await {
        Ok(stored) => stored,
        // It keeps no checkpoints, or lists none.
        Err(BackendError::Unsupported(_)) => return,
        Err(error) => {
            tracing::warn!(%error, "failed to list expired checkpoints");
            return;
        }
    };
    let now = expiry(server, 0);
    for StoredCheckpoint { address, notes, .. } in stored {
        if notes.expires.is_none_or(|expires| expires > now) {
            continue;
        }
        // A checkpoint that cannot be deleted must not prevent the deletion of others.
        match server.service.remove_checkpoint(&address, Some(now)).await {
            Ok(true) => {
                tracing::info!(path = %address, "deleted an expired checkpoint");
                server.samplers.forget(&address.to_string());
            }
            Ok(false) => {}
            Err(error) => tracing::warn!(%address, %error, "failed to delete a checkpoint"),
        }
    }
}

fn checkpoint_entry(stored: &StoredCheckpoint) -> WireCheckpoint {
    let StoredCheckpoint { address, saved, bytes, notes } = stored;
    let expires = notes.expires.and_then(|s| UNIX_EPOCH.checked_add(Duration::from_secs(s)));
    WireCheckpoint {
        checkpoint_id: address.id(),
        checkpoint_type: kind_name(address.kind()).into(),
        time: time(*saved),
        tinker_path: address.to_string(),
        size_bytes: Some(*bytes),
        public: false,
        user_metadata: notes.user_metadata.clone(),
        expires_at: expires.map(time),
    }
}

/// A run from its checkpoints, the oldest first.
async fn training_run_entry(server: &ServerState, run: String, stored: &[StoredCheckpoint]) -> TrainingRun {
    let last = |kind: CheckpointPurpose| {
        let last = stored.iter().rfind(|stored| stored.address.kind() == kind);
        last.map(checkpoint_entry)
    };
    let newest = stored.last();
    let spec = match newest {
        Some(newest) => server.service.checkpoint_spec(&newest.address).await.ok().flatten(),
        None => None,
    };
    TrainingRun {
        training_run_id: run,
        base_model: server.info.base_model.clone(),
        model_owner: "local".into(),
        is_lora: true,
        last_request_time: time(newest.map_or(UNIX_EPOCH, |newest| newest.saved)),
        lora_rank: spec.map(|spec| spec.rank),
        last_checkpoint: last(CheckpointPurpose::Training),
        last_sampler_checkpoint: last(CheckpointPurpose::Sampler),
        ..TrainingRun::default()
    }
}

/// Formats a time as RFC 3339; one that cannot be represented becomes the latest possible.
fn time(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::MAX).to_string()
}
