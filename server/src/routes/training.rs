//! Passes and optimizer steps.

use super::{RouteResult, Server, future_response, numbered, use_up_number};
use crate::api_error::ApiError;
use crate::body::{RequestBody, SmallBody, parse_blocking};
use crate::operation::{ModelOperation, kind};
use crate::outcome::BodyFormat;
use crate::state::ServerState;
use axum::extract::State;
use minds_core::loss::LossError;
use minds_core::service::BackendError;
use minds_tinker::convert::{CheckedPass, ConvertError, adam_from_wire, pass_from_json, pass_from_proto};
use minds_tinker::types::{ForwardRequest, OptimStepRequest, WireForwardBackwardRequest, proto};
use std::sync::Arc;

/// A pass as the client sent it.
struct ReceivedPass {
    model: String,
    number: Option<i64>,
    with_gradients: bool,
    pass: Result<CheckedPass, ConvertError>,
}

/// Newer clients send protobuf, older ones JSON.
pub(super) async fn forward_backward(State(server): Server, body: RequestBody) -> RouteResult {
    submit(server, body, |server, body| match body.format {
        BodyFormat::Protobuf => {
            let request: proto::ProtoForwardBackwardRequest = body.protobuf()?;
            let pass = pass_from_proto(&request);
            let with_gradients = !request.forward_only;
            Ok(ReceivedPass {
                model: request.model_id,
                // Protobuf writes no 0: here it is a number that was left out.
                number: (request.seq_id != 0).then(|| request.seq_id.into()),
                with_gradients,
                pass,
            })
        }
        BodyFormat::Json => {
            let request: WireForwardBackwardRequest = numbered(server, body, kind::FORWARD_BACKWARD)?;
            let pass = pass_from_json(&request.forward_backward_input);
            Ok(ReceivedPass { model: request.model_id, number: request.seq_id, with_gradients: true, pass })
        }
    })
    .await
}

/// Only older clients use this path.
pub(super) async fn forward(State(server): Server, body: RequestBody) -> RouteResult {
    submit(server, body, |server, body| {
        let request: ForwardRequest = numbered(server, body, kind::FORWARD)?;
        let pass = pass_from_json(&request.forward_input);
        Ok(ReceivedPass { model: request.model_id, number: request.seq_id, with_gradients: false, pass })
    })
    .await
}

async fn submit(
    server: Arc<ServerState>,
    body: RequestBody,
    read: impl FnOnce(&ServerState, &RequestBody) -> Result<ReceivedPass, ApiError> + Send + 'static,
) -> RouteResult {
    let bytes = body.bytes.len();
    let reader = server.clone();
    let sent = parse_blocking(body, move |body| read(&reader, body)).await?;
    let handle = server.model(&sent.model)?;
    let kind = if sent.with_gradients { kind::FORWARD_BACKWARD } else { kind::FORWARD };
    let operation = sent.pass.map_err(BackendError::from).map(|CheckedPass { data, loss }| {
        ModelOperation::Pass { data, loss, with_gradients: sent.with_gradients }
    });
    let request_id =
        handle.submit(&server.futures, sent.number, bytes, ModelOperation::or_invalid(kind, operation))?;
    Ok(future_response(request_id, handle.id()))
}

/// A custom loss as a graph that the server would rebuild.
pub(super) async fn refuse_custom_loss() -> ApiError {
    ApiError::bad_request(LossError::Custom.to_string())
}

pub(super) async fn optim_step(State(server): Server, SmallBody(body): SmallBody) -> RouteResult {
    let request: OptimStepRequest = numbered(&server, &body, kind::OPTIM_STEP)?;
    let handle = server.model(&request.model_id)?;
    let operation = match &request.optimizer_params {
        Some(_) => {
            Err(BackendError::Unsupported("only the optimizer adamw is supported: send adam_params".into()))
        }
        None => {
            let params = adam_from_wire(&request.adam_params.unwrap_or_default());
            let params = params.map_err(|error| ApiError::from(BackendError::from(error)));
            Ok(ModelOperation::Step(params.inspect_err(|error| {
                use_up_number(&server, &handle, request.seq_id, kind::OPTIM_STEP, error);
            })?))
        }
    };
    let operation = ModelOperation::or_invalid(kind::OPTIM_STEP, operation);
    let request_id = handle.submit(&server.futures, request.seq_id, body.bytes.len(), operation)?;
    Ok(future_response(request_id, handle.id()))
}
