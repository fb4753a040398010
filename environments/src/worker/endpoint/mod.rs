//! The policy behind the API that the field's environments speak, on this machine only.
//!
//! Every rollout has an address of its own, `/r/<rollout>/v1`, and every process a token of its own. A request is
//! answered by the weights of its rollout, and only as long as the rollout is played. A program that hangs up gives its
//! request up.

mod chat;
mod reply;
#[cfg(test)]
mod tests;

use super::ask::{Question, Refusal};
use super::voice::Voice;
use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt as _;
use rand::TryRng as _;
use rand::rngs::SysRng;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use subtle::ConstantTimeEq as _;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

/// Most bytes of a request.
const BODY: usize = 64 << 20;

/// A question with the place where its answer goes.
pub(super) type Call = (Question, oneshot::Sender<Result<Value, Refusal>>);

/// Where rollouts are asked for over HTTP.
pub(super) struct Endpoint {
    address: SocketAddr,
    voice: Arc<Voice>,
    rollouts: Mutex<HashMap<String, Rollout>>,
}

/// A rollout that is being played.
struct Rollout {
    /// What its process shows. Never printed.
    token: String,
    questions: mpsc::Sender<Call>,
}

impl Endpoint {
    /// Listens on a free port and serves as long as the runtime lives.
    pub(super) async fn open(voice: Arc<Voice>) -> std::io::Result<Arc<Self>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let endpoint = Arc::new(Self { address, voice, rollouts: Mutex::default() });
        let router = router(endpoint.clone());
        // An answer is small and waited for: it must not wait for more.
        let listener = listener.tap_io(|stream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!(%error, "a connection keeps its delay");
            }
        });
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "the endpoint of environments has ended");
            }
        });
        Ok(endpoint)
    }

    /// Where a rollout asks.
    pub(super) fn url(&self, rollout: &str) -> String {
        format!("http://{}/r/{rollout}/v1", self.address)
    }

    /// The questions of a rollout, until it leaves. `token` is what its process shows.
    pub(super) fn enter(&self, rollout: &str, token: &str) -> mpsc::Receiver<Call> {
        let (questions, calls) = mpsc::channel(64);
        self.lock().insert(rollout.into(), Rollout { token: token.into(), questions });
        calls
    }

    /// Whoever asks from now on is told that the rollout is over.
    pub(super) fn leave(&self, rollout: &str) {
        self.lock().remove(rollout);
    }

    /// Lets in who shows the token of the rollout's process.
    fn admit(&self, rollout: String, token: &[u8]) -> Result<Caller, (StatusCode, String)> {
        let rollouts = self.lock();
        let Some(found) = rollouts.get(&rollout) else {
            return Err((StatusCode::BAD_REQUEST, over(&rollout).to_string()));
        };
        if !bool::from(token.ct_eq(found.token.as_bytes())) {
            return Err((StatusCode::UNAUTHORIZED, "the token is missing or wrong".into()));
        }
        let questions = found.questions.clone();
        Ok(Caller { rollout, questions })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Rollout>> {
        self.rollouts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn over(rollout: &str) -> Refusal {
    Refusal::Bad(format!("the rollout {rollout} is over"))
}

/// A program that plays a rollout, and has shown that it does.
struct Caller {
    rollout: String,
    questions: mpsc::Sender<Call>,
}

impl Caller {
    /// Has a question answered.
    async fn ask(&self, question: Question) -> Result<Value, Refusal> {
        let (answer, answered) = oneshot::channel();
        let over = || over(&self.rollout);
        self.questions.send((question, answer)).await.map_err(|_| over())?;
        answered.await.map_err(|_| over())?
    }
}

impl FromRequestParts<Arc<Endpoint>> for Caller {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, endpoint: &Arc<Endpoint>) -> Result<Self, Response> {
        let path = Path::<String>::from_request_parts(parts, endpoint).await;
        let Path(rollout) = path.map_err(IntoResponse::into_response)?;
        let shown = parts.headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let token = shown.and_then(|shown| shown.strip_prefix(b"Bearer ")).unwrap_or_default();
        endpoint.admit(rollout, token).map_err(|(status, why)| reply::error(status, &why))
    }
}

fn router(endpoint: Arc<Endpoint>) -> Router {
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

async fn models(_: Caller, State(endpoint): State<Arc<Endpoint>>) -> Response {
    let Voice { base_model, context, .. } = &*endpoint.voice;
    let card = json!({ "id": base_model, "object": "model", "created": 0, "owned_by": "minds-actors", "max_model_len": context });
    reply::json(StatusCode::OK, &json!({ "object": "list", "data": [card] }))
}

/// A token for a process: 256 bits of the operating system's randomness.
pub(super) fn secret() -> std::io::Result<String> {
    let mut bytes = [0; 32];
    SysRng.try_fill_bytes(&mut bytes).map_err(|e| std::io::Error::other(e.to_string()))?;
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a text can be written to");
        text
    }))
}
