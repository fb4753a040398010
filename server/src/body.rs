//! Request bodies: bounded, decompressed, and in a declared format.

use crate::api_error::ApiError;
use crate::body_budget::BodyPermit;
use crate::ids::printable;
use crate::outcome::BodyFormat;
use crate::state::ServerState;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use minds_tinker::types::{JSON, PROTOBUF};
use prost::Message;
use serde::de::DeserializeOwned;
use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// A body over the limit is read to its end, up to this multiple of the limit, before it is refused: a client does not
/// read the response while it is still sending.
const DRAIN_FACTOR: usize = 8;

/// A whole body and its format. It may hold the data of a pass: parse it with [`parse_blocking`].
pub(crate) struct RequestBody {
    pub(crate) format: BodyFormat,
    pub(crate) bytes: Bytes,
    /// Memory permit, held until the body is parsed.
    _permit: BodyPermit,
}

/// The body of a request that carries no data. Its limit is small because parsed JSON may take many times the memory of
/// its text.
pub(crate) struct SmallBody(pub(crate) RequestBody);

impl FromRequest<Arc<ServerState>> for RequestBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, server: &Arc<ServerState>) -> Result<Self, ApiError> {
        receive_body(request, server, server.options().max_body_bytes).await
    }
}

impl FromRequest<Arc<ServerState>> for SmallBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, server: &Arc<ServerState>) -> Result<Self, ApiError> {
        let options = server.options();
        receive_body(request, server, options.small_body_bytes.min(options.max_body_bytes)).await.map(Self)
    }
}

async fn receive_body(
    request: Request,
    server: &Arc<ServerState>,
    limit: usize,
) -> Result<RequestBody, ApiError> {
    let (parts, body) = request.into_parts();
    let format = body_format(&parts.headers).map_err(ApiError::closing_connection)?;
    let compressed = match header_text(&parts.headers, header::CONTENT_ENCODING) {
        None | Some("identity") => false,
        Some("zstd") => true,
        Some(other) => {
            return Err(ApiError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                format!("bodies compressed with `{}` are not read, zstd is", printable(other)),
            )
            .closing_connection());
        }
    };
    let options = server.options();
    let mut permit = server.body_budget.begin();
    let late = |_| {
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time").closing_connection()
    };
    let sent = read(body, limit, options.body_pause, &mut permit);
    let sent = timeout(options.body_timeout, sent).await.map_err(late)??;
    let bytes = if compressed {
        timeout(options.body_timeout, permit.grow(sent.len() + limit)).await.map_err(late)?;
        let unpacked = tokio::task::spawn_blocking(move || decompress(&sent, limit));
        unpacked.await.map_err(|_| {
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error while decompressing the body")
        })??
    } else {
        sent
    };
    Ok(RequestBody { format, bytes, _permit: permit })
}

impl RequestBody {
    /// Parses a body for which JSON is the only format. An empty one is read as `{}`.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        if self.format != BodyFormat::Json {
            return Err(ApiError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "this is read as application/json only",
            ));
        }
        parse(&self.bytes)
    }

    /// Parses the body as a protobuf message.
    pub(crate) fn protobuf<T: Message + Default>(&self) -> Result<T, ApiError> {
        T::decode(self.bytes.clone())
            .map_err(|e| ApiError::bad_request(format!("the protobuf body cannot be read: {e}")))
    }
}

/// Parses a body on a blocking thread, because megabytes of it would delay other requests.
pub(crate) async fn parse_blocking<T: Send + 'static>(
    payload: RequestBody,
    read: impl FnOnce(&RequestBody) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(move || read(&payload)).await.map_err(|_| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error while reading the body")
    })?
}

/// Parameters in the path of a request.
pub(crate) struct PathParams<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<ServerState>> for PathParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<ServerState>) -> Result<Self, ApiError> {
        match Path::from_request_parts(parts, server).await {
            Ok(Path(named)) => Ok(Self(named)),
            Err(error) => Err(ApiError::new(error.status(), error.body_text()).closing_connection()),
        }
    }
}

/// Parses a JSON body; an empty one is read as `{}`.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes).map_err(|e| {
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, format!("the JSON body cannot be read: {e}"))
    })
}

/// Only these two: browsers send some other media types to foreign servers without a preflight request.
fn body_format(headers: &HeaderMap) -> Result<BodyFormat, ApiError> {
    let given = header_text(headers, header::CONTENT_TYPE).unwrap_or_default();
    match given.split(';').next().unwrap_or_default().trim() {
        JSON => Ok(BodyFormat::Json),
        PROTOBUF => Ok(BodyFormat::Protobuf),
        other => Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!("the content type is `{}`, use {JSON} or {PROTOBUF}", printable(other)),
        )),
    }
}

/// Result format that the `Accept` header asks for.
pub(crate) fn accepted_format(headers: &HeaderMap) -> BodyFormat {
    let accept = header_text(headers, header::ACCEPT).unwrap_or_default();
    if accept.contains(PROTOBUF) { BodyFormat::Protobuf } else { BodyFormat::Json }
}

fn header_text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

async fn read(
    mut body: Body,
    limit: usize,
    pause: Duration,
    permit: &mut BodyPermit,
) -> Result<Bytes, ApiError> {
    let mut all = BytesMut::new();
    let mut len = 0usize;
    loop {
        let Ok(frame) = timeout(pause, body.frame()).await else {
            let why = format!("nothing of the body arrived for {} s", pause.as_secs_f32());
            return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, why).closing_connection());
        };
        let Some(frame) = frame else { break };
        let frame = frame
            .map_err(|e| ApiError::bad_request(format!("the body broke off: {e}")).closing_connection())?;
        let Ok(data) = frame.into_data() else { continue };
        len = len.saturating_add(data.len());
        if len <= limit {
            permit.grow(len).await;
            all.extend_from_slice(&data);
        } else {
            all = BytesMut::new();
            if len > limit.saturating_mul(DRAIN_FACTOR) {
                return Err(too_large(limit).closing_connection());
            }
        }
    }
    if len > limit { Err(too_large(limit)) } else { Ok(all.freeze()) }
}

fn decompress(sent: &Bytes, limit: usize) -> Result<Bytes, ApiError> {
    let broken =
        |e: &dyn std::fmt::Display| ApiError::bad_request(format!("the zstd body cannot be read: {e}"));
    let decoder = zstd::Decoder::with_buffer(&sent[..]).map_err(|e| broken(&e))?;
    let mut all = Vec::new();
    decoder.take(limit as u64 + 1).read_to_end(&mut all).map_err(|e| broken(&e))?;
    if all.len() > limit { Err(too_large(limit)) } else { Ok(all.into()) }
}

fn too_large(limit: usize) -> ApiError {
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body has more than {limit} bytes"))
}
