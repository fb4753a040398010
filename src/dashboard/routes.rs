//! The addresses.

use super::door::{self, Door};
use super::hub::Hub;
use super::{page, registry};
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
use minds_core::reward::Metrics;
use minds_engine::server::listen::{self, Limits};
use prometheus::{Registry, TextEncoder};
use serde::Deserialize;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

/// Nothing from elsewhere, and no script but the page's own: what models write is shown on it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Whoever looks on takes none of the files that the run needs, and no memory without end.
const LIMITS: Limits = Limits { connections: 64, head_timeout: Duration::from_secs(10) };

/// What a request is answered from.
#[derive(Clone)]
struct Shared {
    hub: Arc<Hub>,
    registry: Registry,
}

/// All addresses.
///
/// # Errors
/// Two metrics have one name.
pub(super) fn routes(hub: Arc<Hub>, door: Door) -> Result<Router, prometheus::Error> {
    let registry = registry::registry(hub.clone())?;
    Ok(Router::new()
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
        .fallback(|| async { missing("there is no such address") })
        .layer(from_fn_with_state(Arc::new(door), door::guard))
        .layer(map_response(protect))
        .with_state(Shared { hub, registry }))
}

/// Answers until the listener fails, or until all is told and every answer under way has left.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    routes: Router,
    mut over: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let end = async move { drop(over.wait_for(|over| *over).await) };
    listen::serve(&tokio::net::TcpListener::from_std(listener)?, routes, LIMITS, end).await
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

async fn metrics(State(shared): State<Shared>) -> Response {
    match TextEncoder::new().encode_to_string(&shared.registry.gather()) {
        Ok(text) => ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn run(State(shared): State<Shared>) -> Response {
    Json(&shared.hub.facts).into_response()
}

async fn steps(State(shared): State<Shared>) -> Json<Vec<Metrics>> {
    Json(shared.hub.told().rows.all().cloned().collect())
}

async fn evaluations(State(shared): State<Shared>) -> Json<Vec<Metrics>> {
    Json(shared.hub.told().evaluations.all().cloned().collect())
}

async fn events(State(shared): State<Shared>) -> Json<Value> {
    Json(json!(shared.hub.told().events.iter().rev().collect::<Vec<_>>()))
}

async fn checkpoints(State(shared): State<Shared>) -> Json<Vec<Value>> {
    Json(shared.hub.told().checkpoints.clone())
}

#[derive(Deserialize)]
struct Which {
    env: Option<String>,
}

async fn groups(State(shared): State<Shared>, Query(which): Query<Which>) -> Json<Vec<Value>> {
    let kept = shared.hub.told().recent.list(which.env.as_deref());
    Json(kept.iter().map(|group| group.summary()).collect())
}

async fn group(State(shared): State<Shared>, Path(id): Path<String>) -> Response {
    let kept = id.parse().ok().and_then(|id| shared.hub.told().recent.find(id));
    match kept {
        Some(group) => Json(group.whole(&*shared.hub.tokenizer)).into_response(),
        None => missing("this group is no longer kept: rollouts/ in the run folder has all of them"),
    }
}

async fn live(State(shared): State<Shared>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let mut state = shared.hub.state.subscribe();
    // The state as it is now comes first.
    state.mark_changed();
    let news = shared.hub.news.subscribe();
    let over = shared.hub.over.subscribe();
    let stream = futures::stream::unfold((state, news, over), |(mut state, mut news, mut over)| async move {
        loop {
            let event = tokio::select! {
                biased;
                told = news.recv() => match told {
                    Ok((name, text)) => Event::default().event(name).data(&*text),
                    // A browser that slept reads what it missed from the lists.
                    Err(RecvError::Lagged(_)) => continue,
                    Err(RecvError::Closed) => return None,
                },
                changed = state.changed() => {
                    changed.ok()?;
                    let text = state.borrow_and_update().clone();
                    Event::default().event("state").data(&*text)
                }
                // The last one of these: everything before it is told.
                _ = over.wait_for(|over| *over) => return None,
            };
            return Some((Ok(event), (state, news, over)));
        }
    });
    Sse::new(stream).keep_alive(KeepAlive::default())
}
