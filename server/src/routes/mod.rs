//! HTTP routes of the API.

mod faults;
mod futures;
mod meta;
mod models;
mod rest;
mod sampling;
mod sessions;
mod training;
mod weights;

pub(crate) use rest::delete_expired;

use crate::api_error::ApiError;
use crate::body::RequestBody;
use crate::models::ModelHandle;
use crate::operation::ModelOperation;
use crate::outcome::json;
use crate::state::ServerState;
use ::futures::FutureExt as _;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use minds_core::service::BackendError;
use minds_http::AccessError;
use minds_tinker::types::{API_KEY_HEADER, FutureHandle, PREFIX};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// The state, as handlers extract it.
type Server = State<Arc<ServerState>>;

/// Response or error of a handler.
type RouteResult = Result<Response, ApiError>;

/// Router with all paths of the API.
pub(crate) fn router(server: Arc<ServerState>) -> Router {
    let api = Router::new()
        .route("/client/config", post(meta::config))
        .route("/client/dynamic_config", post(meta::dynamic_config))
        .route("/telemetry", post(meta::telemetry))
        .route("/get_server_capabilities", get(meta::capabilities))
        .route("/create_session", post(sessions::create))
        .route("/session_heartbeat", post(sessions::heartbeat))
        .route("/sessions", get(sessions::list))
        .route("/sessions/{id}", get(sessions::info))
        .route("/sessions/{id}/finish", post(sessions::finish))
        .route("/create_model", post(models::create))
        .route("/get_info", post(models::info))
        .route("/unload_model", post(models::unload))
        .route("/forward", post(training::forward))
        .route("/forward_backward", post(training::forward_backward))
        .route("/optim_step", post(training::optim_step))
        .route("/save_weights", post(weights::save))
        .route("/create_custom_loss", post(training::refuse_custom_loss))
        .route("/save_weights_for_sampler", post(weights::save_for_sampler))
        .route("/load_weights", post(weights::load))
        .route("/weights_info", post(weights::info))
        .route("/create_sampling_session", post(sampling::create))
        .route("/samplers/{id}", get(sampling::info))
        .route("/asample", post(sampling::sample))
        .route("/retrieve_future", post(futures::retrieve))
        .route("/cancel_future", post(futures::cancel))
        .route("/training_runs", get(rest::runs))
        .route("/training_runs/{run}", get(rest::run))
        .route("/training_runs/{run}/checkpoints", get(rest::checkpoints_of))
        .route(
            "/training_runs/{run}/checkpoints/{*checkpoint}",
            get(rest::not_offered).post(rest::not_offered).put(rest::set_ttl).delete(rest::delete),
        )
        .route("/checkpoints", get(rest::checkpoints))
        .route_layer(from_fn_with_state(server.clone(), faults::inject))
        .route_layer(from_fn_with_state(server.clone(), authorize));
    Router::new()
        .nest(PREFIX, api)
        .route(&format!("{PREFIX}/healthz"), get(meta::health))
        .fallback(|| async { ApiError::not_found("there is nothing at this address").closing_connection() })
        .method_not_allowed_fallback(|| async {
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "this address has no such method")
                .closing_connection()
        })
        // `RequestBody` has a limit of its own.
        .layer(DefaultBodyLimit::disable())
        .layer(axum::middleware::from_fn(catch_panics))
        .with_state(server)
}

/// Requires the API key. A web page in a browser can reach a server on the same machine, so a server without a key
/// refuses requests from web pages, including those that use DNS rebinding.
async fn authorize(State(server): Server, request: Request, next: Next) -> Response {
    let guard = &server.guard;
    let headers = request.headers();
    let checked = if guard.has_token() {
        guard.check_token(headers.get(API_KEY_HEADER).map(|value| value.as_bytes()))
    } else {
        guard.check_host(headers).and_then(|()| guard.check_origin(headers))
    };
    match checked {
        Ok(()) => next.run(request).await,
        Err(error) => ApiError::new(error.status(), refusal(error)).closing_connection().into_response(),
    }
}

fn refusal(error: AccessError) -> &'static str {
    match error {
        AccessError::MissingToken => {
            "this server wants a key in X-API-Key and got none: clients read it from TINKER_API_KEY"
        }
        AccessError::WrongToken => "the key in X-API-Key is wrong",
        AccessError::ForeignHost => {
            "a server without a key answers only to this machine's own names: ask 127.0.0.1 or localhost"
        }
        AccessError::WebPage => "a server without a key does not answer pages of a browser",
    }
}

/// Turns a panic in a handler into a status 500, so that only that request fails.
async fn catch_panics(request: Request, next: Next) -> Response {
    let address = request.uri().path().to_owned();
    AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(|_| {
        tracing::error!(address, "a request handler panicked");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error of the server").into_response()
    })
}

/// Model of a request, and its number among the requests of that model.
#[derive(Deserialize)]
struct SequencedRequest {
    model_id: String,
    seq_id: Option<i64>,
}

/// Parses a request of a model. If only its model and number can be parsed, the request is refused but its number still
/// counts as arrived, so that later requests do not wait for it.
fn numbered<T: DeserializeOwned>(
    server: &ServerState,
    body: &RequestBody,
    kind: &'static str,
) -> Result<T, ApiError> {
    body.json().inspect_err(|error| {
        if let Ok(SequencedRequest { model_id, seq_id: number @ Some(_) }) = body.json()
            && let Ok(handle) = server.model(&model_id)
        {
            use_up_number(server, &handle, number, kind, error);
        }
    })
}

/// Counts the number of a refused request as arrived.
fn use_up_number(
    server: &ServerState,
    handle: &ModelHandle,
    number: Option<i64>,
    kind: &'static str,
    error: &ApiError,
) {
    let error = BackendError::Rejected(error.detail.clone());
    let operation = ModelOperation::Invalid { kind, error };
    // The client gets the error at once and does not fetch this result.
    drop(handle.submit(&server.futures, number, 0, operation));
}

/// Response to a request whose result is fetched later.
fn future_response(request_id: String, model_id: &str) -> Response {
    json(&FutureHandle { request_id, model_id: Some(model_id.into()), sample_sequence_ids: None })
}
