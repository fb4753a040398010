//! Passes as the two kinds of server read them.

use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use minds_tinker::convert::{CheckedPass, pass_from_json, pass_from_proto};
use minds_tinker::types::{ForwardRequest, PROTOBUF, WireForwardBackwardRequest, proto};
use prost::Message as _;

pub struct ReadPass {
    pub model_id: String,
    pub seq_id: i64,
    pub pass: Result<CheckedPass, String>,
    pub forward_only: bool,
}

/// Reads the one form that the server knows.
pub fn read(
    protobuf: bool,
    forward: bool,
    headers: &HeaderMap,
    mut body: Bytes,
) -> Result<ReadPass, StatusCode> {
    if headers.get("content-encoding").is_some_and(|encoding| encoding == "zstd") {
        body = zstd::decode_all(&body[..]).map_err(|_| StatusCode::BAD_REQUEST)?.into();
    }
    let is_protobuf = headers.get("content-type").is_some_and(|kind| kind == PROTOBUF);
    if protobuf != is_protobuf {
        return Err(StatusCode::UNPROCESSABLE_ENTITY);
    }
    let unreadable = StatusCode::UNPROCESSABLE_ENTITY;
    if protobuf {
        let request = proto::ProtoForwardBackwardRequest::decode(body).map_err(|_| unreadable)?;
        return Ok(ReadPass {
            pass: pass_from_proto(&request).map_err(|e| e.to_string()),
            model_id: request.model_id,
            seq_id: request.seq_id.into(),
            forward_only: request.forward_only,
        });
    }
    let (model_id, seq_id, input) = if forward {
        let request: ForwardRequest = serde_json::from_slice(&body).map_err(|_| unreadable)?;
        (request.model_id, request.seq_id, request.forward_input)
    } else {
        let request: WireForwardBackwardRequest = serde_json::from_slice(&body).map_err(|_| unreadable)?;
        (request.model_id, request.seq_id, request.forward_backward_input)
    };
    let pass = pass_from_json(&input).map_err(|e| e.to_string());
    Ok(ReadPass { model_id, seq_id: seq_id.unwrap(), pass, forward_only: forward })
}
