//! Passes and optimizer steps.

use super::{Answer, numbered, promised};
use crate::server::body::{Payload, Small, aside};
use crate::server::outcome::Form;
use crate::server::refusal::Refusal;
use crate::server::state::Server;
use crate::server::work::{Work, kind};
use axum::extract::State;
use minds_core::backend::BackendError;
use minds_tinker::convert::{ConvertError, Pass, adam_from_wire, pass_from_json, pass_from_proto};
use minds_tinker::types::{ForwardBackwardRequest, ForwardRequest, OptimStepRequest, proto};
use std::sync::Arc;

/// A pass as it was sent.
struct Sent {
    model: String,
    number: Option<i64>,
    with_gradients: bool,
    pass: Result<Pass, ConvertError>,
}

/// Newer clients send protobuf, older ones JSON.
pub(super) async fn forward_backward(State(server): State<Arc<Server>>, payload: Payload) -> Answer {
    submit(server, payload, |server, payload| match payload.form {
        Form::Protobuf => {
            let request: proto::ForwardBackwardRequest = payload.protobuf()?;
            let pass = pass_from_proto(&request);
            let with_gradients = !request.forward_only;
            Ok(Sent { model: request.model_id, number: Some(request.seq_id.into()), with_gradients, pass })
        }
        Form::Json => {
            let request: ForwardBackwardRequest = numbered(server, payload, kind::FORWARD_BACKWARD)?;
            let pass = pass_from_json(&request.forward_backward_input);
            Ok(Sent { model: request.model_id, number: request.seq_id, with_gradients: true, pass })
        }
    })
    .await
}

/// Only older clients know this address.
pub(super) async fn forward(State(server): State<Arc<Server>>, payload: Payload) -> Answer {
    submit(server, payload, |server, payload| {
        let request: ForwardRequest = numbered(server, payload, kind::FORWARD)?;
        let pass = pass_from_json(&request.forward_input);
        Ok(Sent { model: request.model_id, number: request.seq_id, with_gradients: false, pass })
    })
    .await
}

async fn submit(
    server: Arc<Server>,
    payload: Payload,
    read: impl FnOnce(&Server, &Payload) -> Result<Sent, Refusal> + Send + 'static,
) -> Answer {
    let bytes = payload.bytes.len();
    let reader = server.clone();
    let sent = aside(payload, move |payload| read(&reader, payload)).await?;
    let desk = server.model(&sent.model)?;
    let kind = if sent.with_gradients { kind::FORWARD_BACKWARD } else { kind::FORWARD };
    let work = sent.pass.map_err(BackendError::from).map(|Pass { data, loss }| Work::Pass {
        data,
        loss,
        with_gradients: sent.with_gradients,
    });
    let request_id = desk.submit(&server.futures, sent.number, bytes, Work::or_refused(kind, work))?;
    Ok(promised(request_id, desk.id()))
}

pub(super) async fn optim_step(State(server): State<Arc<Server>>, Small(payload): Small) -> Answer {
    let request: OptimStepRequest = numbered(&server, &payload, kind::OPTIM_STEP)?;
    let desk = server.model(&request.model_id)?;
    let work = match &request.optimizer_params {
        Some(_) => {
            Err(BackendError::Unsupported("there is no optimizer but adamw here: send adam_params".into()))
        }
        None => adam_from_wire(&request.adam_params.unwrap_or_default()).map(Work::Step).map_err(Into::into),
    };
    let work = Work::or_refused(kind::OPTIM_STEP, work);
    let request_id = desk.submit(&server.futures, request.seq_id, payload.bytes.len(), work)?;
    Ok(promised(request_id, desk.id()))
}
