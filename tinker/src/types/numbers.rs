//! Numbers as the little-endian bytes that the wire carries.
//!
//! A little-endian machine converts nothing: numbers become bytes by sharing their memory, and bytes become numbers by
//! borrowing the same memory where it is aligned, or by one copy where it is not.

use bytemuck::Pod;
use bytes::Bytes;
use std::borrow::Cow;

/// The length of the bytes is not a multiple of the number's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes are not a multiple of {size} bytes per number")]
pub struct ByteLengthError {
    /// Length of the input in bytes.
    pub len: usize,
    /// Size of one number in bytes.
    pub size: usize,
}

/// The bytes of numbers in the other order, each by itself.
fn reversed(bytes: &[u8], size: usize) -> Vec<u8> {
    bytes.chunks(size).flat_map(|number| number.iter().rev().copied()).collect()
}

/// Reads bytes as numbers.
///
/// # Errors
/// The length is not a multiple of the number's size.
pub fn read<T: Pod>(bytes: &[u8]) -> Result<Cow<'_, [T]>, ByteLengthError> {
    let size = size_of::<T>();
    if !bytes.len().is_multiple_of(size) {
        return Err(ByteLengthError { len: bytes.len(), size });
    }
    if cfg!(target_endian = "big") {
        return Ok(Cow::Owned(bytemuck::pod_collect_to_vec(&reversed(bytes, size))));
    }
    Ok(match bytemuck::try_cast_slice(bytes) {
        Ok(numbers) => Cow::Borrowed(numbers),
        Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(bytes)),
    })
}

/// Writes numbers as bytes that share the memory of `owner`.
#[must_use]
pub fn share<T: Pod, O: AsRef<[T]> + Send + 'static>(owner: O) -> Bytes {
    struct AsBytes<T, O>(O, std::marker::PhantomData<fn() -> T>);

    impl<T: Pod, O: AsRef<[T]>> AsRef<[u8]> for AsBytes<T, O> {
        fn as_ref(&self) -> &[u8] {
            bytemuck::cast_slice(self.0.as_ref())
        }
    }

    if cfg!(target_endian = "big") {
        return reversed(bytemuck::cast_slice(owner.as_ref()), size_of::<T>()).into();
    }
    Bytes::from_owner(AsBytes(owner, std::marker::PhantomData))
}

/// Writes numbers as bytes, one by one.
#[must_use]
pub fn collect<T: Pod + Send>(numbers: impl IntoIterator<Item = T>) -> Bytes {
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
