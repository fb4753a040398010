//! Protobuf messages of the package `tinker_public`, written by hand from the field numbers. Fields that neither side
//! uses are left out: prost passes over them.
//!
//! Packed tensors are little-endian bytes without alignment; see [`super::numbers`]. Decoding from [`bytes::Bytes`]
//! shares the body's memory, so a tensor costs nothing until it is read.

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};
use std::collections::BTreeMap;

/// Why a sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum ProtoStopReason {
    /// A stop token or string.
    Stop = 0,
    /// The maximum number of tokens is reached.
    Length = 1,
}

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum ProtoDType {
    /// Unset, which is an error.
    Unspecified = 0,
    /// Floats of 4 bytes each.
    Float32 = 1,
    /// Signed integers of 8 bytes each.
    Int64 = 2,
    /// Signed integers of 4 bytes each, read as int64.
    Int32 = 3,
    /// Floats of 2 bytes each, read as float32.
    Bfloat16 = 4,
}

/// Result of a sample.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoSampleResponse {
    /// One entry per sample.
    #[prost(message, repeated, tag = "1")]
    pub sequences: Vec<ProtoSampledSequence>,
    /// One f32 per prompt token; NaN where there is no logprob.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub prompt_logprobs: Option<Bytes>,
    /// The most likely tokens at each prompt position.
    #[prost(message, optional, tag = "3")]
    pub topk_prompt_logprobs: Option<TopkLogprobs>,
    /// Prompt tokens that needed no computation.
    #[prost(int32, tag = "4")]
    pub prompt_cache_hit_tokens: i32,
    /// Logprobs of the requested target tokens.
    #[prost(message, optional, tag = "5")]
    pub target_prompt_logprobs: Option<ProtoTensor>,
}

/// One sample of a response.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoSampledSequence {
    /// Why the sample ended, a [`ProtoStopReason`].
    #[prost(enumeration = "ProtoStopReason", tag = "1")]
    pub stop_reason: i32,
    /// Token ids, 4 bytes (i32) each.
    #[prost(bytes = "bytes", tag = "2")]
    pub tokens: Bytes,
    /// Logprob of each token, 4 bytes (f32) each; empty for none.
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub logprobs: Option<Bytes>,
    /// The most likely tokens at each position.
    #[prost(message, optional, tag = "4")]
    pub topk_sampled_logprobs: Option<TopkLogprobs>,
}

/// `length` rows of `k` tokens, best first. Missing ones are token 0 with [`TopkLogprobs::MISSING`].
#[derive(Clone, PartialEq, Message)]
pub struct TopkLogprobs {
    /// i32 each, row after row.
    #[prost(bytes = "bytes", tag = "1")]
    pub token_ids: Bytes,
    /// f32 each, row after row.
    #[prost(bytes = "bytes", tag = "2")]
    pub logprobs: Bytes,
    /// Number of tokens per row.
    #[prost(uint32, tag = "3")]
    pub k: u32,
    /// Number of rows, one per position.
    #[prost(uint32, tag = "4")]
    pub length: u32,
}

impl TopkLogprobs {
    /// Logprob of an entry that holds no token.
    pub const MISSING: f32 = -99999.0;
}

/// A sparse matrix in CSR form.
#[derive(Clone, PartialEq, Message)]
pub struct SparseCsr {
    /// The stored numbers, row after row.
    #[prost(bytes = "bytes", tag = "1")]
    pub values: Bytes,
    /// Index of the first number of each row, 8 bytes (i64) each.
    #[prost(bytes = "bytes", tag = "2")]
    pub crow_indices: Bytes,
    /// Column of each number, 8 bytes (i64) each.
    #[prost(bytes = "bytes", tag = "3")]
    pub col_indices: Bytes,
}

/// A tensor of a datum.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoTensor {
    /// Numbers of the tensor, dense or sparse.
    #[prost(oneof = "Encoding", tags = "1, 2")]
    pub encoding: Option<Encoding>,
    /// Element type, a [`ProtoDType`].
    #[prost(enumeration = "ProtoDType", tag = "3")]
    pub dtype: i32,
    /// Shape of the dense tensor.
    #[prost(int64, repeated, tag = "4")]
    pub shape: Vec<i64>,
}

/// How a tensor's numbers are stored.
#[derive(Clone, PartialEq, Oneof)]
pub enum Encoding {
    /// All of them, row after row.
    #[prost(bytes = "bytes", tag = "1")]
    Dense(Bytes),
    /// All numbers except the padding.
    #[prost(message, tag = "2")]
    SparseCsr(SparseCsr),
}

/// Tensors of many data, end to end.
#[derive(Clone, PartialEq, Message)]
pub struct BatchedTensor {
    /// Numbers of all data, concatenated.
    #[prost(bytes = "bytes", tag = "1")]
    pub data: Bytes,
    /// Byte offsets into `data` (i64), one more than the number of data.
    #[prost(bytes = "bytes", tag = "2")]
    pub offsets: Bytes,
    /// Element type, a [`ProtoDType`].
    #[prost(enumeration = "ProtoDType", tag = "3")]
    pub dtype: i32,
    /// Shape of one element of the leading dimension.
    #[prost(int64, repeated, tag = "4")]
    pub trailing_shape: Vec<i64>,
}

/// Named tensors of many data.
#[derive(Clone, PartialEq, Message)]
pub struct ArrayRecord {
    /// Type tag of the record, unused.
    #[prost(string, tag = "1")]
    pub type_tag: String,
    /// Tensors of the record, by name.
    #[prost(btree_map = "string, message", tag = "2")]
    pub fields: BTreeMap<String, BatchedTensor>,
    /// Number of data in the record.
    #[prost(int64, tag = "3")]
    pub num_datums: i64,
}

/// Result of a pass.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoForwardBackwardOutput {
    /// Type of the outputs, `ArrayRecord`.
    #[prost(string, tag = "1")]
    pub loss_fn_output_type: String,
    /// Tensors of the outputs; the data of several records are concatenated.
    #[prost(message, repeated, tag = "2")]
    pub loss_fn_outputs: Vec<ArrayRecord>,
    /// Metrics by name; the suffix after the colon says how chunks are combined.
    #[prost(btree_map = "string, double", tag = "3")]
    pub metrics: BTreeMap<String, f64>,
}

/// Request body of `POST forward_backward`.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoForwardBackwardRequest {
    /// Name of the model to train.
    #[prost(string, tag = "1")]
    pub model_id: String,
    /// Position in the model's request order; 0 for none.
    #[prost(int32, tag = "2")]
    pub seq_id: i32,
    /// Training data of the pass.
    #[prost(message, repeated, tag = "3")]
    pub data: Vec<ProtoDatum>,
    /// Name of the loss.
    #[prost(string, tag = "4")]
    pub loss_fn: String,
    /// Settings of the loss, in the form of older servers.
    #[prost(btree_map = "string, double", tag = "5")]
    pub loss_fn_config: BTreeMap<String, f64>,
    /// Whether the pass computes losses without gradients.
    #[prost(bool, tag = "6")]
    pub forward_only: bool,
    /// Settings of the loss, by name.
    #[prost(btree_map = "string, message", tag = "7")]
    pub loss_fn_config_v2: BTreeMap<String, LossConfigValue>,
}

/// A setting of a loss.
#[derive(Clone, PartialEq, Message)]
pub struct LossConfigValue {
    /// Value of the setting, number or text.
    #[prost(oneof = "LossConfig", tags = "1, 2")]
    pub value: Option<LossConfig>,
}

/// Value of a setting.
#[derive(Clone, PartialEq, Oneof)]
pub enum LossConfig {
    /// A setting that is a number.
    #[prost(double, tag = "1")]
    Number(f64),
    /// A setting that is text.
    #[prost(string, tag = "2")]
    Text(String),
}

/// One example of a pass.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoDatum {
    /// Input of the model, in chunks.
    #[prost(message, repeated, tag = "1")]
    pub model_input: Vec<ProtoChunk>,
    /// Tensors that the loss reads, by name.
    #[prost(btree_map = "string, message", tag = "2")]
    pub loss_fn_inputs: BTreeMap<String, ProtoTensor>,
    /// Which samples the input tokens come from, in order.
    #[prost(message, repeated, tag = "3")]
    pub model_input_spans: Vec<ProtoProvenanceSpan>,
    /// Which samples the targets come from, in order.
    #[prost(message, repeated, tag = "4")]
    pub loss_fn_input_spans: Vec<ProtoProvenanceSpan>,
}

/// A run of consecutive positions, and the tokens that it repeats.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoProvenanceSpan {
    /// The tokens, of a prompt or of a sample.
    #[prost(oneof = "ProtoSpan", tags = "1, 2")]
    pub span: Option<ProtoSpan>,
}

/// Tokens that a span repeats.
#[derive(Clone, PartialEq, Oneof)]
pub enum ProtoSpan {
    /// Tokens of the prompt that a sample continued.
    #[prost(message, tag = "1")]
    Prompt(ProtoSequenceRange),
    /// Tokens of a sample.
    #[prost(message, tag = "2")]
    Sampled(ProtoSequenceRange),
}

/// A range of the tokens of a sample, or of its prompt.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoSequenceRange {
    /// Name of the sample.
    #[prost(string, tag = "1")]
    pub sequence_id: String,
    /// Position of the first token.
    #[prost(int64, tag = "2")]
    pub offset: i64,
    /// Number of tokens in the range.
    #[prost(int64, tag = "3")]
    pub length: i64,
}

/// One chunk of a prompt.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoChunk {
    /// Text; `None` for an image (tag 2) or sound (tag 3), which neither side reads.
    #[prost(message, optional, tag = "1")]
    pub encoded_text: Option<EncodedTextChunk>,
}

/// Text, already encoded as tokens.
#[derive(Clone, PartialEq, Message)]
pub struct EncodedTextChunk {
    /// Token ids, 4 bytes (i32) each.
    #[prost(bytes = "bytes", tag = "1")]
    pub tokens: Bytes,
}
