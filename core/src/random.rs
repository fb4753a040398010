//! Randomness as a function of its key: the same in every process, and after every resume.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The random generator that belongs to this key alone.
#[must_use]
pub fn seeded_rng(key: [u64; 4]) -> ChaCha8Rng {
    let mut bytes = [0; 32];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(key) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(bytes)
}
