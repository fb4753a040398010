//! Faults that requests meet on purpose, to try clients.

use crate::api_error::ApiError;
use crate::outcome::json;
use crate::state::ServerState;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::stream;
use minds_tinker::types::{FutureHandle, PREFIX};
use std::fmt;
use std::io;
use std::sync::Arc;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// It is refused with status 429.
    TooManyRequests,
    /// It is refused with status 503.
    Unavailable,
    /// It is processed, and its connection breaks in the middle of the response.
    Reset,
    /// A request whose result is fetched later is accepted but not processed, and fetching the result gets status 410.
    Gone,
    /// It never gets a response.
    Hang,
}

/// Chooses the faults of requests by their paths below the API's prefix, such as `/asample`.
#[derive(Clone)]
pub struct FaultInjector(Arc<dyn Fn(&str) -> Option<InjectedFault> + Send + Sync>);

impl FaultInjector {
    /// Calls `choose` once for every request.
    #[must_use]
    pub fn new(choose: impl Fn(&str) -> Option<InjectedFault> + Send + Sync + 'static) -> Self {
        Self(Arc::new(choose))
    }
}

impl fmt::Debug for FaultInjector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultInjector")
    }
}

/// Processes a request, unless it meets a fault.
pub(crate) async fn inject(State(server): State<Arc<ServerState>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let path = path.strip_prefix(PREFIX).unwrap_or(path);
    let fault = server.options().faults.as_ref().and_then(|faults| (faults.0)(path));
    match fault {
        None => next.run(request).await,
        Some(InjectedFault::TooManyRequests) => {
            ApiError::too_many_requests("scripted to be too busy").into_response()
        }
        Some(InjectedFault::Unavailable) => {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "scripted to be unavailable").into_response()
        }
        Some(InjectedFault::Reset) => broken(next.run(request).await),
        Some(InjectedFault::Gone) => json(&FutureHandle {
            request_id: server.futures.forgotten(),
            model_id: None,
            sample_sequence_ids: None,
        }),
        Some(InjectedFault::Hang) => std::future::pending().await,
    }
}

/// The head of a response, with a body that breaks off.
fn broken(response: Response) -> Response {
    let (mut head, _) = response.into_parts();
    head.headers.remove(header::CONTENT_LENGTH);
    let cut = stream::iter([Err::<Vec<u8>, _>(io::Error::other("scripted to break"))]);
    Response::from_parts(head, Body::from_stream(cut))
}
