//! Bodies of requests: bounded, decompressed, and in a form that is said.

use super::ids::shown;
use super::outcome::Form;
use super::reading::Room;
use super::refusal::Refusal;
use super::state::Server;
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

/// A body of more than the limit is read to its end, up to this many times the limit, before it is refused: clients
/// that are still sending do not hear an answer.
const READ_ON: usize = 8;

/// A whole body, and its form. It may be as large as data of a pass are; read it where that holds up nobody.
pub(super) struct Payload {
    pub(super) form: Form,
    pub(super) bytes: Bytes,
    /// Held until the body has been read into something else.
    _room: Room,
}

/// A body of a request that has no data in it. Its text may become many times as large as it is when it is read, so
/// the limit is a small one.
pub(super) struct Small(pub(super) Payload);

impl FromRequest<Arc<Server>> for Payload {
    type Rejection = Refusal;

    async fn from_request(request: Request, server: &Arc<Server>) -> Result<Self, Refusal> {
        take(request, server, server.options().max_body_bytes).await
    }
}

impl FromRequest<Arc<Server>> for Small {
    type Rejection = Refusal;

    async fn from_request(request: Request, server: &Arc<Server>) -> Result<Self, Refusal> {
        let options = server.options();
        take(request, server, options.small_body_bytes.min(options.max_body_bytes)).await.map(Self)
    }
}

async fn take(request: Request, server: &Arc<Server>, limit: usize) -> Result<Payload, Refusal> {
    let (parts, body) = request.into_parts();
    let form = form(&parts.headers).map_err(Refusal::unread)?;
    let compressed = match header_text(&parts.headers, header::CONTENT_ENCODING) {
        None | Some("identity") => false,
        Some("zstd") => true,
        Some(other) => {
            return Err(Refusal::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                format!("bodies compressed with `{}` are not read, zstd is", shown(other)),
            )
            .unread());
        }
    };
    let options = server.options();
    let mut room = server.reading.begin();
    let late = |_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time").unread();
    let sent = read(body, limit, options.body_pause, &mut room);
    let sent = timeout(options.body_timeout, sent).await.map_err(late)??;
    let bytes = if compressed {
        timeout(options.body_timeout, room.grow(sent.len() + limit)).await.map_err(late)?;
        let unpacked = tokio::task::spawn_blocking(move || decompress(&sent, limit));
        unpacked.await.map_err(|_| {
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the server met a bug while it unpacked the body")
        })??
    } else {
        sent
    };
    Ok(Payload { form, bytes, _room: room })
}

impl Payload {
    /// Reads a body that has only a JSON form. An empty one is `{}`.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        if self.form != Form::Json {
            return Err(Refusal::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "this is read as application/json only",
            ));
        }
        parse(&self.bytes)
    }

    /// Reads a protobuf body.
    pub(super) fn protobuf<T: Message + Default>(&self) -> Result<T, Refusal> {
        T::decode(self.bytes.clone())
            .map_err(|e| Refusal::bad(format!("the protobuf body cannot be read: {e}")))
    }
}

/// Reads a body away from the threads that answer: megabytes would hold up other requests.
pub(super) async fn aside<T: Send + 'static>(
    payload: Payload,
    read: impl FnOnce(&Payload) -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(move || read(&payload)).await.map_err(|_| {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the server met a bug while it read the body")
    })?
}

/// What an address names.
pub(super) struct Named<T>(pub(super) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<Server>> for Named<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, Refusal> {
        match Path::from_request_parts(parts, server).await {
            Ok(Path(named)) => Ok(Self(named)),
            Err(error) => Err(Refusal::new(error.status(), error.body_text()).unread()),
        }
    }
}

/// Reads JSON.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes).map_err(|e| {
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, format!("the JSON body cannot be read: {e}"))
    })
}

/// A browser sends other media types to foreign servers without asking them first, so those are not read.
fn form(headers: &HeaderMap) -> Result<Form, Refusal> {
    let given = header_text(headers, header::CONTENT_TYPE).unwrap_or_default();
    match given.split(';').next().unwrap_or_default().trim() {
        JSON => Ok(Form::Json),
        PROTOBUF => Ok(Form::Protobuf),
        other => Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            format!("the content type is `{}`, use {JSON} or {PROTOBUF}", shown(other)),
        )),
    }
}

/// The form in which results are wanted.
pub(super) fn wanted(headers: &HeaderMap) -> Form {
    let accept = header_text(headers, header::ACCEPT).unwrap_or_default();
    if accept.contains(PROTOBUF) { Form::Protobuf } else { Form::Json }
}

fn header_text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

async fn read(mut body: Body, limit: usize, pause: Duration, room: &mut Room) -> Result<Bytes, Refusal> {
    let mut all = BytesMut::new();
    let mut len = 0usize;
    loop {
        let Ok(frame) = timeout(pause, body.frame()).await else {
            let why = format!("nothing of the body arrived for {} s", pause.as_secs_f32());
            return Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, why).unread());
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|e| Refusal::bad(format!("the body broke off: {e}")).unread())?;
        let Ok(data) = frame.into_data() else { continue };
        len = len.saturating_add(data.len());
        if len <= limit {
            room.grow(len).await;
            all.extend_from_slice(&data);
        } else {
            all = BytesMut::new();
            if len > limit.saturating_mul(READ_ON) {
                return Err(too_large(limit).unread());
            }
        }
    }
    if len > limit { Err(too_large(limit)) } else { Ok(all.freeze()) }
}

fn decompress(sent: &Bytes, limit: usize) -> Result<Bytes, Refusal> {
    let broken = |e: &dyn std::fmt::Display| Refusal::bad(format!("the zstd body cannot be read: {e}"));
    let decoder = zstd::Decoder::with_buffer(&sent[..]).map_err(|e| broken(&e))?;
    let mut all = Vec::new();
    decoder.take(limit as u64 + 1).read_to_end(&mut all).map_err(|e| broken(&e))?;
    if all.len() > limit { Err(too_large(limit)) } else { Ok(all.into()) }
}

fn too_large(limit: usize) -> Refusal {
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body has more than {limit} bytes"))
}
