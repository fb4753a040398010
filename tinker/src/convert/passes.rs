//! What a pass is made of: data and a loss.

use super::ConvertError;
use super::tensors::{TensorRow, tokens_of_bytes};
use crate::types::proto::{self, Encoding, LossConfig, ProtoDType};
use crate::types::{self, TensorData, numbers};
use minds_core::datum::{Datum, LossInputs, Provenance, ProvenanceSpan, SpanSource};
use minds_core::ids::Token;
use minds_core::loss::Loss;
use std::collections::BTreeMap;

const TARGETS: &str = "target_tokens";
const WEIGHTS: &str = "weights";
const LOGPROBS: &str = "logprobs";
const ADVANTAGES: &str = "advantages";
const RATIO_MASK: &str = "sequence_ratio_mask";

/// A pass whose data and loss are valid.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedPass {
    /// What to learn from; never empty.
    pub data: Vec<Datum>,
    /// Loss of the pass, with its settings.
    pub loss: Loss,
}

/// A datum in protobuf, with the tensors of a loss. Tokens and floats are not copied.
#[must_use]
pub fn datum_to_proto(datum: &Datum, loss: Loss) -> proto::ProtoDatum {
    let tokens = numbers::share::<u32, _>(TokenBuffer(datum.clone()));
    let tensor = |bytes, dtype: ProtoDType| proto::ProtoTensor {
        encoding: Some(Encoding::Dense(bytes)),
        dtype: dtype.into(),
        shape: vec![datum.len() as i64],
    };
    let floats =
        |field| tensor(numbers::share::<f32, _>(TensorBuffer(datum.clone(), field)), ProtoDType::Float32);
    let targets = numbers::collect(datum.targets().iter().map(|t| i64::from(*t)));
    let mut inputs = BTreeMap::from([(TARGETS.to_owned(), tensor(targets, ProtoDType::Int64))]);
    for (name, field) in fields(datum.inputs()) {
        inputs.insert((*name).to_owned(), floats(*field));
    }
    if loss.has_sequence_ratio() {
        let mask = numbers::collect(ratio_mask(datum));
        inputs.insert(RATIO_MASK.to_owned(), tensor(mask, ProtoDType::Float32));
    }
    let spans = |spans: &[ProvenanceSpan]| spans.iter().map(span_to_proto).collect::<Vec<_>>();
    let provenance = datum.provenance().filter(|_| loss.needs_provenance());
    proto::ProtoDatum {
        model_input: vec![proto::ProtoChunk { encoded_text: Some(proto::EncodedTextChunk { tokens }) }],
        loss_fn_inputs: inputs,
        model_input_spans: provenance.map_or_else(Vec::new, |p| spans(&p.input)),
        loss_fn_input_spans: provenance.map_or_else(Vec::new, |p| spans(&p.targets)),
    }
}

/// 1 for each target that the model sampled, 0 for the others.
fn ratio_mask(datum: &Datum) -> impl ExactSizeIterator<Item = f32> + Clone {
    (0..datum.len()).map(|position| if datum.is_sampled(position) { 1.0 } else { 0.0 })
}

fn span_to_proto(span: &ProvenanceSpan) -> proto::ProtoProvenanceSpan {
    let range = proto::ProtoSequenceRange {
        sequence_id: span.sequence_id.to_string(),
        offset: span.offset as i64,
        length: span.length as i64,
    };
    proto::ProtoProvenanceSpan {
        span: Some(match span.source {
            SpanSource::Prompt => proto::ProtoSpan::Prompt(range),
            SpanSource::Sample => proto::ProtoSpan::Sampled(range),
        }),
    }
}

fn span_from_proto(span: &proto::ProtoProvenanceSpan) -> Result<ProvenanceSpan, ConvertError> {
    let (source, range) = match &span.span {
        Some(proto::ProtoSpan::Prompt(range)) => (SpanSource::Prompt, range),
        Some(proto::ProtoSpan::Sampled(range)) => (SpanSource::Sample, range),
        None => return Err(ConvertError::invalid("a span names neither a prompt nor a sample")),
    };
    let count = |name: &str, n: i64| {
        usize::try_from(n).map_err(|_| ConvertError::Invalid(format!("the {name} of a span is {n}")))
    };
    Ok(ProvenanceSpan {
        source,
        sequence_id: range.sequence_id.as_str().into(),
        offset: count("offset", range.offset)?,
        length: count("length", range.length)?,
    })
}

/// A datum in JSON, with the tensors of a loss. This form has no provenance.
#[must_use]
pub fn datum_to_json(datum: &Datum, loss: Loss) -> types::WireDatum {
    let targets = TensorData::int64(datum.targets().iter().map(|t| i64::from(*t)).collect());
    let mut inputs = BTreeMap::from([(TARGETS.to_owned(), targets)]);
    for (name, field) in fields(datum.inputs()) {
        inputs.insert((*name).to_owned(), TensorData::float32(field(datum.inputs()).to_vec()));
    }
    if loss.has_sequence_ratio() {
        inputs.insert(RATIO_MASK.to_owned(), TensorData::float32(ratio_mask(datum).collect()));
    }
    types::WireDatum { model_input: types::ModelInput::text(datum.input().to_vec()), loss_fn_inputs: inputs }
}

/// Reads a datum with the tensors of one loss.
///
/// # Errors
/// Anything but text, tensors that are missing, of another loss, mis-sized or not finite.
pub fn datum_from_proto(datum: &proto::ProtoDatum, loss: Loss) -> Result<Datum, ConvertError> {
    let mut tokens = Vec::new();
    for chunk in &datum.model_input {
        let text = chunk.encoded_text.as_ref().ok_or_else(not_text)?;
        tokens.append(&mut tokens_of_bytes(&text.tokens).map_err(|e| e.at("model_input"))?);
    }
    let mut rows = BTreeMap::new();
    for (name, tensor) in &datum.loss_fn_inputs {
        rows.insert(name.as_str(), TensorRow::of_proto(tensor).map_err(|e| e.at(name))?);
    }
    let read = join(tokens, rows, loss)?;
    if datum.model_input_spans.is_empty() && datum.loss_fn_input_spans.is_empty() {
        return Ok(read);
    }
    let spans = |spans: &[proto::ProtoProvenanceSpan]| {
        spans.iter().map(span_from_proto).collect::<Result<Vec<_>, _>>()
    };
    let provenance =
        Provenance { input: spans(&datum.model_input_spans)?, targets: spans(&datum.loss_fn_input_spans)? };
    read.with_provenance(provenance).map_err(|e| ConvertError::invalid(e.to_string()))
}

/// Reads a datum with the tensors of one loss.
///
/// # Errors
/// As [`datum_from_proto`].
pub fn datum_from_json(datum: &types::WireDatum, loss: Loss) -> Result<Datum, ConvertError> {
    let tokens = text_of(&datum.model_input)?;
    let mut rows = BTreeMap::new();
    for (name, tensor) in &datum.loss_fn_inputs {
        rows.insert(name.as_str(), TensorRow::of_json(tensor).map_err(|e| e.at(name))?);
    }
    join(tokens, rows, loss)
}

/// The tokens of a prompt that is text only.
pub(super) fn text_of(input: &types::ModelInput) -> Result<Vec<Token>, ConvertError> {
    let mut tokens = Vec::new();
    for chunk in &input.chunks {
        match chunk {
            types::WireChunk::EncodedText { tokens: more } => tokens.extend_from_slice(more),
            _ => return Err(not_text()),
        }
    }
    Ok(tokens)
}

/// A pass in protobuf.
#[must_use]
pub fn pass_to_proto(
    model_id: String,
    seq_id: i32,
    data: &[Datum],
    loss: Loss,
    forward_only: bool,
) -> proto::ProtoForwardBackwardRequest {
    let loss = loss.in_tinker_api();
    let config = loss.settings();
    let number = |v: &f64| proto::LossConfigValue { value: Some(LossConfig::Number(*v)) };
    proto::ProtoForwardBackwardRequest {
        model_id,
        seq_id,
        data: data.iter().map(|datum| datum_to_proto(datum, loss)).collect(),
        loss_fn: loss.name().into(),
        loss_fn_config_v2: config.iter().map(|(k, v)| (k.clone(), number(v))).collect(),
        loss_fn_config: config,
        forward_only,
    }
}

/// Reads a pass.
///
/// # Errors
/// No data, a datum that is wrong, an unknown loss or setting.
pub fn pass_from_proto(request: &proto::ProtoForwardBackwardRequest) -> Result<CheckedPass, ConvertError> {
    let mut config = request.loss_fn_config.clone();
    for (key, value) in &request.loss_fn_config_v2 {
        match value.value {
            Some(LossConfig::Number(number)) => config.insert(key.clone(), number),
            _ => {
                return Err(ConvertError::Invalid(format!(
                    "the setting `{key}` of the loss is not a number"
                )));
            }
        };
    }
    let loss = loss(&request.loss_fn, &config)?;
    pass(&request.data, loss, datum_from_proto)
}

/// A pass in JSON.
#[must_use]
pub fn pass_to_json(data: &[Datum], loss: Loss) -> types::PassInput {
    let loss = loss.in_tinker_api();
    let config = loss.settings();
    types::PassInput {
        data: data.iter().map(|datum| datum_to_json(datum, loss)).collect(),
        loss_fn: loss.name().into(),
        loss_fn_config: (!config.is_empty()).then_some(config),
    }
}

/// Reads a pass.
///
/// # Errors
/// As [`pass_from_proto`].
pub fn pass_from_json(input: &types::PassInput) -> Result<CheckedPass, ConvertError> {
    let loss = loss(&input.loss_fn, input.loss_fn_config.as_ref().unwrap_or(&BTreeMap::new()))?;
    pass(&input.data, loss, datum_from_json)
}

fn pass<D>(
    data: &[D],
    loss: Loss,
    read: impl Fn(&D, Loss) -> Result<Datum, ConvertError>,
) -> Result<CheckedPass, ConvertError> {
    if data.is_empty() {
        return Err(ConvertError::invalid("the request has no data"));
    }
    let read = |(i, datum)| read(datum, loss).map_err(|e| e.at(format_args!("datum {i}")));
    Ok(CheckedPass { data: data.iter().enumerate().map(read).collect::<Result<_, _>>()?, loss })
}

fn loss(name: &str, config: &BTreeMap<String, f64>) -> Result<Loss, ConvertError> {
    Loss::from_config(name, config).map_err(|e| ConvertError::invalid(e.to_string()))
}

fn join(
    tokens: Vec<Token>,
    mut rows: BTreeMap<&str, TensorRow<'_>>,
    loss: Loss,
) -> Result<Datum, ConvertError> {
    let mut take = |name: &str| {
        rows.remove(name).ok_or_else(|| {
            ConvertError::Invalid(format!(
                "the loss {} needs the tensor `{name}`, which is missing",
                loss.name()
            ))
        })
    };
    let targets = take(TARGETS)?.tokens().map_err(|e| e.at(TARGETS))?;
    let inputs = if loss == Loss::CrossEntropy {
        LossInputs::Weights(take(WEIGHTS)?.floats())
    } else {
        LossInputs::Policy { logprobs: take(LOGPROBS)?.floats(), advantages: take(ADVANTAGES)?.floats() }
    };
    let mask = match loss.has_sequence_ratio() {
        true => Some(take(RATIO_MASK)?.floats().iter().map(|marked| *marked != 0.0).collect()),
        false => None,
    };
    if let Some(name) = rows.keys().next() {
        let text = format!("the loss {} has no tensor `{name}`", loss.name());
        return Err(ConvertError::Unsupported(text));
    }
    let datum = Datum::new(tokens, targets, inputs);
    let datum = match mask {
        Some(mask) => datum.and_then(|datum| datum.with_sampled(mask)),
        None => datum,
    };
    datum.map_err(|e| ConvertError::invalid(e.to_string()))
}

fn not_text() -> ConvertError {
    ConvertError::unsupported("prompts of anything but text are not supported")
}

type TensorAccessor = fn(&LossInputs) -> &[f32];

/// The tensors of a datum beside its targets, by name.
fn fields(inputs: &LossInputs) -> &'static [(&'static str, TensorAccessor)] {
    fn weights(inputs: &LossInputs) -> &[f32] {
        match inputs {
            LossInputs::Weights(weights) => weights,
            LossInputs::Policy { .. } => &[],
        }
    }
    fn logprobs(inputs: &LossInputs) -> &[f32] {
        match inputs {
            LossInputs::Policy { logprobs, .. } => logprobs,
            LossInputs::Weights(_) => &[],
        }
    }
    fn advantages(inputs: &LossInputs) -> &[f32] {
        match inputs {
            LossInputs::Policy { advantages, .. } => advantages,
            LossInputs::Weights(_) => &[],
        }
    }
    match inputs {
        LossInputs::Weights(_) => &[(WEIGHTS, weights)],
        LossInputs::Policy { .. } => &[(LOGPROBS, logprobs), (ADVANTAGES, advantages)],
    }
}

/// Lends a datum's tokens to a body.
struct TokenBuffer(Datum);

impl AsRef<[u32]> for TokenBuffer {
    fn as_ref(&self) -> &[u32] {
        self.0.input()
    }
}

/// Lends one of a datum's tensors to a body.
struct TensorBuffer(Datum, TensorAccessor);

impl AsRef<[f32]> for TensorBuffer {
    fn as_ref(&self) -> &[f32] {
        (self.1)(self.0.inputs())
    }
}
