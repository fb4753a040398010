//! JSON forms of prompts, tensors and data.

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A prompt as a sequence of chunks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelInput {
    /// Chunks of the prompt, in order.
    pub chunks: Vec<WireChunk>,
}

impl ModelInput {
    /// A prompt of text only.
    #[must_use]
    pub fn text(tokens: Vec<u32>) -> Self {
        Self { chunks: vec![WireChunk::EncodedText { tokens }] }
    }
}

/// One piece of a prompt. A piece without `type` is text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", try_from = "ChunkAsSent")]
pub enum WireChunk {
    /// Text, already encoded as tokens.
    EncodedText {
        /// Token ids of the text.
        tokens: Vec<u32>,
    },
    /// An image in base64.
    Image {
        /// Bytes of the image file, in base64.
        data: String,
        /// Image format, `png` or `jpeg`.
        format: String,
        /// Number of tokens that the image takes, if the caller knows.
        #[serde(skip_serializing_if = "Option::is_none")]
        expected_tokens: Option<u32>,
    },
    /// An image, referenced by its address.
    ImageAssetPointer {
        /// Address of the image file.
        location: String,
        /// Image format, `png` or `jpeg`.
        format: String,
        /// Number of tokens that the image takes, if the caller knows.
        #[serde(skip_serializing_if = "Option::is_none")]
        expected_tokens: Option<u32>,
    },
    /// Sound, encoded in base64.
    Dmel {
        /// Bytes of the sound, in base64.
        dmel: String,
    },
}

#[derive(Deserialize)]
struct ChunkAsSent {
    #[serde(rename = "type", default)]
    tag: Option<String>,
    #[serde(default)]
    tokens: Option<Vec<u32>>,
    #[serde(default)]
    data: Option<String>,
    #[serde(default)]
    format: Option<String>,
    #[serde(default)]
    location: Option<String>,
    #[serde(default)]
    expected_tokens: Option<u32>,
    #[serde(default)]
    dmel: Option<String>,
}

impl TryFrom<ChunkAsSent> for WireChunk {
    type Error = String;

    fn try_from(sent: ChunkAsSent) -> Result<Self, String> {
        let tag = sent.tag.as_deref().unwrap_or("encoded_text");
        let missing = |field: &str| format!("a chunk of type `{tag}` has no `{field}`");
        let expected_tokens = sent.expected_tokens;
        match tag {
            "encoded_text" => Ok(Self::EncodedText { tokens: sent.tokens.ok_or_else(|| missing("tokens"))? }),
            "image" => Ok(Self::Image {
                data: sent.data.ok_or_else(|| missing("data"))?,
                format: sent.format.ok_or_else(|| missing("format"))?,
                expected_tokens,
            }),
            "image_asset_pointer" => Ok(Self::ImageAssetPointer {
                location: sent.location.ok_or_else(|| missing("location"))?,
                format: sent.format.ok_or_else(|| missing("format"))?,
                expected_tokens,
            }),
            "dmel" => Ok(Self::Dmel { dmel: sent.dmel.ok_or_else(|| missing("dmel"))? }),
            other => Err(format!("unknown chunk type `{other}`")),
        }
    }
}

/// One example in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WireDatum {
    /// Input tokens of the model.
    pub model_input: ModelInput,
    /// Tensors that the loss reads, by name.
    pub loss_fn_inputs: BTreeMap<String, TensorData>,
}

/// Numbers of a tensor in row-major order.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum TensorValues {
    /// Numbers of dtype `int64`.
    Int64(Vec<i64>),
    /// Numbers of dtype `float32`.
    Float32(Vec<f32>),
}

/// Element type of a tensor in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireDType {
    /// Signed integers of 64 bits.
    Int64,
    /// Floating-point numbers of 32 bits.
    Float32,
}

/// A tensor in JSON: dense, or sparse by rows (CSR).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "TensorAsSent")]
pub struct TensorData {
    /// All numbers; of a sparse tensor only the stored ones.
    pub data: TensorValues,
    /// Element type of the numbers.
    pub dtype: WireDType,
    /// The dense shape; one dimension if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<i64>>,
    /// Where each row begins, if it is sparse.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sparse_crow_indices: Option<Vec<i64>>,
    /// The column of each number, if it is sparse.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sparse_col_indices: Option<Vec<i64>>,
}

impl TensorData {
    /// A one-dimensional tensor of integers.
    #[must_use]
    pub fn int64(data: Vec<i64>) -> Self {
        Self::row(data.len(), TensorValues::Int64(data), WireDType::Int64)
    }

    /// A one-dimensional tensor of floats.
    #[must_use]
    pub fn float32(data: Vec<f32>) -> Self {
        Self::row(data.len(), TensorValues::Float32(data), WireDType::Float32)
    }

    fn row(len: usize, data: TensorValues, dtype: WireDType) -> Self {
        Self {
            data,
            dtype,
            shape: Some(vec![len as i64]),
            sparse_crow_indices: None,
            sparse_col_indices: None,
        }
    }
}

#[derive(Deserialize)]
struct TensorAsSent {
    data: JsonNumbers,
    dtype: WireDType,
    #[serde(default)]
    shape: Option<Vec<i64>>,
    #[serde(default)]
    sparse_crow_indices: Option<Vec<i64>>,
    #[serde(default)]
    sparse_col_indices: Option<Vec<i64>>,
}

impl TryFrom<TensorAsSent> for TensorData {
    type Error = String;

    fn try_from(sent: TensorAsSent) -> Result<Self, String> {
        let data = match (sent.dtype, sent.data) {
            (WireDType::Int64, JsonNumbers::Whole(values)) => TensorValues::Int64(values),
            (WireDType::Int64, JsonNumbers::Real(values)) => {
                if let Some(value) = values.iter().find(|v| v.fract() != 0.0) {
                    return Err(format!("{value} is in a tensor of dtype int64"));
                }
                TensorValues::Int64(values.into_iter().map(|v| v as i64).collect())
            }
            (WireDType::Float32, JsonNumbers::Whole(values)) => {
                TensorValues::Float32(values.into_iter().map(|v| v as f32).collect())
            }
            (WireDType::Float32, JsonNumbers::Real(values)) => {
                TensorValues::Float32(values.into_iter().map(|v| v as f32).collect())
            }
        };
        Ok(Self {
            data,
            dtype: sent.dtype,
            shape: sent.shape,
            sparse_crow_indices: sent.sparse_crow_indices,
            sparse_col_indices: sent.sparse_col_indices,
        })
    }
}

/// Numbers whose type is not known yet: `dtype` may come after them.
enum JsonNumbers {
    Whole(Vec<i64>),
    Real(Vec<f64>),
}

impl<'de> Deserialize<'de> for JsonNumbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = JsonNumbers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a flat list of numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<JsonNumbers, A::Error> {
                let mut whole = Vec::with_capacity(seq.size_hint().unwrap_or(0).min(1 << 16));
                let first_real = loop {
                    match seq.next_element::<JsonNumber>()? {
                        None => return Ok(JsonNumbers::Whole(whole)),
                        Some(JsonNumber::Whole(value)) => whole.push(value),
                        Some(JsonNumber::Real(value)) => break value,
                    }
                };
                let mut real: Vec<f64> = whole.into_iter().map(|v| v as f64).collect();
                real.push(first_real);
                while let Some(number) = seq.next_element::<JsonNumber>()? {
                    real.push(match number {
                        JsonNumber::Whole(value) => value as f64,
                        JsonNumber::Real(value) => value,
                    });
                }
                Ok(JsonNumbers::Real(real))
            }
        }

        deserializer.deserialize_seq(Reader)
    }
}

enum JsonNumber {
    Whole(i64),
    Real(f64),
}

impl<'de> Deserialize<'de> for JsonNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = JsonNumber;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            fn visit_i64<E>(self, value: i64) -> Result<JsonNumber, E> {
                Ok(JsonNumber::Whole(value))
            }

            fn visit_u64<E>(self, value: u64) -> Result<JsonNumber, E> {
                Ok(i64::try_from(value).map_or(JsonNumber::Real(value as f64), JsonNumber::Whole))
            }

            fn visit_f64<E>(self, value: f64) -> Result<JsonNumber, E> {
                Ok(JsonNumber::Real(value))
            }

            /// JSON writers replace NaN with `null`.
            fn visit_unit<E>(self) -> Result<JsonNumber, E> {
                Ok(JsonNumber::Real(f64::NAN))
            }
        }

        deserializer.deserialize_any(Reader)
    }
}
