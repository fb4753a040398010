//! Results of passes.

use super::ConvertError;
use super::tensors::TensorRow;
use crate::types::proto::{self, ProtoDType};
use crate::types::{self, TensorData, numbers};
use minds_core::datum::Datum;
use minds_core::loss::Loss;
use minds_core::service::ForwardOutput;
use std::collections::BTreeMap;

/// The tensor that carries logprobs.
const LOGPROBS: &str = "logprobs";

/// What SDKs call results made of named tensors.
const OUTPUT_TYPE: &str = "ArrayRecord";

/// A result in protobuf: one record over all data.
#[must_use]
pub fn forward_to_proto(forward: &ForwardOutput) -> proto::ProtoForwardBackwardOutput {
    let mut end = 0;
    let ends = forward.logprobs.iter().map(|row| {
        end += size_of_val(row.as_slice()) as i64;
        end
    });
    let offsets = numbers::collect(std::iter::once(0).chain(ends));
    let data = numbers::share::<f32, _>(forward.logprobs.concat());
    let logprobs =
        proto::BatchedTensor { data, offsets, dtype: ProtoDType::Float32.into(), trailing_shape: vec![] };
    let record = proto::ArrayRecord {
        type_tag: String::new(),
        fields: BTreeMap::from([(LOGPROBS.to_owned(), logprobs)]),
        num_datums: forward.logprobs.len() as i64,
    };
    proto::ProtoForwardBackwardOutput {
        loss_fn_output_type: OUTPUT_TYPE.into(),
        loss_fn_outputs: vec![record],
        metrics: forward.metrics.clone(),
    }
}

/// A result in JSON. A logprob that is not a number becomes `null`.
#[must_use]
pub fn forward_to_json(forward: &ForwardOutput) -> types::WireForwardBackwardOutput {
    let record = |row: &Vec<f32>| BTreeMap::from([(LOGPROBS.to_owned(), TensorData::float32(row.clone()))]);
    types::WireForwardBackwardOutput {
        loss_fn_output_type: OUTPUT_TYPE.into(),
        loss_fn_outputs: forward.logprobs.iter().map(record).collect(),
        metrics: forward.metrics.clone(),
    }
}

/// Reads a result. The metric `loss:sum` may be missing: callers then compute it with [`loss_sum`].
///
/// # Errors
/// Records that contradict themselves, or have no logprobs.
pub fn forward_from_proto(output: &proto::ProtoForwardBackwardOutput) -> Result<ForwardOutput, ConvertError> {
    let mut logprobs = Vec::new();
    for record in &output.loss_fn_outputs {
        let Some(tensor) = record.fields.get(LOGPROBS) else {
            if record.num_datums == 0 {
                continue;
            }
            return Err(no_logprobs());
        };
        let offsets = numbers::read::<i64>(&tensor.offsets)?;
        for pair in offsets.windows(2) {
            let range = usize::try_from(pair[0]).ok().zip(usize::try_from(pair[1]).ok());
            let bytes = range.and_then(|(from, to)| tensor.data.get(from..to)).ok_or_else(|| {
                ConvertError::Invalid(format!(
                    "the logprobs of a datum lie at bytes {}..{} of {}",
                    pair[0],
                    pair[1],
                    tensor.data.len()
                ))
            })?;
            logprobs.push(TensorRow::of_bytes(bytes, tensor.dtype)?.floats());
        }
    }
    Ok(ForwardOutput { logprobs, metrics: output.metrics.clone() })
}

/// Reads a result. The metric `loss:sum` may be missing: callers then compute it with [`loss_sum`].
///
/// # Errors
/// An output without logprobs.
pub fn forward_from_json(output: &types::WireForwardBackwardOutput) -> Result<ForwardOutput, ConvertError> {
    let read = |record: &BTreeMap<String, TensorData>| {
        let tensor = record.get(LOGPROBS).ok_or_else(no_logprobs)?;
        Ok(TensorRow::of_json(tensor)?.floats())
    };
    let logprobs = output.loss_fn_outputs.iter().map(read).collect::<Result<_, ConvertError>>()?;
    Ok(ForwardOutput { logprobs, metrics: output.metrics.clone() })
}

/// The summed loss by its definition, for servers that do not report it. Positions without a logprob count nothing.
/// `None` if the formula of the loss is not public.
#[must_use]
pub fn loss_sum(data: &[Datum], logprobs: &[Vec<f32>], loss: Loss) -> Option<f64> {
    data.iter().zip(logprobs).map(|(datum, logprobs)| loss.of_datum(datum, logprobs)).sum()
}

fn no_logprobs() -> ConvertError {
    ConvertError::invalid("the result has no logprobs")
}
