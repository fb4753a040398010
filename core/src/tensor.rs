//! The values of a weight tensor, in the format of its file.
//!
//! Readers of files keep the format that they find. An engine that computes on the compact formats moves less memory;
//! for any other, [`Tensor::into_values`] gives the same values, bit for bit.

/// Values that share one scale and offset of a [`QuantizedBlocks`].
pub const BLOCK: usize = 32;

/// A tensor's values, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum Tensor {
    /// Values in single precision.
    Full(Vec<f32>),
    /// The upper halves of their bits; the lower ones are zero.
    Bfloat16(Vec<u16>),
    /// Small codes in blocks of [`BLOCK`].
    QuantizedBlocks(QuantizedBlocks),
}

impl Tensor {
    /// Number of elements in the tensor.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Full(values) => values.len(),
            Self::Bfloat16(halves) => halves.len(),
            Self::QuantizedBlocks(grid) => grid.codes.len(),
        }
    }

    /// Whether it has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All values in single precision, row-major.
    #[must_use]
    pub fn into_values(self) -> Vec<f32> {
        match self {
            Self::Full(values) => values,
            Self::Bfloat16(halves) => halves.into_iter().map(widened).collect(),
            Self::QuantizedBlocks(grid) => grid.values().collect(),
        }
    }

    /// Appends rows; the compact format stays where both have the same.
    pub fn append(&mut self, rows: Self) {
        match (self, rows) {
            (Self::Bfloat16(own), Self::Bfloat16(rows)) => own.extend(rows),
            (Self::QuantizedBlocks(own), Self::QuantizedBlocks(rows)) => {
                own.codes.extend(rows.codes);
                own.steps.extend(rows.steps);
            }
            (own, rows) => {
                let mut values = std::mem::replace(own, Self::Full(Vec::new())).into_values();
                values.extend(rows.into_values());
                *own = Self::Full(values);
            }
        }
    }

    /// Reorders rows: `order(rows, unit)` reorders a vector whose rows have `unit` elements. `width` is the elements of
    /// a row; quantized rows that are not whole blocks become single precision.
    #[must_use]
    pub fn reordered(self, width: usize, order: impl RowOrder) -> Self {
        match self {
            Self::Full(values) => Self::Full(order.apply(values, width)),
            Self::Bfloat16(halves) => Self::Bfloat16(order.apply(halves, width)),
            Self::QuantizedBlocks(grid) if width.is_multiple_of(BLOCK) => {
                Self::QuantizedBlocks(QuantizedBlocks {
                    codes: order.apply(grid.codes, width),
                    steps: order.apply(grid.steps, width / BLOCK),
                })
            }
            Self::QuantizedBlocks(grid) => Self::Full(order.apply(grid.values().collect(), width)),
        }
    }
}

impl From<Vec<f32>> for Tensor {
    fn from(values: Vec<f32>) -> Self {
        Self::Full(values)
    }
}

/// A way to put the rows of a matrix in another order.
pub trait RowOrder {
    /// Reorders a matrix whose rows have `width` elements.
    fn apply<T: Copy>(&self, rows: Vec<T>, width: usize) -> Vec<T>;
}

/// The value whose upper half is given.
#[inline(always)]
#[must_use]
pub fn widened(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// Codes of a few bits on one scale and offset a block: number `i` is
/// `codes[i] * steps[i / BLOCK].0 + steps[i / BLOCK].1`.
///
/// A scale has so few bits that the product is exact; the number is then the same with a fused multiply-add.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizedBlocks {
    codes: Vec<u8>,
    steps: Vec<(f32, f32)>,
}

impl QuantizedBlocks {
    /// `None` where the codes are not as many whole blocks as there are steps, or a scale has over 16 significant bits
    /// (those of files have 11).
    #[must_use]
    pub fn new(codes: Vec<u8>, steps: Vec<(f32, f32)>) -> Option<Self> {
        let exact = |(scale, _): &(f32, f32)| scale.to_bits().trailing_zeros() >= 8;
        (codes.len() == steps.len() * BLOCK && steps.iter().all(exact)).then_some(Self { codes, steps })
    }

    /// Codes of all elements, in order.
    #[must_use]
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// Scale and offset of each block.
    #[must_use]
    pub fn steps(&self) -> &[(f32, f32)] {
        &self.steps
    }

    fn values(&self) -> impl Iterator<Item = f32> {
        let blocks = self.codes.chunks(BLOCK).zip(&self.steps);
        blocks.flat_map(|(codes, (scale, offset))| codes.iter().map(move |&c| f32::from(c) * scale + offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(first: u8, steps: &[(f32, f32)]) -> Tensor {
        let codes = (0..steps.len() * BLOCK).map(|i| first + i as u8).collect();
        Tensor::QuantizedBlocks(QuantizedBlocks::new(codes, steps.to_vec()).unwrap())
    }

    #[test]
    fn a_code_counts_steps_from_the_offset() {
        let values = grid(0, &[(0.5, -1.0), (2.0, 3.0)]).into_values();
        assert_eq!((values[0], values[3], values[32], values[33]), (-1.0, 0.5, 67.0, 69.0));
        assert_eq!(Tensor::Bfloat16(vec![0x3f80, 0xc000]).into_values(), [1.0, -2.0]);
        assert!(QuantizedBlocks::new(vec![0; 33], vec![(1.0, 0.0)]).is_none());
        assert!(QuantizedBlocks::new(vec![0; 32], vec![(0.1, 0.0)]).is_none());
    }

    #[test]
    fn appended_rows_keep_a_common_form_and_always_their_numbers() {
        let a = grid(0, &[(0.5, -1.0)]);
        let b = grid(7, &[(0.25, 2.0)]);
        let expected = [a.clone().into_values(), b.clone().into_values()].concat();
        let mut same = a.clone();
        same.append(b.clone());
        assert!(matches!(same, Tensor::QuantizedBlocks(_)));
        assert_eq!(same.into_values(), expected);
        let mut mixed = a;
        mixed.append(Tensor::Full(b.into_values()));
        assert_eq!(mixed, Tensor::Full(expected));
    }
}
