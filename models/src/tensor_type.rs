//! Tensor encodings, read without rounding.
//!
//! Blocks are those of ggml: Q8_0 is 32 numbers `d * q` with an f16 `d`; Q4_1 is 32 numbers `d * q + m` with f16
//! `d` and `m`, the low halves of the 16 bytes first (github.com/ggml-org/ggml, src/ggml-common.h).

use half::f16;
use minds_core::tensor::{BLOCK, QuantizedBlocks, Tensor};

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

    /// Numbers per block; a row consists of complete blocks.
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

    /// Decodes all complete blocks; a truncated last block is omitted.
    pub(crate) fn decode(self, raw: &[u8]) -> Tensor {
        let half = |b: &[u8]| f16::from_le_bytes([b[0], b[1]]).to_f32();
        let blocks = raw.chunks_exact(self.block_bytes());
        let grid = |steps: &dyn Fn(&[u8]) -> (f32, f32), codes: &dyn Fn(&[u8], &mut Vec<u8>)| {
            let mut all = Vec::with_capacity(blocks.len() * BLOCK);
            blocks.clone().for_each(|block| codes(block, &mut all));
            QuantizedBlocks::new(all, blocks.clone().map(steps).collect())
                .expect("every block gives as many codes as it has")
        };
        match self {
            Self::F32 => Tensor::Full(blocks.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()),
            Self::F16 => Tensor::Full(blocks.map(half).collect()),
            Self::Bf16 => Tensor::Bfloat16(blocks.map(|b| u16::from_le_bytes([b[0], b[1]])).collect()),
            // d * q is d * (q + 128) - 128 d: all three are exact, for d has 11 bits and q has 8.
            Self::Q8_0 => Tensor::QuantizedBlocks(grid(&|b| (half(b), -128.0 * half(b)), &|block, codes| {
                codes.extend(block[2..].iter().map(|q| q ^ 0x80));
            })),
            Self::Q4_1 => Tensor::QuantizedBlocks(grid(&|b| (half(b), half(&b[2..])), &|block, codes| {
                codes.extend(block[4..].iter().map(|q| q & 15));
                codes.extend(block[4..].iter().map(|q| q >> 4));
            })),
        }
    }
}
