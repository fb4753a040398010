//! HTTP routes of the dashboard.

use super::access;
use super::page;
use super::view::RunView;
use crate::CheckpointSummary;
use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use futures::Stream;
use minds_core::record::{EvaluationRecord, StepRecord};
use minds_http::{AccessGuard, ConnectionLimits};
use prometheus::{Registry, TextEncoder};
use serde::Deserialize;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

/// Blocks foreign content and scripts: the page shows text that models wrote.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Bounds the file descriptors and the memory that connections take from the run.
const LIMITS: ConnectionLimits = ConnectionLimits { connections: 64, head_timeout: Duration::from_secs(10) };

/// State shared by all request handlers.
#[derive(Clone)]
struct RouteState {
    view: Arc<RunView>,
    registry: Registry,
}

/// Builds the router with all routes.
pub(super) fn routes(view: Arc<RunView>, registry: Registry, guard: AccessGuard) -> Router {
    Router::new()
        .route("/", get(|| async { page::file("index.html") }))
        .route("/assets/{name}", get(|Path(name): Path<String>| async move { page::file(&name) }))
        .route("/metrics", get(metrics))
        .route("/api/run", get(run))
        .route("/api/live", get(live))
        .route("/api/steps", get(steps))
        .route("/api/evaluations", get(evaluations))
        .route("/api/events", get(events))
        .route("/api/checkpoints", get(checkpoints))
        .route("/api/groups", get(groups))
        .route("/api/groups/{id}", get(group))
        .fallback(|| async { missing("unknown address") })
        .layer(from_fn_with_state(Arc::new(guard), access::require_access))
        .layer(map_response(protect))
        .with_state(RouteState { view, registry })
}

/// Serves until the listener fails, or until the dashboard is closed and all open responses are done.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    routes: Router,
    mut closed: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let end = async move { drop(closed.wait_for(|closed| *closed).await) };
    minds_http::serve(&tokio::net::TcpListener::from_std(listener)?, routes, LIMITS, end).await
}

async fn protect(mut response: Response) -> Response {
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

pub(super) fn missing(what: &str) -> Response {
    (StatusCode::NOT_FOUND, Json(json!({ "error": what }))).into_response()
}

async fn metrics(State(shared): State<RouteState>) -> Response {
    match TextEncoder::new().encode_to_string(&shared.registry.gather()) {
        Ok(text) => ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn run(State(shared): State<RouteState>) -> Response {
    Json(&shared.view.run_info).into_response()
}

async fn steps(State(shared): State<RouteState>) -> Json<Vec<StepRecord>> {
    Json(shared.view.history().rows.all().cloned().collect())
}

async fn evaluations(State(shared): State<RouteState>) -> Json<Vec<EvaluationRecord>> {
    Json(shared.view.history().evaluations.all().cloned().collect())
}

async fn events(State(shared): State<RouteState>) -> Json<Value> {
    Json(json!(shared.view.history().events.iter().rev().collect::<Vec<_>>()))
}

async fn checkpoints(State(shared): State<RouteState>) -> Json<Vec<CheckpointSummary>> {
    Json(shared.view.history().checkpoints.clone())
}

#[derive(Deserialize)]
struct GroupsQuery {
    env: Option<String>,
}

async fn groups(State(shared): State<RouteState>, Query(which): Query<GroupsQuery>) -> Json<Vec<Value>> {
    let kept = shared.view.history().recent.list(which.env.as_deref());
    Json(kept.iter().map(|group| group.summary()).collect())
}

async fn group(State(shared): State<RouteState>, Path(id): Path<String>) -> Response {
    let kept = id.parse().ok().and_then(|id| shared.view.history().recent.find(id));
    match kept {
        Some(group) => Json(group.whole(&*shared.view.tokenizer)).into_response(),
        None => missing(&format!(
            "this group is no longer kept here; rollouts/ in the run folder has {} of each step",
            shared.view.run_info.rollouts.describe()
        )),
    }
}

async fn live(State(shared): State<RouteState>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let mut state = shared.view.state.subscribe();
    // The current status comes first.
    state.mark_changed();
    let updates = shared.view.updates.subscribe();
    let closed = shared.view.closed.subscribe();
    let stream = futures::stream::unfold(
        (state, updates, closed),
        |(mut state, mut updates, mut closed)| async move {
            loop {
                let event = tokio::select! {
                    biased;
                    told = updates.recv() => match told {
                        Ok((name, text)) => Event::default().event(name).data(&*text),
                        // A client that lagged reads what it missed from the lists.
                        Err(RecvError::Lagged(_)) => continue,
                        Err(RecvError::Closed) => return None,
                    },
                    changed = state.changed() => {
                        changed.ok()?;
                        let text = state.borrow_and_update().clone();
                        Event::default().event("state").data(&*text)
                    }
                    // Polled last: everything before it has been sent.
                    _ = closed.wait_for(|closed| *closed) => return None,
                };
                return Some((Ok(event), (state, updates, closed)));
            }
        },
    );
    Sse::new(stream).keep_alive(KeepAlive::default())
}
