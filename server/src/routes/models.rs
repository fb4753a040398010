//! Models in training: create, describe, unload.

use super::{RouteResult, Server, future_response};
use crate::api_error::ApiError;
use crate::body::SmallBody;
use crate::ids::printable;
use crate::models::NewModel;
use crate::operation::ModelOperation;
use crate::outcome::{RequestOutcome, json};
use crate::state::ServerState;
use axum::extract::State;
use minds_core::hosting::HostedTraining;
use minds_core::lora::LoraSpec;
use minds_core::service::{BackendError, Pending};
use minds_tinker::convert::lora_from_wire;
use minds_tinker::types::{
    CreateModelRequest, CreateModelResponse, GetInfoRequest, GetInfoResponse, ModelData, OptimizerConfig,
    UnloadModel,
};
use std::sync::Arc;

pub(super) async fn create(State(server): Server, SmallBody(body): SmallBody) -> RouteResult {
    let request: CreateModelRequest = body.json()?;
    check_base(&server, &request.base_model)?;
    check_optimizer(request.optimizer_config.as_ref())?;
    let Some(lora) = &request.lora_config else {
        return Err(ApiError::bad_request("whole models are not trained here: send a lora_config"));
    };
    let spec = lora_from_wire(lora, request.model_seq_id).map_err(BackendError::from)?;
    let make = |id: String| -> Pending<Arc<dyn HostedTraining>> {
        let server = server.clone();
        let spec = spec.clone();
        Box::pin(async move { server.service.create_run(&id, spec).await })
    };
    let made =
        |id: &str| RequestOutcome::json(&CreateModelResponse { model_id: id.into(), ..Default::default() });
    let (id, request_id) = open(&server, &request.session_id, request.model_seq_id, &spec, make, made)?;
    Ok(future_response(request_id, &id))
}

/// Creates a model, unless its number has one. Returns its id and the id of the request that creates it.
pub(super) fn open(
    server: &Arc<ServerState>,
    session: &str,
    number: u64,
    spec: &LoraSpec,
    make: impl FnOnce(String) -> Pending<Arc<dyn HostedTraining>>,
    made: impl FnOnce(&str) -> RequestOutcome,
) -> Result<(String, String), ApiError> {
    server.sessions.with(session, |entry| {
        if let Some(known) = entry.models.get(&number) {
            return Ok(known.clone());
        }
        let reservation = server.models.reserve(spec)?;
        let promise = server.futures.promise(session, 0)?;
        // Newer clients compute this id themselves.
        let id = format!("{session}:train:{number}");
        let known = (id.clone(), promise.id());
        entry.models.insert(number, known.clone());
        let new_model = NewModel {
            session: session.into(),
            spec: spec.clone(),
            reservation,
            training: make(id.clone()),
            promise,
            made: made(&id),
            id,
        };
        server.models.open(new_model);
        Ok(known)
    })
}

pub(super) async fn info(State(server): Server, SmallBody(body): SmallBody) -> RouteResult {
    let request: GetInfoRequest = body.json()?;
    let handle = server.model(&request.model_id)?;
    let name = server.info.base_model.clone();
    let model_data = ModelData {
        arch: Some("llama".into()),
        model_name: Some(name.clone()),
        tokenizer_id: Some(name.clone()),
    };
    Ok(json(&GetInfoResponse {
        model_id: request.model_id,
        model_data,
        is_lora: Some(true),
        lora_rank: Some(handle.spec().rank),
        model_name: Some(name),
        optimizer_config: Some(OptimizerConfig::default()),
        ..Default::default()
    }))
}

/// Unloads a model after the requests that arrived before. Unloading it again succeeds, because the first response may
/// have been lost.
pub(super) async fn unload(State(server): Server, SmallBody(body): SmallBody) -> RouteResult {
    let request: UnloadModel = body.json()?;
    let model = request.model_id.clone();
    let error = match server.model(&model) {
        Ok(handle) => {
            let request_id =
                handle.submit(&server.futures, None, body.bytes.len(), ModelOperation::Unload(request))?;
            return Ok(future_response(request_id, &model));
        }
        Err(error) => error,
    };
    let session = server.sessions.of_model(&model).ok_or(error)?;
    let promise = server.futures.promise(&session, 0)?;
    let request_id = promise.id();
    promise.fulfill(RequestOutcome::json(&request));
    Ok(future_response(request_id, &model))
}

/// Refuses every base model except the served one.
pub(super) fn check_base(server: &ServerState, name: &str) -> Result<(), ApiError> {
    let own = &server.info.base_model;
    if name == *own {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "this server has no base model `{}`: it serves `{own}`",
        printable(name)
    )))
}

/// Refuses every optimizer except AdamW; no configuration means AdamW.
pub(super) fn check_optimizer(config: Option<&OptimizerConfig>) -> Result<(), ApiError> {
    match config {
        Some(config) if config.name != OptimizerConfig::default().name => Err(ApiError::bad_request(
            format!("unknown optimizer `{}`: only adamw is supported", printable(&config.name)),
        )),
        _ => Ok(()),
    }
}
