//! Fetching and cancelling pending results.

use super::{RouteResult, Server};
use crate::body::{SmallBody, accepted_format};
use crate::outcome::json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use minds_tinker::types::{CancelFutureRequest, RetrieveFutureRequest, TryAgain};

/// Long poll: waits until there is a result, because clients poll again without a pause.
pub(super) async fn retrieve(
    State(server): Server,
    headers: HeaderMap,
    SmallBody(body): SmallBody,
) -> RouteResult {
    let request: RetrieveFutureRequest = body.json()?;
    let mut closing = server.closing.subscribe();
    let outcome = tokio::select! {
        biased;
        outcome = server.futures.fetch(&request.request_id, server.options().poll) => outcome?,
        _ = closing.wait_for(|closing| *closing) => None,
    };
    Ok(match outcome {
        Some(outcome) => outcome.answer(accepted_format(&headers)),
        None => {
            let later = TryAgain { request_id: request.request_id, ..TryAgain::default() };
            (StatusCode::REQUEST_TIMEOUT, json(&later)).into_response()
        }
    })
}

pub(super) async fn cancel(State(server): Server, SmallBody(body): SmallBody) -> RouteResult {
    let request: CancelFutureRequest = body.json()?;
    server.futures.cancel(&request.request_id)?;
    Ok(json(&serde_json::json!({})))
}
