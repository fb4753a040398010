//! Memory that begins on a cache line, so that no register is loaded from two.

use std::ops::{Deref, DerefMut};

const LINE: usize = 64;

/// A vector whose first element lies on a cache line.
#[derive(Debug)]
pub(crate) struct AlignedVec<T> {
    data: Vec<T>,
    first: usize,
}

impl<T: Copy + Default> AlignedVec<T> {
    /// Creates a vector of `len` zeros.
    pub(crate) fn zeros(len: usize) -> Self {
        let data = vec![T::default(); len + LINE / size_of::<T>()];
        // The offset is a hint: without it, only the alignment is lost.
        let first = data.as_ptr().align_offset(LINE);
        let first = if first < LINE / size_of::<T>() { first } else { 0 };
        let mut aligned = Self { data, first };
        aligned.data.truncate(first + len);
        aligned
    }

    /// Appends zeros up to `len`.
    pub(crate) fn grow(&mut self, len: usize) {
        let mut grown = Self::zeros(len.max(self.len()));
        grown[..self.len()].copy_from_slice(self);
        *self = grown;
    }

    /// Bytes held, without the fraction of a line that alignment takes.
    pub(crate) fn bytes(&self) -> usize {
        self.len() * size_of::<T>()
    }
}

impl<T> Deref for AlignedVec<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.data[self.first..]
    }
}

impl<T> DerefMut for AlignedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.data[self.first..]
    }
}
