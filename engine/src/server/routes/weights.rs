//! Weights: saved, loaded, described.

use super::rest::disk;
use super::sampling::sampler_id;
use super::{Answer, models, numbered, promised};
use crate::checkpoint::{Kind, Notes, Place, check_name, read_spec};
use crate::local::LocalTraining;
use crate::server::body::Small;
use crate::server::outcome::{Outcome, json};
use crate::server::refusal::Refusal;
use crate::server::state::Server;
use crate::server::work::{Work, kind};
use crate::train::LogprobRows;
use axum::extract::State;
use minds_core::backend::{BackendError, Pending};
use minds_core::lora::{LoraSpec, Target};
use minds_tinker::types::{
    LoadWeightsRequest, LoadWeightsResponse, OptimizerConfig, SaveWeightsForSamplerRequest,
    SaveWeightsRequest, WeightsInfoRequest, WeightsInfoResponse,
};
use serde::Serialize;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

pub(super) async fn save(State(server): State<Arc<Server>>, Small(payload): Small) -> Answer {
    let request: SaveWeightsRequest = numbered(&server, &payload, kind::SAVE_WEIGHTS)?;
    let desk = server.model(&request.model_id)?;
    let (overwrite, notes) = (request.overwrite, notes(&server, request.ttl_seconds, request.user_metadata));
    let work = name(request.path).and_then(|name| Ok(Work::Save { name, overwrite, notes: notes? }));
    let work = Work::or_refused(kind::SAVE_WEIGHTS, work);
    let request_id = desk.submit(&server.futures, request.seq_id, payload.bytes.len(), work)?;
    Ok(promised(request_id, desk.id()))
}

pub(super) async fn save_for_sampler(State(server): State<Arc<Server>>, Small(payload): Small) -> Answer {
    let request: SaveWeightsForSamplerRequest = numbered(&server, &payload, kind::SAVE_WEIGHTS_FOR_SAMPLER)?;
    let desk = server.model(&request.model_id)?;
    let work = match (request.path, request.sampling_session_seq_id) {
        (Some(path), _) => {
            let notes = notes(&server, request.ttl_seconds, request.user_metadata);
            name(Some(path)).and_then(|name| Ok(Work::SaveSampler { name, notes: notes? }))
        }
        (None, Some(number)) => {
            let (sampler, session) = (sampler_id(desk.session(), number), desk.session().to_owned());
            server.sessions.with(&session, |entry| {
                entry.samplers.insert(number, sampler.clone());
                Ok(())
            })?;
            Ok(Work::Export { sampler, session })
        }
        (None, None) => {
            Err(BackendError::Rejected("there is neither a path nor a sampling_session_seq_id".into()))
        }
    };
    let work = Work::or_refused(kind::SAVE_WEIGHTS_FOR_SAMPLER, work);
    let request_id = desk.submit(&server.futures, request.seq_id, payload.bytes.len(), work)?;
    Ok(promised(request_id, desk.id()))
}

/// Into a model, or into a new one of the weights' own form.
pub(super) async fn load(State(server): State<Arc<Server>>, Small(payload): Small) -> Answer {
    let request: LoadWeightsRequest = numbered(&server, &payload, kind::LOAD_WEIGHTS)?;
    if let Some(id) = &request.model_id {
        let desk = server.model(id)?;
        let work = Work::Load { path: request.path, optimizer: request.optimizer };
        let request_id = desk.submit(&server.futures, request.seq_id, payload.bytes.len(), work)?;
        return Ok(promised(request_id, desk.id()));
    }
    let (Some(session), Some(number)) = (&request.session_id, request.model_seq_id) else {
        return Err(Refusal::bad("there is neither a model_id nor a session_id with a model_seq_id"));
    };
    if let Some(base) = &request.base_model {
        models::check_base(&server, base)?;
    }
    models::check_optimizer(request.optimizer_config.as_ref())?;
    let spec = spec_of(&server, &request.path).await?;
    let make = |id: String| -> Pending<LocalTraining> {
        let (server, path, optimizer) = (server.clone(), request.path.clone(), request.optimizer);
        Box::pin(
            async move { server.service.training_from(Some(&id), &path, optimizer, LogprobRows::All).await },
        )
    };
    let made = |id: &str| {
        let (path, model_id) = (Some(request.path.clone()), Some(id.into()));
        Outcome::json(&LoadWeightsResponse { path, model_id, ..Default::default() })
    };
    let (id, request_id) = models::open(&server, session, number, &spec, make, made)?;
    Ok(promised(request_id, &id))
}

pub(super) async fn info(State(server): State<Arc<Server>>, Small(payload): Small) -> Answer {
    let request: WeightsInfoRequest = payload.json()?;
    let spec = spec_of(&server, &request.tinker_path).await?;
    let has = |targets: &[Target]| Some(targets.iter().any(|target| spec.targets.contains(target)));
    Ok(json(&WeightsInfoResponse {
        base_model: server.service.base_name().into(),
        is_lora: true,
        lora_rank: Some(spec.rank),
        train_unembed: Some(false),
        train_mlp: has(&[Target::GateProj, Target::UpProj, Target::DownProj]),
        train_attn: has(&[Target::QProj, Target::KProj, Target::VProj, Target::OProj]),
        optimizer_config: Some(OptimizerConfig::default()),
    }))
}

async fn spec_of(server: &Arc<Server>, path: &str) -> Result<LoraSpec, Refusal> {
    let place: Place = path.parse().map_err(BackendError::from)?;
    disk(server, move |store| store.read(&place, read_spec)).await
}

fn name(name: Option<String>) -> Result<String, BackendError> {
    let name = name.ok_or_else(|| BackendError::Rejected("there is no name to save under".into()))?;
    check_name(&name)?;
    Ok(name)
}

fn notes(
    server: &Server,
    ttl_seconds: Option<u64>,
    user_metadata: Option<Map<String, Value>>,
) -> Result<Notes, BackendError> {
    check_metadata(&user_metadata, server.options().metadata_bytes).map_err(BackendError::Rejected)?;
    Ok(Notes { expires: ttl_seconds.map(|ttl| expiry(server, ttl)), user_metadata })
}

/// Refuses to remember more than a remark.
pub(super) fn check_metadata(metadata: &impl Serialize, most: usize) -> Result<(), String> {
    let bytes = serde_json::to_vec(metadata).map_err(|e| e.to_string())?.len();
    if bytes <= most {
        return Ok(());
    }
    Err(format!("user_metadata, names and tags take {bytes} bytes, at most {most} are kept"))
}

/// The second, since 1970, in which a checkpoint of this age is over.
pub(super) fn expiry(server: &Server, ttl_seconds: u64) -> u64 {
    let now = (server.options().wall_clock)().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    now.as_secs().saturating_add(ttl_seconds)
}

/// The address of a checkpoint from its run and its id, `weights/<name>`.
pub(super) fn place_of(run: &str, checkpoint: &str) -> Result<Place, Refusal> {
    let place = format!("tinker://{run}/{checkpoint}").parse();
    Ok(place.map_err(BackendError::from)?)
}

/// How the kind of a checkpoint is named in lists.
pub(super) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Training => "training",
        Kind::Sampler => "sampler",
    }
}
