//! The policy behind the API that existing environments use, on this machine only.
//!
//! Every rollout has an address of its own, `/r/<rollout>/v1`, and every process a token of its own. A request is
//! answered by the weights of its rollout, and only while the rollout runs. A program that closes its connection
//! cancels its request.

mod chat;
mod reply;
#[cfg(test)]
mod tests;

use super::model_profile::ModelProfile;
use super::request::{CompletionRequest, WorkerRequestError};
use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use minds_http::{AccessError, AccessGuard, AccessToken, ConnectionLimits};
use parking_lot::Mutex;
use rand::TryRng as _;
use rand::rngs::SysRng;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

/// Maximum size of a request body, in bytes.
const BODY: usize = 64 << 20;

const WRONG_TOKEN: &str = "the token is missing or wrong";

/// A rollout has a connection or a few. Programs keep theirs open while they run tools, and a reused connection that
/// has been closed is an error in some HTTP libraries, so the time is long.
const LIMITS: ConnectionLimits =
    ConnectionLimits { connections: 16_384, head_timeout: Duration::from_secs(600) };

/// A request with the channel for its response.
pub(super) type EndpointRequest = (CompletionRequest, oneshot::Sender<Result<Value, WorkerRequestError>>);

/// Serves completion requests of rollouts over HTTP.
pub(super) struct ModelEndpoint {
    guard: AccessGuard,
    profile: Arc<ModelProfile>,
    rollouts: Mutex<HashMap<String, EndpointRollout>>,
}

/// A rollout that is being sampled.
struct EndpointRollout {
    /// Token that its process must present; without one, nothing is answered.
    token: Option<AccessToken>,
    requests: mpsc::Sender<EndpointRequest>,
}

impl ModelEndpoint {
    /// Listens on a free port and serves as long as the runtime lives.
    pub(super) async fn open(profile: Arc<ModelProfile>) -> std::io::Result<Arc<Self>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        // Each rollout has a token of its own.
        let guard = AccessGuard::new(listener.local_addr()?, None);
        let endpoint = Arc::new(Self { guard, profile, rollouts: Mutex::default() });
        let router = router(endpoint.clone());
        tokio::spawn(async move {
            if let Err(error) = minds_http::serve(&listener, router, LIMITS, std::future::pending()).await {
                tracing::error!(%error, "the endpoint of environments has ended");
            }
        });
        Ok(endpoint)
    }

    /// Base URL of a rollout's requests.
    pub(super) fn url(&self, rollout: &str) -> String {
        format!("http://{}/r/{rollout}/v1", self.guard.bound())
    }

    /// Requests of a rollout, until it is unregistered. Its process must present `token`.
    pub(super) fn register(&self, rollout: &str, token: &str) -> mpsc::Receiver<EndpointRequest> {
        let (requests, calls) = mpsc::channel(64);
        self.rollouts
            .lock()
            .insert(rollout.into(), EndpointRollout { token: AccessToken::new(token), requests });
        calls
    }

    /// Later requests of this rollout get an error: the rollout is over.
    pub(super) fn unregister(&self, rollout: &str) {
        self.rollouts.lock().remove(rollout);
    }

    /// Accepts only requests with the token of the rollout's process.
    fn authenticate(&self, rollout: String, token: &[u8]) -> Result<EndpointCaller, (StatusCode, String)> {
        let rollouts = self.rollouts.lock();
        let Some(found) = rollouts.get(&rollout) else {
            return Err((StatusCode::BAD_REQUEST, over(&rollout).to_string()));
        };
        if !found.token.as_ref().is_some_and(|right| right.is(token)) {
            return Err((StatusCode::UNAUTHORIZED, WRONG_TOKEN.into()));
        }
        let requests = found.requests.clone();
        Ok(EndpointCaller { rollout, requests })
    }
}

fn over(rollout: &str) -> WorkerRequestError {
    WorkerRequestError::Invalid(format!("the rollout {rollout} is over"))
}

/// A program that belongs to a rollout and has presented its token.
struct EndpointCaller {
    rollout: String,
    requests: mpsc::Sender<EndpointRequest>,
}

impl EndpointCaller {
    /// Sends a request to its rollout and waits for the response.
    async fn ask(&self, request: CompletionRequest) -> Result<Value, WorkerRequestError> {
        let (answer, answered) = oneshot::channel();
        let over = || over(&self.rollout);
        self.requests.send((request, answer)).await.map_err(|_| over())?;
        answered.await.map_err(|_| over())?
    }
}

impl FromRequestParts<Arc<ModelEndpoint>> for EndpointCaller {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, endpoint: &Arc<ModelEndpoint>) -> Result<Self, Response> {
        let local = endpoint.guard.check_host(&parts.headers);
        let local = local.and_then(|()| endpoint.guard.check_origin(&parts.headers));
        local.map_err(|error| reply::error(error.status(), refusal(error)))?;
        let path = Path::<String>::from_request_parts(parts, endpoint).await;
        let Path(rollout) = path.map_err(IntoResponse::into_response)?;
        let shown = parts.headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let token = shown.and_then(|shown| shown.strip_prefix(b"Bearer ")).unwrap_or_default();
        endpoint.authenticate(rollout, token).map_err(|(status, why)| reply::error(status, &why))
    }
}

fn refusal(error: AccessError) -> &'static str {
    match error {
        AccessError::WebPage => "pages of a browser are not answered",
        AccessError::ForeignHost => "ask for this machine by its own name",
        AccessError::MissingToken | AccessError::WrongToken => WRONG_TOKEN,
    }
}

fn router(endpoint: Arc<ModelEndpoint>) -> Router {
    Router::new()
        .route("/r/{rollout}/v1/chat/completions", post(chat::chat))
        .route("/r/{rollout}/v1/completions", post(chat::completions))
        .route("/r/{rollout}/v1/models", get(models))
        .route("/r/{rollout}/tokenize", post(chat::tokenize))
        .route("/r/{rollout}/v1/tokenize", post(chat::tokenize))
        .fallback(|| async { reply::error(StatusCode::NOT_FOUND, "nothing is offered at this path") })
        .layer(DefaultBodyLimit::max(BODY))
        .with_state(endpoint)
}

async fn models(_: EndpointCaller, State(endpoint): State<Arc<ModelEndpoint>>) -> Response {
    let ModelProfile { base_model, context, .. } = &*endpoint.profile;
    let card = json!({ "id": base_model, "object": "model", "created": 0, "owned_by": "minds-actors", "max_model_len": context });
    reply::json(StatusCode::OK, &json!({ "object": "list", "data": [card] }))
}

/// An access token for a process: 256 bits of the operating system's randomness.
pub(super) fn random_token() -> std::io::Result<String> {
    let mut bytes = [0; 32];
    SysRng.try_fill_bytes(&mut bytes).map_err(|e| std::io::Error::other(e.to_string()))?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a text can be written to");
        text
    }))
}
