//! One pass on its way out, in the form that the server reads.

use super::chunks;
use super::connection::{Connection, encode};
use super::error::ClientError;
use super::http::Call;
use super::wire::Wire;
use crate::convert::{pass_to_json, pass_to_proto};
use crate::types::{ClientConfig, ForwardBackwardRequest, ForwardRequest, PROTOBUF};
use minds_core::datum::Datum;
use minds_core::loss::Loss;
use prost::Message as _;
use std::ops::Range;
use std::sync::Arc;

/// Data and loss, not yet written.
pub(super) struct PassJob {
    pub(super) data: Arc<[Datum]>,
    pub(super) loss: Loss,
    pub(super) forward_only: bool,
}

impl PassJob {
    pub(super) fn parts(&self, config: &ClientConfig) -> Vec<Range<usize>> {
        chunks::split(&self.data, config)
    }

    /// Writes one part.
    pub(super) fn call(
        &self,
        connection: &Connection,
        model_id: &str,
        part: Range<usize>,
        seq_id: i32,
        wire: Wire,
    ) -> Result<Call, ClientError> {
        let data = &self.data[part];
        let timeout = connection.patience.request;
        match wire {
            Wire::Protobuf => {
                let request = pass_to_proto(model_id.into(), seq_id, data, self.loss, self.forward_only);
                let mut body = request.encode_to_vec();
                let zstd = connection.config.proto_compress_fwdbwd;
                if zstd {
                    body = zstd::encode_all(&body[..], 0).map_err(|e| ClientError::Failed {
                        what: "the compression of a pass".into(),
                        detail: e.to_string(),
                    })?;
                }
                let call = Call::post("forward_backward", body.into(), timeout);
                Ok(Call { content_type: PROTOBUF, zstd, ..call })
            }
            Wire::Json => {
                let (input, seq_id) = (pass_to_json(data, self.loss), Some(i64::from(seq_id)));
                let model_id = model_id.to_owned();
                Ok(if self.forward_only {
                    let request = ForwardRequest { forward_input: input, model_id, seq_id };
                    Call::post("forward", encode(&request), timeout)
                } else {
                    let request = ForwardBackwardRequest { forward_backward_input: input, model_id, seq_id };
                    Call::post("forward_backward", encode(&request), timeout)
                })
            }
        }
    }
}
