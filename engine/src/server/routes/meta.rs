//! Health, configuration, capabilities and telemetry.

use super::RouteResult;
use crate::server::api_error::ApiError;
use crate::server::body::SmallBody;
use crate::server::outcome::json;
use crate::server::state::ServerState;
use axum::extract::State;
use axum::response::Response;
use minds_tinker::types::{
    ClientConfig, ClientConfigRequest, DynamicConfig, Health, ServerCapabilities, SupportedModel,
    TelemetryResponse,
};
use std::sync::Arc;

pub(in crate::server) async fn health() -> Response {
    json(&Health::Ok)
}

pub(super) async fn config(SmallBody(body): SmallBody) -> RouteResult {
    body.json::<ClientConfigRequest>()?;
    Ok(json(&ClientConfig::default()))
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

pub(super) async fn capabilities(State(server): State<Arc<ServerState>>) -> Response {
    let arch = server.service.architecture();
    let model = SupportedModel {
        model_name: Some(server.service.base_name().into()),
        max_context_length: Some(arch.context),
        trainable: Some(true),
        sampleable: Some(true),
        vocab_size: Some(arch.vocab),
    };
    json(&ServerCapabilities { supported_models: vec![model] })
}
