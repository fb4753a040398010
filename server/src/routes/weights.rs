//! Weights: save, load, describe.

use super::rest::missing;
use super::sampling::sampler_id;
use super::{RouteResult, Server, future_response, models, numbered};
use crate::api_error::ApiError;
use crate::body::SmallBody;
use crate::operation::{ModelOperation, kind};
use crate::outcome::{RequestOutcome, json};
use crate::state::ServerState;
use axum::extract::State;
use minds_core::checkpoint::{CheckpointAddress, CheckpointNotes, CheckpointPurpose, check_name};
use minds_core::hosting::HostedTraining;
use minds_core::lora::{LoraSpec, Target};
use minds_core::service::{BackendError, Pending};
use minds_tinker::types::{
    LoadWeightsRequest, LoadWeightsResponse, OptimizerConfig, SaveKind, SaveWeightsForSamplerRequest,
    SaveWeightsRequest, WeightsInfoRequest, WeightsInfoResponse,
};
use serde::Serialize;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

pub(super) async fn save(State(server): Server, SmallBody(body): SmallBody) -> RouteResult {
    let request: SaveWeightsRequest = numbered(&server, &body, kind::SAVE_WEIGHTS)?;
    let handle = server.model(&request.model_id)?;
    let overwrite = request.overwrite;
    let notes = notes(&server, request.ttl_seconds, request.user_metadata);
    let operation =
        name(request.path).and_then(|name| Ok(ModelOperation::Save { name, overwrite, notes: notes? }));
    let operation = ModelOperation::or_invalid(kind::SAVE_WEIGHTS, operation);
    let request_id = handle.submit(&server.futures, request.seq_id, body.bytes.len(), operation)?;
    Ok(future_response(request_id, handle.id()))
}

pub(super) async fn save_for_sampler(State(server): Server, SmallBody(body): SmallBody) -> RouteResult {
    let request: SaveWeightsForSamplerRequest = numbered(&server, &body, kind::SAVE_WEIGHTS_FOR_SAMPLER)?;
    let handle = server.model(&request.model_id)?;
    let in_flight = request.kind == SaveKind::Inflight;
    let operation = match (request.path, request.sampling_session_seq_id) {
        (Some(_), _) if in_flight => Err(BackendError::Rejected(
            "weights of the kind `inflight` have no path: leave it out, or save a `snapshot`".into(),
        )),
        (Some(path), _) => {
            let notes = notes(&server, request.ttl_seconds, request.user_metadata);
            name(Some(path)).and_then(|name| Ok(ModelOperation::SaveSampler { name, notes: notes? }))
        }
        (None, Some(number)) => {
            let sampler = sampler_id(handle.session(), number);
            let session = handle.session().to_owned();
            server.sessions.with(&session, |entry| {
                entry.samplers.insert(number, sampler.clone());
                Ok(())
            })?;
            let in_flight_of = in_flight.then(|| handle.id().to_owned());
            Ok(ModelOperation::Export { sampler, session, in_flight_of })
        }
        (None, None) => {
            Err(BackendError::Rejected("there is neither a path nor a sampling_session_seq_id".into()))
        }
    };
    let operation = ModelOperation::or_invalid(kind::SAVE_WEIGHTS_FOR_SAMPLER, operation);
    let request_id = handle.submit(&server.futures, request.seq_id, body.bytes.len(), operation)?;
    Ok(future_response(request_id, handle.id()))
}

/// Loads weights into an existing model, or into a new one with the LoRA spec of the weights.
pub(super) async fn load(State(server): Server, SmallBody(body): SmallBody) -> RouteResult {
    let request: LoadWeightsRequest = numbered(&server, &body, kind::LOAD_WEIGHTS)?;
    if let Some(id) = &request.model_id {
        let handle = server.model(id)?;
        let operation = ModelOperation::Load { path: request.path, optimizer: request.optimizer };
        let request_id = handle.submit(&server.futures, request.seq_id, body.bytes.len(), operation)?;
        return Ok(future_response(request_id, handle.id()));
    }
    let (Some(session), Some(number)) = (&request.session_id, request.model_seq_id) else {
        return Err(ApiError::bad_request(
            "there is neither a model_id nor a session_id with a model_seq_id",
        ));
    };
    if let Some(base) = &request.base_model {
        models::check_base(&server, base)?;
    }
    models::check_optimizer(request.optimizer_config.as_ref())?;
    let address = address(&request.path)?;
    let spec = spec_of(&server, &address).await?;
    let make = |id: String| -> Pending<Arc<dyn HostedTraining>> {
        let server = server.clone();
        let optimizer = request.optimizer;
        Box::pin(async move { server.service.resume_run(&id, &address, optimizer).await })
    };
    let made = |id: &str| {
        let path = Some(request.path.clone());
        let model_id = Some(id.into());
        RequestOutcome::json(&LoadWeightsResponse { path, model_id, ..Default::default() })
    };
    let (id, request_id) = models::open(&server, session, number, &spec, make, made)?;
    Ok(future_response(request_id, &id))
}

pub(super) async fn info(State(server): Server, SmallBody(body): SmallBody) -> RouteResult {
    let request: WeightsInfoRequest = body.json()?;
    let spec = spec_of(&server, &address(&request.tinker_path)?).await?;
    let has = |targets: &[Target]| Some(targets.iter().any(|target| spec.targets.contains(target)));
    Ok(json(&WeightsInfoResponse {
        base_model: server.info.base_model.clone(),
        is_lora: true,
        lora_rank: Some(spec.rank),
        train_unembed: Some(false),
        train_mlp: has(&[Target::GateProj, Target::UpProj, Target::DownProj]),
        train_attn: has(&[Target::QProj, Target::KProj, Target::VProj, Target::OProj]),
        optimizer_config: Some(OptimizerConfig::default()),
    }))
}

fn address(path: &str) -> Result<CheckpointAddress, ApiError> {
    Ok(path.parse().map_err(BackendError::from)?)
}

async fn spec_of(server: &ServerState, address: &CheckpointAddress) -> Result<LoraSpec, ApiError> {
    server.service.checkpoint_spec(address).await?.ok_or_else(|| missing(address))
}

fn name(name: Option<String>) -> Result<String, BackendError> {
    let name = name.ok_or_else(|| BackendError::Rejected("the checkpoint name is missing".into()))?;
    check_name(&name)?;
    Ok(name)
}

fn notes(
    server: &ServerState,
    ttl_seconds: Option<u64>,
    user_metadata: Option<Map<String, Value>>,
) -> Result<CheckpointNotes, BackendError> {
    check_metadata(&user_metadata, server.options().metadata_bytes).map_err(BackendError::Rejected)?;
    Ok(CheckpointNotes { expires: ttl_seconds.map(|ttl| expiry(server, ttl)), user_metadata })
}

/// Refuses metadata of more than `most` bytes of JSON.
pub(super) fn check_metadata(metadata: &impl Serialize, most: usize) -> Result<(), String> {
    let bytes = serde_json::to_vec(metadata).map_err(|e| e.to_string())?.len();
    if bytes <= most {
        return Ok(());
    }
    Err(format!("user_metadata, names and tags take {bytes} bytes, at most {most} are kept"))
}

/// Time at which a checkpoint with this time to live expires, in seconds since 1970.
pub(super) fn expiry(server: &ServerState, ttl_seconds: u64) -> u64 {
    let now = (server.options().wall_clock)().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    now.as_secs().saturating_add(ttl_seconds)
}

/// Address of a checkpoint from its run and its id, such as `weights/<name>`.
pub(super) fn checkpoint_address(run: &str, checkpoint: &str) -> Result<CheckpointAddress, ApiError> {
    address(&format!("tinker://{run}/{checkpoint}"))
}

/// Name of the kind of a checkpoint in lists.
pub(super) fn kind_name(kind: CheckpointPurpose) -> &'static str {
    match kind {
        CheckpointPurpose::Training => "training",
        CheckpointPurpose::Sampler => "sampler",
    }
}
