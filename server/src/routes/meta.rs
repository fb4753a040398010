//! Health, configuration, capabilities and telemetry.

use super::{RouteResult, Server};
use crate::api_error::ApiError;
use crate::body::SmallBody;
use crate::outcome::json;
use axum::extract::State;
use axum::response::Response;
use minds_tinker::types::{
    ClientConfig, ClientConfigRequest, DynamicConfig, Health, ServerCapabilities, SupportedModel,
    TelemetryResponse,
};

pub(crate) async fn health() -> Response {
    json(&Health::Ok)
}

pub(super) async fn config(State(server): Server, SmallBody(body): SmallBody) -> RouteResult {
    body.json::<ClientConfigRequest>()?;
    let sample_max_concurrent_requests = server.options().max_sample_requests;
    Ok(json(&ClientConfig { sample_max_concurrent_requests, ..ClientConfig::default() }))
}

pub(super) async fn dynamic_config(SmallBody(body): SmallBody) -> RouteResult {
    body.json::<ClientConfigRequest>()?;
    Ok(json(&DynamicConfig { sample_cancel_enabled: true, ..DynamicConfig::default() }))
}

/// Old clients report no error until their telemetry is accepted, so it always is. It may hold keys: it is discarded.
pub(super) async fn telemetry(body: Result<SmallBody, ApiError>) -> Response {
    drop(body);
    json(&TelemetryResponse::Accepted)
}

pub(super) async fn capabilities(State(server): Server) -> Response {
    let info = &server.info;
    let model = SupportedModel {
        model_name: Some(info.base_model.clone()),
        max_context_length: Some(info.context),
        trainable: Some(true),
        sampleable: Some(true),
        vocab_size: Some(info.vocab),
    };
    json(&ServerCapabilities { supported_models: vec![model] })
}
