//! Models in training: made, described, given up.

use super::{Answer, promised};
use crate::local::LocalTraining;
use crate::server::body::Small;
use crate::server::desk::{Desk, Opening};
use crate::server::ids::shown;
use crate::server::outcome::{Outcome, json};
use crate::server::refusal::Refusal;
use crate::server::state::Server;
use crate::server::work::Work;
use crate::train::LogprobRows;
use axum::extract::State;
use minds_core::backend::{BackendError, Pending};
use minds_core::lora::LoraSpec;
use minds_tinker::convert::lora_from_wire;
use minds_tinker::types::{
    CreateModelRequest, CreateModelResponse, GetInfoRequest, GetInfoResponse, ModelData, OptimizerConfig,
    UnloadModel,
};
use std::sync::Arc;

pub(super) async fn create(State(server): State<Arc<Server>>, Small(payload): Small) -> Answer {
    let request: CreateModelRequest = payload.json()?;
    check_base(&server, &request.base_model)?;
    check_optimizer(request.optimizer_config.as_ref())?;
    let Some(lora) = &request.lora_config else {
        return Err(Refusal::bad("whole models are not trained here: send a lora_config"));
    };
    let spec = lora_from_wire(lora, request.model_seq_id).map_err(BackendError::from)?;
    let make = |id: String| -> Pending<LocalTraining> {
        let (server, spec) = (server.clone(), spec.clone());
        Box::pin(async move { server.service.training(Some(&id), spec, LogprobRows::All).await })
    };
    let made = |id: &str| Outcome::json(&CreateModelResponse { model_id: id.into(), ..Default::default() });
    let (id, request_id) = open(&server, &request.session_id, request.model_seq_id, &spec, make, made)?;
    Ok(promised(request_id, &id))
}

/// Makes a model, unless its number has one. Answers with its name and the promise of it.
pub(super) fn open(
    server: &Arc<Server>,
    session: &str,
    number: u64,
    spec: &LoraSpec,
    make: impl FnOnce(String) -> Pending<LocalTraining>,
    made: impl FnOnce(&str) -> Outcome,
) -> Result<(String, String), Refusal> {
    server.sessions.with(session, |entry| {
        if let Some(known) = entry.models.get(&number) {
            return Ok(known.clone());
        }
        let seat = server.models.seat(spec)?;
        let promise = server.futures.promise(session, 0)?;
        // Newer clients compute this name themselves.
        let id = format!("{session}:train:{number}");
        let known = (id.clone(), promise.id());
        entry.models.insert(number, known.clone());
        let opening = Opening {
            session: session.into(),
            spec: spec.clone(),
            seat,
            training: make(id.clone()),
            promise,
            made: made(&id),
            id,
        };
        server.models.put(Desk::open(opening, server));
        Ok(known)
    })
}

pub(super) async fn info(State(server): State<Arc<Server>>, Small(payload): Small) -> Answer {
    let request: GetInfoRequest = payload.json()?;
    let desk = server.model(&request.model_id)?;
    let name = server.service.base_name().to_owned();
    let model_data = ModelData {
        arch: Some("llama".into()),
        model_name: Some(name.clone()),
        tokenizer_id: Some(name.clone()),
    };
    Ok(json(&GetInfoResponse {
        model_id: request.model_id,
        model_data,
        is_lora: Some(true),
        lora_rank: Some(desk.spec().rank),
        model_name: Some(name),
        optimizer_config: Some(OptimizerConfig::default()),
        ..Default::default()
    }))
}

/// Gives a model up, after the requests that came before. One that has gone is given up again: the first answer may
/// have been lost.
pub(super) async fn unload(State(server): State<Arc<Server>>, Small(payload): Small) -> Answer {
    let request: UnloadModel = payload.json()?;
    let model = request.model_id.clone();
    let refusal = match server.model(&model) {
        Ok(desk) => {
            let request_id =
                desk.submit(&server.futures, None, payload.bytes.len(), Work::Unload(request))?;
            return Ok(promised(request_id, &model));
        }
        Err(refusal) => refusal,
    };
    let session = server.sessions.of_model(&model).ok_or(refusal)?;
    let promise = server.futures.promise(&session, 0)?;
    let request_id = promise.id();
    promise.keep(Outcome::json(&request));
    Ok(promised(request_id, &model))
}

/// Refuses other base models.
pub(super) fn check_base(server: &Server, name: &str) -> Result<(), Refusal> {
    let own = server.service.base_name();
    if name == own {
        return Ok(());
    }
    Err(Refusal::bad(format!("the base model `{}` is not served here, `{own}` is", shown(name))))
}

/// Refuses other optimizers.
pub(super) fn check_optimizer(config: Option<&OptimizerConfig>) -> Result<(), Refusal> {
    match config {
        Some(config) if config.name != OptimizerConfig::default().name => {
            Err(Refusal::bad(format!("there is no optimizer `{}` here, only adamw", shown(&config.name))))
        }
        _ => Ok(()),
    }
}
