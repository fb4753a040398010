//! Bodies of requests: bounded, decompressed, and in a form that is said.

use super::ids::shown;
use super::outcome::Form;
use super::refusal::Refusal;
use super::state::Server;
use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use minds_tinker::types::{JSON, PROTOBUF};
use prost::Message;
use serde::de::DeserializeOwned;
use std::io::Read as _;
use std::sync::Arc;
use tokio::time::timeout;

/// A body of more than the limit is read to its end, up to this many times the limit, before it is refused: clients
/// that are still sending do not hear an answer.
const READ_ON: usize = 8;

/// A whole body, and its form.
pub(super) struct Payload {
    pub(super) form: Form,
    pub(super) bytes: Bytes,
}

impl FromRequest<Arc<Server>> for Payload {
    type Rejection = Refusal;

    async fn from_request(request: Request, server: &Arc<Server>) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        let form = form(&parts.headers)?;
        let options = server.options();
        let declared = header_text(&parts.headers, header::CONTENT_LENGTH).and_then(|len| len.parse().ok());
        let room = server.reading_room(declared.unwrap_or(options.max_body_bytes)).await;
        let sent = read(body, options.max_body_bytes);
        let sent = timeout(options.body_timeout, sent)
            .await
            .map_err(|_| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"))??;
        drop(room);
        let bytes = match header_text(&parts.headers, header::CONTENT_ENCODING) {
            None | Some("identity") => sent,
            Some("zstd") => decompress(&sent, options.max_body_bytes)?,
            Some(other) => {
                return Err(Refusal::new(
                    StatusCode::UNSUPPORTED_MEDIA_TYPE,
                    format!("bodies compressed with `{}` are not read, zstd is", shown(other)),
                ));
            }
        };
        Ok(Self { form, bytes })
    }
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

/// Reads JSON.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
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

async fn read(mut body: Body, limit: usize) -> Result<Bytes, Refusal> {
    let mut all = BytesMut::new();
    let mut len = 0usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| Refusal::bad(format!("the body broke off: {e}")))?;
        let Ok(data) = frame.into_data() else { continue };
        len = len.saturating_add(data.len());
        if len <= limit {
            all.extend_from_slice(&data);
        } else {
            all = BytesMut::new();
            if len > limit.saturating_mul(READ_ON) {
                break;
            }
        }
    }
    if len > limit { Err(too_large(limit)) } else { Ok(all.freeze()) }
}

fn decompress(sent: &Bytes, limit: usize) -> Result<Bytes, Refusal> {
    let broken = |e: &dyn std::fmt::Display| Refusal::bad(format!("the zstd body cannot be read: {e}"));
    let decoder = ruzstd::decoding::StreamingDecoder::new(&sent[..]).map_err(|e| broken(&e))?;
    let mut all = Vec::new();
    decoder.take(limit as u64 + 1).read_to_end(&mut all).map_err(|e| broken(&e))?;
    if all.len() > limit { Err(too_large(limit)) } else { Ok(all.into()) }
}

fn too_large(limit: usize) -> Refusal {
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body has more than {limit} bytes"))
}
