//! Tensor encodings, as f32.
//!
//! Blocks are those of ggml: Q8_0 is 32 numbers `d * q` with an f16 `d`; Q4_1 is 32 numbers `d * q + m` with f16
//! `d` and `m`, the low halves of the 16 bytes first (github.com/ggml-org/ggml, src/ggml-common.h).

use half::{bf16, f16};

/// How a tensor's numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorType {
    F32,
    F16,
    Bf16,
    Q4_1,
    Q8_0,
}

impl TensorType {
    /// The type of this number in a GGUF file.
    pub(crate) fn from_gguf(id: u32) -> Option<Self> {
        match id {
            0 => Some(Self::F32),
            1 => Some(Self::F16),
            3 => Some(Self::Q4_1),
            8 => Some(Self::Q8_0),
            30 => Some(Self::Bf16),
            _ => None,
        }
    }

    /// Numbers in a block; rows are whole blocks.
    pub(crate) fn block(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_1 | Self::Q8_0 => 32,
        }
    }

    fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_1 => 20,
            Self::Q8_0 => 34,
        }
    }

    /// Bytes that `elements` numbers take; `None` where they are not whole blocks or do not fit a u64.
    pub(crate) fn bytes_of(self, elements: usize) -> Option<u64> {
        if !elements.is_multiple_of(self.block()) {
            return None;
        }
        u64::try_from(elements / self.block()).ok()?.checked_mul(self.block_bytes() as u64)
    }

    /// All numbers of whole blocks; a broken last block is left out.
    pub(crate) fn dequantise(self, raw: &[u8]) -> Vec<f32> {
        let pair = |b: &[u8]| [b[0], b[1]];
        let blocks = raw.chunks_exact(self.block_bytes());
        let mut out = Vec::with_capacity(blocks.len() * self.block());
        match self {
            Self::F32 => out.extend(blocks.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
            Self::F16 => out.extend(blocks.map(|b| f16::from_le_bytes(pair(b)).to_f32())),
            Self::Bf16 => out.extend(blocks.map(|b| bf16::from_le_bytes(pair(b)).to_f32())),
            Self::Q8_0 => {
                for block in blocks {
                    let d = f16::from_le_bytes(pair(block)).to_f32();
                    out.extend(block[2..].iter().map(|q| d * f32::from(q.cast_signed())));
                }
            }
            Self::Q4_1 => {
                for block in blocks {
                    let d = f16::from_le_bytes(pair(block)).to_f32();
                    let m = f16::from_le_bytes(pair(&block[2..])).to_f32();
                    let quants = &block[4..];
                    out.extend(quants.iter().map(|q| d * f32::from(q & 15) + m));
                    out.extend(quants.iter().map(|q| d * f32::from(q >> 4) + m));
                }
            }
        }
        out
    }
}
