//! Samplers and sample requests.

use super::models::check_base;
use super::rest::missing;
use super::{RouteResult, Server};
use crate::api_error::ApiError;
use crate::body::{PathParams, RequestBody, SmallBody, parse_blocking};
use crate::ids::printable;
use crate::options::ServerOptions;
use crate::outcome::{RequestOutcome, json};
use crate::samplers::SamplerSource;
use crate::state::ServerState;
use axum::extract::State;
use minds_core::checkpoint::CheckpointAddress;
use minds_core::sampling::{SampleRequest, SampleResponse};
use minds_core::service::BackendError;
use minds_tinker::convert::sample_request_from_wire;
use minds_tinker::types::{
    self, CreateSamplingSessionRequest, CreateSamplingSessionResponse, FutureHandle, WireSampler,
};
use std::sync::Arc;

/// Maximum number of most likely tokens per position that a request may ask for.
const MOST_LIKELY: usize = 256;

/// Only registers the sampler; its weights are loaded on the first sample request.
pub(super) async fn create(State(server): Server, SmallBody(body): SmallBody) -> RouteResult {
    let request: CreateSamplingSessionRequest = body.json()?;
    let source = match (&request.model_path, &request.base_model) {
        (Some(path), _) => saved(&server, path).await?,
        (None, Some(name)) => check_base(&server, name).map(|()| SamplerSource::Base)?,
        (None, None) => return Err(ApiError::bad_request("there is neither a base_model nor a model_path")),
    };
    let id = sampler_id(&request.session_id, request.sampling_session_seq_id);
    server.sessions.with(&request.session_id, |session| {
        server.samplers.add(&id, &request.session_id, source)?;
        session.samplers.insert(request.sampling_session_seq_id, id.clone());
        Ok(())
    })?;
    Ok(json(&CreateSamplingSessionResponse { sampling_session_id: id, ..Default::default() }))
}

/// Id of a sampler from its session and number.
pub(super) fn sampler_id(session: &str, number: u64) -> String {
    format!("{session}:sample:{number}")
}

/// Source for a saved checkpoint; an error if it does not exist.
async fn saved(server: &Arc<ServerState>, path: &str) -> Result<SamplerSource, ApiError> {
    let address: CheckpointAddress = path.parse().map_err(BackendError::from)?;
    match server.service.has_checkpoint(&address).await? {
        true => Ok(SamplerSource::Saved(path.into())),
        false => Err(missing(&address)),
    }
}

pub(super) async fn info(State(server): Server, PathParams(id): PathParams<String>) -> RouteResult {
    let source = server.samplers.source(&id).ok_or_else(|| unknown(&id))?;
    let model_path = match source {
        SamplerSource::Saved(path) => Some(path),
        SamplerSource::Base | SamplerSource::Exported | SamplerSource::InFlight(_) => None,
    };
    Ok(json(&WireSampler { sampler_id: id, base_model: server.info.base_model.clone(), model_path }))
}

pub(super) async fn sample(State(server): Server, body: RequestBody) -> RouteResult {
    let bytes = body.bytes.len();
    let request: types::WireSampleRequest = parse_blocking(body, RequestBody::json).await?;
    let mut owner = String::new();
    let source = match (&request.sampling_session_id, &request.model_path, &request.base_model) {
        (Some(id), ..) => {
            let source = server.samplers.source(id).ok_or_else(|| unknown(id))?;
            if let Some(session) = server.samplers.session(id) {
                server.sessions.touch(&session);
                owner = session;
            }
            source
        }
        (None, Some(path), _) => saved(&server, path).await?,
        (None, None, Some(name)) => check_base(&server, name).map(|()| SamplerSource::Base)?,
        (None, None, None) => return Err(ApiError::bad_request("sampling_session_id is missing")),
    };
    let checked = sample_request_from_wire(&request, server.info.context);
    let checked = checked.map_err(BackendError::from)?;
    check(&checked, server.info.context, server.options())?;
    let samples = checked.num_samples;

    let sampler = request.sampling_session_id.clone().unwrap_or_default();
    let begin = || {
        let promise = server.futures.promise(&owner, bytes)?;
        let id = promise.id();
        let server = server.clone();
        let sampler = sampler.clone();
        promise.fulfill_with(async move {
            match draw(&server, &sampler, source, checked).await {
                Ok(response) => RequestOutcome::Sample(response),
                Err(error) => RequestOutcome::failed(&error),
            }
        });
        Ok(id)
    };
    let request_id = match request.seq_id {
        Some(number) => server.samplers.once(&sampler, number, begin)?,
        None => begin()?,
    };
    let sample_sequence_ids = Some((0..samples).map(|i| format!("{request_id}/{i}")).collect());
    Ok(json(&FutureHandle { request_id, model_id: None, sample_sequence_ids }))
}

fn check(request: &SampleRequest, context: usize, options: &ServerOptions) -> Result<(), ApiError> {
    let most = options.max_samples;
    if request.num_samples > most {
        return Err(ApiError::bad_request(format!(
            "num_samples is {}, at most {most} are possible",
            request.num_samples
        )));
    }
    let likely = request.topk_prompt_logprobs.max(request.topk_sample_logprobs);
    if likely > MOST_LIKELY {
        return Err(ApiError::bad_request(format!(
            "{likely} likely tokens are asked for, at most {MOST_LIKELY} are possible"
        )));
    }
    let bytes = result_bytes(request, context);
    if bytes > options.sample_bytes {
        return Err(ApiError::bad_request(format!(
            "the result could come to {bytes} bytes, at most {} are possible: ask for fewer samples, tokens or \
             likely tokens in one request",
            options.sample_bytes
        )));
    }
    Ok(())
}

/// Upper bound on the memory of the result, in bytes.
fn result_bytes(request: &SampleRequest, context: usize) -> usize {
    const PAIR: usize = size_of::<(u32, f32)>();
    // A token with its logprob, and a list of the most likely tokens.
    let position = |k: usize| PAIR + if k > 0 { size_of::<Vec<(u32, f32)>>() + k * PAIR } else { 0 };
    let prompt = request.prompt.len();
    let sampled = request.params.max_tokens.min(context.saturating_sub(prompt));
    let samples = request.num_samples.saturating_mul(sampled);
    let samples = samples.saturating_mul(position(request.topk_sample_logprobs));
    let targets = request.target_prompt_logprobs.as_ref().map_or(0, |targets| targets.tokens.len());
    samples
        .saturating_add(prompt.saturating_mul(position(request.topk_prompt_logprobs)))
        .saturating_add(targets.saturating_mul(size_of::<f32>()))
}

async fn draw(
    server: &ServerState,
    sampler: &str,
    source: SamplerSource,
    request: SampleRequest,
) -> Result<SampleResponse, BackendError> {
    let weights = match source {
        SamplerSource::Base => server.base_sampler().await?,
        SamplerSource::Saved(path) => {
            server.samplers.saved(&path, || server.service.sampler_from(&path)).await?
        }
        SamplerSource::Exported => server.samplers.exported(sampler).ok_or_else(|| evicted(sampler))?,
        SamplerSource::InFlight(model) => server.samplers.exported(&model).ok_or_else(|| evicted(sampler))?,
    };
    weights.sample(request).await
}

fn evicted(sampler: &str) -> BackendError {
    BackendError::Rejected(format!(
        "the weights of `{sampler}` had to give way to newer ones: save weights under a name to keep them"
    ))
}

fn unknown(id: &str) -> ApiError {
    ApiError::not_found(format!(
        "there is no sampler `{}`: its session has ended, or the server was restarted",
        printable(id)
    ))
}
