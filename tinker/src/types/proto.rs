//! The protobuf forms, package `tinker_public`, written by hand from the field numbers.
//!
//! Packed tensors are little-endian bytes without alignment; see [`super::numbers`]. Decoding from [`bytes::Bytes`] shares
//! the body's memory, so a tensor costs nothing until it is read.

use bytes::Bytes;
use prost::{Enumeration, Message, Oneof};
use std::collections::BTreeMap;

/// Why a sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum ProtoStopReason {
    /// A stop token or string.
    Stop = 0,
    /// All tokens are there.
    Length = 1,
}

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum ProtoDType {
    /// Not said, which is an error.
    Unspecified = 0,
    /// 4 bytes.
    Float32 = 1,
    /// 8 bytes.
    Int64 = 2,
    /// 4 bytes, read as int64.
    Int32 = 3,
    /// 2 bytes, read as float32.
    Bfloat16 = 4,
}

/// Result of a sample.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoSampleResponse {
    /// One entry per sample.
    #[prost(message, repeated, tag = "1")]
    pub sequences: Vec<ProtoSampledSequence>,
    /// f32 per prompt token, NaN for none.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub prompt_logprobs: Option<Bytes>,
    /// The most likely tokens at each prompt position.
    #[prost(message, optional, tag = "3")]
    pub topk_prompt_logprobs: Option<TopkLogprobs>,
    /// Prompt tokens that needed no computation.
    #[prost(int32, tag = "4")]
    pub prompt_cache_hit_tokens: i32,
    /// Log-probs of tokens that were asked for.
    #[prost(message, optional, tag = "5")]
    pub target_prompt_logprobs: Option<ProtoTensor>,
    /// Alternatives drawn at each prompt position.
    #[prost(message, optional, tag = "6")]
    pub prompt_alt_tokens: Option<PromptAltTokens>,
}

/// Alternatives drawn at each prompt position.
#[derive(Clone, PartialEq, Message)]
pub struct PromptAltTokens {
    /// Which.
    #[prost(message, optional, tag = "1")]
    pub tokens: Option<ProtoTensor>,
    /// How likely.
    #[prost(message, optional, tag = "2")]
    pub logprobs: Option<ProtoTensor>,
}

/// One sample.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoSampledSequence {
    /// Why it ended.
    #[prost(enumeration = "ProtoStopReason", tag = "1")]
    pub stop_reason: i32,
    /// i32 each.
    #[prost(bytes = "bytes", tag = "2")]
    pub tokens: Bytes,
    /// f32 each; empty for none.
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
    /// Tokens per row.
    #[prost(uint32, tag = "3")]
    pub k: u32,
    /// Rows.
    #[prost(uint32, tag = "4")]
    pub length: u32,
}

impl TopkLogprobs {
    /// Log-prob of a place that holds no token.
    pub const MISSING: f32 = -99999.0;
}

/// Numbers by row and column.
#[derive(Clone, PartialEq, Message)]
pub struct SparseCsr {
    /// Those that are there.
    #[prost(bytes = "bytes", tag = "1")]
    pub values: Bytes,
    /// i64: where each row begins.
    #[prost(bytes = "bytes", tag = "2")]
    pub crow_indices: Bytes,
    /// i64: the column of each.
    #[prost(bytes = "bytes", tag = "3")]
    pub col_indices: Bytes,
}

/// A tensor of a datum.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoTensor {
    /// Its numbers.
    #[prost(oneof = "Encoding", tags = "1, 2")]
    pub encoding: Option<Encoding>,
    /// Their type.
    #[prost(enumeration = "ProtoDType", tag = "3")]
    pub dtype: i32,
    /// The dense shape.
    #[prost(int64, repeated, tag = "4")]
    pub shape: Vec<i64>,
}

/// How a tensor's numbers are stored.
#[derive(Clone, PartialEq, Oneof)]
pub enum Encoding {
    /// All of them, row after row.
    #[prost(bytes = "bytes", tag = "1")]
    Dense(Bytes),
    /// Those that are not padding.
    #[prost(message, tag = "2")]
    SparseCsr(SparseCsr),
}

/// Tensors of many data, end to end.
#[derive(Clone, PartialEq, Message)]
pub struct BatchedTensor {
    /// All numbers.
    #[prost(bytes = "bytes", tag = "1")]
    pub data: Bytes,
    /// i64: byte offsets into `data`, one more than there are data.
    #[prost(bytes = "bytes", tag = "2")]
    pub offsets: Bytes,
    /// Type of the numbers.
    #[prost(enumeration = "ProtoDType", tag = "3")]
    pub dtype: i32,
    /// Shape of one element of the leading dimension.
    #[prost(int64, repeated, tag = "4")]
    pub trailing_shape: Vec<i64>,
}

/// Named tensors of many data.
#[derive(Clone, PartialEq, Message)]
pub struct ArrayRecord {
    /// Unused.
    #[prost(string, tag = "1")]
    pub type_tag: String,
    /// The tensors.
    #[prost(btree_map = "string, message", tag = "2")]
    pub fields: BTreeMap<String, BatchedTensor>,
    /// How many data.
    #[prost(int64, tag = "3")]
    pub num_datums: i64,
}

/// Result of a pass.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoForwardBackwardOutput {
    /// What the outputs are, `ArrayRecord`.
    #[prost(string, tag = "1")]
    pub loss_fn_output_type: String,
    /// Their tensors; the data of several records follow each other.
    #[prost(message, repeated, tag = "2")]
    pub loss_fn_outputs: Vec<ArrayRecord>,
    /// Numbers; the part behind the colon of each name says how chunks are put together.
    #[prost(btree_map = "string, double", tag = "3")]
    pub metrics: BTreeMap<String, f64>,
}

/// `POST forward_backward`
#[derive(Clone, PartialEq, Message)]
pub struct ProtoForwardBackwardRequest {
    /// Which model.
    #[prost(string, tag = "1")]
    pub model_id: String,
    /// Place in the model's order; 0 for none.
    #[prost(int32, tag = "2")]
    pub seq_id: i32,
    /// What to learn from.
    #[prost(message, repeated, tag = "3")]
    pub data: Vec<ProtoDatum>,
    /// Name of the loss.
    #[prost(string, tag = "4")]
    pub loss_fn: String,
    /// Its settings, as older servers read them.
    #[prost(btree_map = "string, double", tag = "5")]
    pub loss_fn_config: BTreeMap<String, f64>,
    /// Whether gradients are left alone.
    #[prost(bool, tag = "6")]
    pub forward_only: bool,
    /// Its settings.
    #[prost(btree_map = "string, message", tag = "7")]
    pub loss_fn_config_v2: BTreeMap<String, LossConfigValue>,
}

/// A setting of a loss.
#[derive(Clone, PartialEq, Message)]
pub struct LossConfigValue {
    /// Number or text.
    #[prost(oneof = "LossConfig", tags = "1, 2")]
    pub value: Option<LossConfig>,
}

/// Value of a setting.
#[derive(Clone, PartialEq, Oneof)]
pub enum LossConfig {
    /// A number.
    #[prost(double, tag = "1")]
    Number(f64),
    /// A text.
    #[prost(string, tag = "2")]
    Text(String),
}

/// One example.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoDatum {
    /// What the model reads.
    #[prost(message, repeated, tag = "1")]
    pub model_input: Vec<ProtoChunk>,
    /// What its loss reads.
    #[prost(btree_map = "string, message", tag = "2")]
    pub loss_fn_inputs: BTreeMap<String, ProtoTensor>,
    /// Where its tokens came from.
    #[prost(message, repeated, tag = "3")]
    pub model_input_spans: Vec<ProvenanceSpan>,
    /// Where its targets came from.
    #[prost(message, repeated, tag = "4")]
    pub loss_fn_input_spans: Vec<ProvenanceSpan>,
}

/// A stretch of tokens that the server has seen before.
#[derive(Clone, PartialEq, Message)]
pub struct ProvenanceSpan {
    /// Where.
    #[prost(oneof = "Provenance", tags = "1, 2")]
    pub span: Option<Provenance>,
}

/// Where a stretch was seen.
#[derive(Clone, PartialEq, Oneof)]
pub enum Provenance {
    /// In a prompt.
    #[prost(message, tag = "1")]
    PromptTokens(ProtoSpan),
    /// In a sample.
    #[prost(message, tag = "2")]
    SampledTokens(ProtoSpan),
}

/// A stretch of one sequence.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoSpan {
    /// Which sequence.
    #[prost(string, tag = "1")]
    pub sequence_id: String,
    /// From where.
    #[prost(int64, tag = "2")]
    pub offset: i64,
    /// How long.
    #[prost(int64, tag = "3")]
    pub length: i64,
}

/// One piece of a prompt.
#[derive(Clone, PartialEq, Message)]
pub struct ProtoChunk {
    /// Text, image or sound.
    #[prost(oneof = "ChunkKind", tags = "1, 2, 3")]
    pub chunk: Option<ChunkKind>,
}

/// What a piece is.
#[derive(Clone, PartialEq, Oneof)]
pub enum ChunkKind {
    /// Text as tokens.
    #[prost(message, tag = "1")]
    EncodedText(EncodedTextChunk),
    /// An image.
    #[prost(message, tag = "2")]
    Image(ImageChunk),
    /// Sound.
    #[prost(message, tag = "3")]
    Dmel(DmelChunk),
}

/// Text as tokens.
#[derive(Clone, PartialEq, Message)]
pub struct EncodedTextChunk {
    /// i32 each.
    #[prost(bytes = "bytes", tag = "1")]
    pub tokens: Bytes,
}

/// An image.
#[derive(Clone, PartialEq, Message)]
pub struct ImageChunk {
    /// The file.
    #[prost(bytes = "bytes", tag = "1")]
    pub data: Bytes,
    /// `png` or `jpeg`.
    #[prost(string, tag = "2")]
    pub format: String,
    /// Tokens that it takes, if the caller knows.
    #[prost(int32, optional, tag = "3")]
    pub expected_tokens: Option<i32>,
    /// Size to scale it to.
    #[prost(message, optional, tag = "4")]
    pub override_dimensions: Option<ImageDimensions>,
}

/// Size of an image.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ImageDimensions {
    /// Pixels across.
    #[prost(uint32, tag = "1")]
    pub width: u32,
    /// Pixels down.
    #[prost(uint32, tag = "2")]
    pub height: u32,
}

/// Sound.
#[derive(Clone, PartialEq, Message)]
pub struct DmelChunk {
    /// The sound.
    #[prost(bytes = "bytes", tag = "1")]
    pub dmel: Bytes,
}
