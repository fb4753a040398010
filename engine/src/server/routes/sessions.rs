//! Sessions.

use super::Answer;
use super::rest::Page;
use super::weights::check_metadata;
use crate::server::body::{Named, Small};
use crate::server::outcome::json;
use crate::server::refusal::Refusal;
use crate::server::state::Server;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use minds_tinker::types::{
    CreateSessionRequest, CreateSessionResponse, HeartbeatRequest, HeartbeatResponse, SessionInfo, Sessions,
};
use std::sync::Arc;

pub(super) async fn create(State(server): State<Arc<Server>>, Small(payload): Small) -> Answer {
    let request: CreateSessionRequest = payload.json()?;
    let remarks = (&request.user_metadata, &request.display_name, &request.tags);
    check_metadata(&remarks, server.options().metadata_bytes).map_err(Refusal::bad)?;
    let session_id = server.sessions.begin(Some(request.user_metadata), request.display_name)?;
    tracing::info!(session = session_id, sdk = %crate::server::ids::shown(&request.sdk_version), "a session began");
    Ok(json(&CreateSessionResponse { session_id, ..Default::default() }))
}

/// A 410 tells newer clients to stop.
pub(super) async fn heartbeat(State(server): State<Arc<Server>>, Small(payload): Small) -> Answer {
    let request: HeartbeatRequest = payload.json()?;
    let known = server.sessions.with(&request.session_id, |_| Ok(()));
    known.map_err(|refusal| Refusal::new(StatusCode::GONE, refusal.detail))?;
    Ok(json(&HeartbeatResponse::default()))
}

/// Ending a session that has ended is fine: the first answer may have been lost.
pub(super) async fn finish(State(server): State<Arc<Server>>, Named(id): Named<String>) -> Answer {
    if server.end_session(&id) {
        tracing::info!(session = id, "a session ended");
    }
    Ok(json(&serde_json::json!({})))
}

pub(super) async fn list(State(server): State<Arc<Server>>, uri: Uri) -> Answer {
    let page = Page::of(&uri, 20)?;
    Ok(json(&Sessions { sessions: page.cut(server.sessions.list()).0 }))
}

pub(super) async fn info(State(server): State<Arc<Server>>, Named(id): Named<String>) -> Answer {
    let session = server.sessions.with(&id, |session| Ok(session.clone()))?;
    Ok(json(&SessionInfo {
        training_run_ids: session.models.into_values().map(|(id, _)| id).collect(),
        sampler_ids: session.samplers.into_values().collect(),
        user_metadata: session.user_metadata,
        display_name: session.display_name,
    }))
}
