//! What is kept on disk, in lists.

use super::Answer;
use super::weights::{expiry, kind_name, place_of};
use crate::checkpoint::{CheckpointError, Entry, Kind, Notes, Store, read_notes, read_spec, write_notes};
use crate::server::body::{Named, Small};
use crate::server::ids::shown;
use crate::server::outcome::json;
use crate::server::refusal::Refusal;
use crate::server::state::Server;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse as _;
use minds_core::backend::BackendError;
use minds_tinker::types::{Checkpoint, Checkpoints, Cursor, SetTtlRequest, TrainingRun, TrainingRuns};
use serde::Deserialize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Most entries of a page.
const LONGEST_PAGE: usize = 1000;

/// The part of a list that is asked for.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Page {
    limit: Option<usize>,
    offset: usize,
}

impl Page {
    pub(super) fn of(uri: &Uri, limit: usize) -> Result<Self, Refusal> {
        let Query(page) = Query::<Self>::try_from_uri(uri)
            .map_err(|e| Refusal::bad(format!("the query cannot be read: {}", e.body_text())))?;
        Ok(Self { limit: Some(page.limit.unwrap_or(limit).min(LONGEST_PAGE)), ..page })
    }

    pub(super) fn cut<T>(self, all: Vec<T>) -> (Vec<T>, Cursor) {
        let limit = self.limit.unwrap_or(LONGEST_PAGE);
        let cursor = Cursor { offset: self.offset, limit, total_count: all.len() };
        (all.into_iter().skip(self.offset).take(limit).collect(), cursor)
    }
}

/// Works on the disk, away from the threads that answer.
pub(super) async fn disk<T: Send + 'static>(
    server: &Arc<Server>,
    work: impl FnOnce(&Store) -> Result<T, CheckpointError> + Send + 'static,
) -> Result<T, Refusal> {
    let store = server.service.store()?.clone();
    let done = tokio::task::spawn_blocking(move || work(&store)).await;
    let bug = |_| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the server met a bug at the disk");
    done.map_err(bug)?.map_err(|error| match error {
        CheckpointError::Missing(_) => Refusal::missing(error.to_string()),
        other => BackendError::from(other).into(),
    })
}

pub(super) async fn checkpoints(State(server): State<Arc<Server>>, uri: Uri) -> Answer {
    let page = Page::of(&uri, 100)?;
    let mut all = disk(&server, |store| {
        let mut all = Vec::new();
        for run in store.runs()? {
            all.extend(store.list(&run)?.into_iter().map(|entry| listed(store, entry)));
        }
        Ok(all)
    })
    .await?;
    all.sort_by(|a, b| b.time.cmp(&a.time));
    let (checkpoints, cursor) = page.cut(all);
    Ok(json(&Checkpoints { checkpoints, cursor: Some(cursor) }))
}

pub(super) async fn checkpoints_of(State(server): State<Arc<Server>>, Named(run): Named<String>) -> Answer {
    let checkpoints = disk(&server, move |store| {
        Ok(store.list(&run)?.into_iter().map(|entry| listed(store, entry)).collect())
    });
    Ok(json(&Checkpoints { checkpoints: checkpoints.await?, cursor: None }))
}

pub(super) async fn runs(State(server): State<Arc<Server>>, uri: Uri) -> Answer {
    let page = Page::of(&uri, 20)?;
    let base = server.service.base_name().to_owned();
    let mut all = disk(&server, move |store| {
        let runs = store.runs()?;
        runs.iter().map(|run| described(store, run, &base)).collect::<Result<Vec<_>, _>>()
    })
    .await?;
    all.sort_by(|a, b| b.last_request_time.cmp(&a.last_request_time));
    let (training_runs, cursor) = page.cut(all);
    Ok(json(&TrainingRuns { training_runs, cursor }))
}

pub(super) async fn run(State(server): State<Arc<Server>>, Named(id): Named<String>) -> Answer {
    let live = server.models.get(&id).map(|desk| (desk.spec().rank, desk.used()));
    let (base, run) = (server.service.base_name().to_owned(), id.clone());
    let mut run = disk(&server, move |store| described(store, &run, &base)).await?;
    match live {
        Some((rank, used)) => {
            let idle = used.elapsed();
            let now = (server.options().wall_clock)();
            run.last_request_time = time(now.checked_sub(idle).unwrap_or(now));
            run.lora_rank = Some(rank);
        }
        None if run.last_checkpoint.is_none() && run.last_sampler_checkpoint.is_none() => {
            return Err(Refusal::missing(format!("there is no training run `{}`", shown(&id))));
        }
        None => {}
    }
    Ok(json(&run))
}

pub(super) async fn delete(
    State(server): State<Arc<Server>>,
    Named((run, checkpoint)): Named<(String, String)>,
) -> Answer {
    let place = place_of(&run, &checkpoint)?;
    let path = place.to_string();
    disk(&server, move |store| store.remove(&place)).await?;
    server.samplers.forget(&path);
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// `PUT …/ttl`
pub(super) async fn set_ttl(
    State(server): State<Arc<Server>>,
    Named((run, rest)): Named<(String, String)>,
    Small(payload): Small,
) -> Answer {
    let Some(checkpoint) = rest.strip_suffix("/ttl") else { return not_offered().await };
    let place = place_of(&run, checkpoint)?;
    let request: SetTtlRequest = payload.json()?;
    let expires = request.ttl_seconds.map(|ttl| expiry(&server, ttl));
    disk(&server, move |store| {
        store.read(&place, |folder| write_notes(folder, &Notes { expires, ..read_notes(folder)? }))
    })
    .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Publishing and archives.
pub(super) async fn not_offered() -> Answer {
    Err(Refusal::bad(
        "this server does not publish or pack checkpoints: they lie in its data folder, in PEFT's format",
    ))
}

/// Deletes the checkpoints whose time is over.
pub(in crate::server) async fn delete_expired(server: &Arc<Server>) {
    if server.service.store().is_err() {
        return;
    }
    let now = expiry(server, 0);
    let deleted = disk(server, move |store| {
        let over = |folder: &Path| {
            read_notes(folder).is_ok_and(|notes| notes.expires.is_some_and(|expires| expires <= now))
        };
        let mut deleted = Vec::new();
        for run in store.runs()? {
            for Entry { place, .. } in store.list(&run)? {
                // One that cannot be deleted must not keep the others.
                match store.remove_if(&place, over) {
                    Ok(true) => deleted.push(place.to_string()),
                    Ok(false) | Err(CheckpointError::Missing(_)) => {}
                    Err(error) => tracing::warn!(%place, %error, "failed to delete a checkpoint"),
                }
            }
        }
        Ok(deleted)
    });
    match deleted.await {
        Ok(deleted) => {
            for path in deleted {
                tracing::info!(path, "deleted a checkpoint whose time was over");
                server.samplers.forget(&path);
            }
        }
        Err(refusal) => {
            tracing::warn!(why = refusal.detail, "failed to look for checkpoints whose time is over")
        }
    }
}

fn listed(store: &Store, entry: Entry) -> Checkpoint {
    // Without readable notes it is still a checkpoint.
    let notes = store.read(&entry.place, read_notes).unwrap_or_default();
    Checkpoint {
        checkpoint_id: entry.place.id(),
        checkpoint_type: kind_name(entry.place.kind()).into(),
        time: time(entry.saved),
        tinker_path: entry.place.to_string(),
        size_bytes: Some(entry.bytes),
        public: false,
        user_metadata: notes.user_metadata,
        expires_at: notes.expires.and_then(|s| UNIX_EPOCH.checked_add(Duration::from_secs(s))).map(time),
    }
}

fn described(store: &Store, run: &str, base: &str) -> Result<TrainingRun, CheckpointError> {
    let entries = store.list(run)?;
    let last = |kind: Kind| entries.iter().rfind(|entry| entry.place.kind() == kind);
    let newest = entries.last();
    let spec = newest.and_then(|entry| store.read(&entry.place, read_spec).ok());
    Ok(TrainingRun {
        training_run_id: run.into(),
        base_model: base.into(),
        model_owner: "local".into(),
        is_lora: true,
        last_request_time: time(newest.map_or(UNIX_EPOCH, |entry| entry.saved)),
        lora_rank: spec.map(|spec| spec.rank),
        last_checkpoint: last(Kind::Training).map(|entry| listed(store, entry.clone())),
        last_sampler_checkpoint: last(Kind::Sampler).map(|entry| listed(store, entry.clone())),
        ..TrainingRun::default()
    })
}

/// In RFC 3339; what lies beyond the calendar is its last moment.
fn time(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::MAX).to_string()
}
