//! Numbers as the little-endian bytes that the wire carries.
//!
//! A little-endian machine converts nothing: numbers become bytes by sharing their memory, and bytes become numbers by
//! borrowing the same memory where it is aligned, or by one copy where it is not.

use bytemuck::Pod;
use bytes::Bytes;
use std::borrow::Cow;

/// A number type of the wire format.
pub trait WireNumber: Pod + Send + Sync {
    /// The same number with its bytes reversed.
    #[must_use]
    fn swapped(self) -> Self;
}

impl WireNumber for i32 {
    fn swapped(self) -> Self {
        self.swap_bytes()
    }
}

impl WireNumber for u32 {
    fn swapped(self) -> Self {
        self.swap_bytes()
    }
}

impl WireNumber for i64 {
    fn swapped(self) -> Self {
        self.swap_bytes()
    }
}

impl WireNumber for f32 {
    fn swapped(self) -> Self {
        Self::from_bits(self.to_bits().swap_bytes())
    }
}

/// The length of the bytes is not a multiple of the number's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes are not a multiple of {size} bytes per number")]
pub struct ByteLengthError {
    /// Length of the input in bytes.
    pub len: usize,
    /// Size of one number in bytes.
    pub size: usize,
}

/// Reads bytes as numbers.
///
/// # Errors
/// The length is not a multiple of the number's size.
pub fn read<T: WireNumber>(bytes: &[u8]) -> Result<Cow<'_, [T]>, ByteLengthError> {
    let size = size_of::<T>();
    if !bytes.len().is_multiple_of(size) {
        return Err(ByteLengthError { len: bytes.len(), size });
    }
    if cfg!(target_endian = "big") {
        let numbers: Vec<T> = bytemuck::pod_collect_to_vec(bytes);
        return Ok(Cow::Owned(numbers.into_iter().map(WireNumber::swapped).collect()));
    }
    Ok(match bytemuck::try_cast_slice(bytes) {
        Ok(numbers) => Cow::Borrowed(numbers),
        Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(bytes)),
    })
}

/// Writes numbers as bytes that share the memory of `owner`.
#[must_use]
pub fn share<T: WireNumber, O: AsRef<[T]> + Send + 'static>(owner: O) -> Bytes {
    struct AsBytes<T, O>(O, std::marker::PhantomData<fn() -> T>);

    impl<T: WireNumber, O: AsRef<[T]>> AsRef<[u8]> for AsBytes<T, O> {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(self.0.as_ref())
        }
    }

    if cfg!(target_endian = "big") {
        let swapped: Vec<T> = owner.as_ref().iter().map(|n| n.swapped()).collect();
        return Bytes::copy_from_slice(bytemuck::cast_slice(&swapped));
    }
    Bytes::from_owner(AsBytes(owner, std::marker::PhantomData))
}

/// Writes numbers as bytes, one by one.
#[must_use]
pub fn collect<T: WireNumber>(numbers: impl IntoIterator<Item = T>) -> Bytes {
    share(numbers.into_iter().collect::<Vec<T>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_at_any_alignment() {
        let numbers = [1.5f32, -0.0, f32::MAX, 3e-40];
        let bytes = share(numbers.to_vec());
        assert_eq!(&bytes[..4], 1.5f32.to_le_bytes());
        assert_eq!(&*read::<f32>(&bytes).unwrap(), numbers);
        let mut shifted = vec![0u8];
        shifted.extend_from_slice(&bytes);
        assert_eq!(&*read::<f32>(&shifted[1..]).unwrap(), numbers);
        assert_eq!(read::<i64>(&bytes[..12]), Err(ByteLengthError { len: 12, size: 8 }));
    }
}
