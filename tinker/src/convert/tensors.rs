//! Tensors of both forms as rows of one kind of number.

use super::ConvertError;
use crate::types::proto::{self, Encoding, ProtoDType};
use crate::types::{self, TensorValues, numbers};
use minds_core::ids::Token;
use std::borrow::Cow;

/// A tensor's numbers before anybody decided what they are.
pub(super) enum TensorRow<'a> {
    Int(Cow<'a, [i64]>),
    Float(Cow<'a, [f32]>),
}

impl<'a> TensorRow<'a> {
    /// A dense, one-dimensional tensor of protobuf.
    pub(super) fn of_proto(tensor: &'a proto::ProtoTensor) -> Result<Self, ConvertError> {
        let bytes = match &tensor.encoding {
            Some(Encoding::Dense(bytes)) => bytes,
            Some(Encoding::SparseCsr(_)) => return Err(matrices()),
            None => return Err(ConvertError::invalid("it holds no numbers")),
        };
        let row = Self::of_bytes(bytes, tensor.dtype)?;
        check_shape(&tensor.shape, row.len())?;
        Ok(row)
    }

    /// The bytes of one datum within a batched tensor.
    pub(super) fn of_bytes(bytes: &'a [u8], dtype: i32) -> Result<Self, ConvertError> {
        match ProtoDType::try_from(dtype) {
            Ok(ProtoDType::Float32) => Ok(Self::Float(numbers::read(bytes)?)),
            Ok(ProtoDType::Int64) => Ok(Self::Int(numbers::read(bytes)?)),
            Ok(ProtoDType::Int32) => {
                let short = numbers::read::<i32>(bytes)?;
                Ok(Self::Int(short.iter().map(|v| i64::from(*v)).collect()))
            }
            Ok(ProtoDType::Bfloat16) => {
                let pairs = bytes.chunks_exact(2);
                if !pairs.remainder().is_empty() {
                    return Err(numbers::ByteLengthError { len: bytes.len(), size: 2 }.into());
                }
                let widen = |pair: &[u8]| f32::from_le_bytes([0, 0, pair[0], pair[1]]);
                Ok(Self::Float(pairs.map(widen).collect()))
            }
            Ok(ProtoDType::Unspecified) | Err(_) => {
                Err(ConvertError::invalid(format!("unknown dtype {dtype}")))
            }
        }
    }

    /// A dense, one-dimensional tensor of JSON.
    pub(super) fn of_json(tensor: &'a types::TensorData) -> Result<Self, ConvertError> {
        if tensor.sparse_crow_indices.is_some() || tensor.sparse_col_indices.is_some() {
            return Err(matrices());
        }
        let row = match &tensor.data {
            TensorValues::Int64(values) => Self::Int(Cow::Borrowed(values)),
            TensorValues::Float32(values) => Self::Float(Cow::Borrowed(values)),
        };
        if let Some(shape) = &tensor.shape {
            check_shape(shape, row.len())?;
        }
        Ok(row)
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Int(values) => values.len(),
            Self::Float(values) => values.len(),
        }
    }

    pub(super) fn floats(self) -> Vec<f32> {
        match self {
            Self::Int(values) => values.iter().map(|v| *v as f32).collect(),
            Self::Float(values) => values.into_owned(),
        }
    }

    pub(super) fn tokens(self) -> Result<Vec<Token>, ConvertError> {
        match self {
            Self::Int(values) => values.iter().map(|v| token(*v)).collect(),
            Self::Float(_) => {
                Err(ConvertError::invalid("it holds real numbers; it must hold tokens (int64)"))
            }
        }
    }
}

/// Tokens as protobuf packs them.
pub(super) fn tokens_of_bytes(bytes: &[u8]) -> Result<Vec<Token>, ConvertError> {
    let values = numbers::read::<i32>(bytes)?;
    // Collecting results would grow the list step by step, to up to twice the size that it needs.
    let mut tokens = Vec::with_capacity(values.len());
    for value in values.iter() {
        tokens.push(token(i64::from(*value))?);
    }
    Ok(tokens)
}

fn token(value: i64) -> Result<Token, ConvertError> {
    Token::try_from(value).map_err(|_| ConvertError::Invalid(format!("{value} is not a token")))
}

fn check_shape(shape: &[i64], len: usize) -> Result<(), ConvertError> {
    match shape {
        [] => Ok(()),
        [n] if *n == len as i64 => Ok(()),
        [n] => Err(ConvertError::Invalid(format!("its shape is [{n}], and it has {len} elements"))),
        _ => Err(matrices()),
    }
}

fn matrices() -> ConvertError {
    ConvertError::unsupported("tensors with more than one dimension, such as soft targets, are not supported")
}
