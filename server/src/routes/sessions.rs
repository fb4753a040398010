//! Sessions: create, heartbeat, finish, list.

use super::rest::PageQuery;
use super::weights::check_metadata;
use super::{RouteResult, Server};
use crate::api_error::ApiError;
use crate::body::{PathParams, SmallBody};
use crate::outcome::json;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use minds_tinker::types::{
    CreateSessionRequest, CreateSessionResponse, HeartbeatRequest, HeartbeatResponse, SessionInfo,
    SessionList,
};

pub(super) async fn create(State(server): Server, SmallBody(body): SmallBody) -> RouteResult {
    let request: CreateSessionRequest = body.json()?;
    let remarks = (&request.user_metadata, &request.display_name, &request.tags);
    check_metadata(&remarks, server.options().metadata_bytes).map_err(ApiError::bad_request)?;
    let session_id = server.sessions.begin(Some(request.user_metadata), request.display_name)?;
    tracing::info!(session = session_id, sdk = %crate::ids::printable(&request.sdk_version), "a session began");
    Ok(json(&CreateSessionResponse { session_id, ..Default::default() }))
}

/// Newer clients stop on the status 410 of a session that has ended.
pub(super) async fn heartbeat(State(server): Server, SmallBody(body): SmallBody) -> RouteResult {
    let request: HeartbeatRequest = body.json()?;
    let known = server.sessions.with(&request.session_id, |_| Ok(()));
    known.map_err(|error| ApiError::new(StatusCode::GONE, error.detail))?;
    Ok(json(&HeartbeatResponse::default()))
}

/// Ending a session again succeeds, because the first response may have been lost.
pub(super) async fn finish(State(server): Server, PathParams(id): PathParams<String>) -> RouteResult {
    if server.end_session(&id) {
        tracing::info!(session = id, "a session ended");
    }
    Ok(json(&serde_json::json!({})))
}

pub(super) async fn list(State(server): Server, uri: Uri) -> RouteResult {
    let page = PageQuery::of(&uri, 20)?;
    Ok(json(&SessionList { sessions: page.cut(server.sessions.list()).0 }))
}

pub(super) async fn info(State(server): Server, PathParams(id): PathParams<String>) -> RouteResult {
    let session = server.sessions.with(&id, |session| Ok(session.clone()))?;
    Ok(json(&SessionInfo {
        training_run_ids: session.models.into_values().map(|(id, _)| id).collect(),
        sampler_ids: session.samplers.into_values().collect(),
        user_metadata: session.user_metadata,
        display_name: session.display_name,
    }))
}
