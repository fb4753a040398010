//! Lets requests meet the faults that the server injects.

use super::Server;
use crate::api_error::ApiError;
use crate::fault::InjectedFault;
use crate::outcome::json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::stream;
use minds_tinker::types::{FutureHandle, PREFIX};
use std::io;

/// Processes a request, unless it meets a fault.
pub(super) async fn inject(State(server): Server, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let path = path.strip_prefix(PREFIX).unwrap_or(path);
    let fault = server.options().faults.as_ref().and_then(|faults| faults.choose(path));
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
