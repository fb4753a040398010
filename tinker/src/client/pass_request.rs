//! Encodes one pass in the wire format of the server.

use super::chunks;
use super::connection::{Connection, encode};
use super::error::ClientError;
use super::transport::HttpRequest;
use super::wire_format::WireFormat;
use crate::convert::{pass_to_json, pass_to_proto};
use crate::types::{ClientConfig, ForwardRequest, PROTOBUF, WireForwardBackwardRequest};
use minds_core::datum::Datum;
use minds_core::loss::Loss;
use prost::Message as _;
use std::ops::Range;
use std::sync::Arc;

/// Data and loss of a pass, not yet encoded. Cheap to clone.
#[derive(Clone)]
pub(super) struct PassRequest {
    pub(super) data: Arc<[Datum]>,
    pub(super) loss: Loss,
    pub(super) forward_only: bool,
}

impl PassRequest {
    pub(super) fn chunk_ranges(&self, config: &ClientConfig) -> Vec<Range<usize>> {
        chunks::split(&self.data, config)
    }

    /// Encodes one chunk as a request.
    pub(super) fn call(
        &self,
        connection: &Connection,
        model_id: &str,
        chunk: Range<usize>,
        seq_id: i32,
        wire: WireFormat,
    ) -> Result<HttpRequest, ClientError> {
        let data = &self.data[chunk];
        let timeout = connection.timeouts.request;
        match wire {
            WireFormat::Protobuf => {
                let request = pass_to_proto(model_id.into(), seq_id, data, self.loss, self.forward_only);
                let mut body = request.encode_to_vec();
                let zstd = connection.config.proto_compress_fwdbwd;
                if zstd {
                    body = zstd::encode_all(&body[..], 0).map_err(|e| ClientError::Failed {
                        what: "the compression of a pass".into(),
                        detail: e.to_string(),
                    })?;
                }
                let call = HttpRequest::post("forward_backward", body.into(), timeout);
                Ok(HttpRequest { content_type: PROTOBUF, zstd, ..call })
            }
            WireFormat::Json if self.loss.needs_provenance() => Err(ClientError::Unsupported {
                what: format!("the loss {}", self.loss.name()),
                detail: "it needs provenance, which a server of this age does not read".into(),
            }),
            WireFormat::Json => {
                let input = pass_to_json(data, self.loss);
                let seq_id = Some(i64::from(seq_id));
                let model_id = model_id.to_owned();
                Ok(if self.forward_only {
                    let request = ForwardRequest { forward_input: input, model_id, seq_id };
                    HttpRequest::post("forward", encode(&request), timeout)
                } else {
                    let request =
                        WireForwardBackwardRequest { forward_backward_input: input, model_id, seq_id };
                    HttpRequest::post("forward_backward", encode(&request), timeout)
                })
            }
        }
    }
}
