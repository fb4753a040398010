//! Samples that carry their number in their first tokens, and what is known of each.
//!
//! The number is scattered over all that the first tokens can express, so that they look random: it is multiplied by a
//! factor that has an inverse, and written in the base of the alphabet's size.

use minds_core::ids::Token;
use std::ops::Range;

/// Numbers that can be told apart, at least.
const CAPACITY: u128 = 1 << 32;

/// What is known of a sample.
#[derive(Clone, Copy)]
pub struct SampleRecord {
    /// Number of its tokens.
    pub tokens: u32,
    /// Its last token, if that is the stop token of the request.
    pub stop: Option<Token>,
    /// Number of optimizer steps of the oldest weights that drew a token.
    pub oldest: u64,
    /// Number of optimizer steps of the newest weights that drew a token.
    pub newest: u64,
    /// Optimizer steps of the weights that drew each token, summed over its tokens.
    pub steps: u64,
    /// Whether the sample was in a pass with gradients.
    pub trained: bool,
}

/// A sample in training data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainedSample {
    /// Its number: samples are counted from 0 in the order in which they are drawn.
    pub number: u64,
    /// Number of its tokens.
    pub tokens: u32,
    /// Optimizer steps between the oldest weights that drew a token of it and the weights that are trained.
    pub staleness: u64,
    /// The same for each token and the weights that drew it, summed over its tokens.
    pub token_staleness: u64,
    /// Whether it was in training data before.
    pub again: bool,
}

/// What a pass with gradients trained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainedData {
    /// Number of data in the pass.
    pub data: usize,
    /// Number of tokens of all data, prompts included.
    pub tokens: usize,
    /// The samples in the data.
    pub samples: Vec<TrainedSample>,
    /// Number of trained spans that are not what any sample had: other tokens, another order, or logprobs of other weights.
    pub unknown: usize,
}

/// Codec of numbers in tokens of an alphabet.
pub struct SampleNumbers {
    alphabet: Range<Token>,
    digits: usize,
    /// How many numbers the digits can express.
    modulus: u128,
    /// Multiplied by these modulo the modulus, a number is scattered and restored.
    scatter: u128,
    restore: u128,
}

impl SampleNumbers {
    /// # Panics
    /// If the alphabet has fewer than two tokens.
    pub fn new(alphabet: Range<Token>) -> Self {
        assert!(alphabet.len() > 1, "numbers need at least two tokens");
        let base = alphabet.len() as u128;
        let digits = (1..).find(|digits| base.pow(*digits) >= CAPACITY).expect("powers grow");
        let modulus = base.pow(digits);
        // Near the golden ratio, neighbors lie far apart.
        let near = (modulus as f64 / 1.618) as u128;
        let invertible = (near..).find_map(|factor| Some((factor, inverse(factor, modulus)?)));
        let (scatter, restore) = invertible.expect("every modulus has an invertible factor");
        Self { alphabet, digits: digits as usize, modulus, scatter, restore }
    }

    /// Number of tokens of a number.
    pub fn digits(&self) -> usize {
        self.digits
    }

    /// The tokens of a number, modulo what they can express.
    pub fn encode(&self, number: u64) -> Vec<Token> {
        let base = self.alphabet.len() as u128;
        let mut scattered = u128::from(number) * self.scatter % self.modulus;
        let mut next = || {
            let digit = (scattered % base) as Token;
            scattered /= base;
            self.alphabet.start + digit
        };
        (0..self.digits).map(|_| next()).collect()
    }

    /// The number at the start of these tokens.
    pub fn decode(&self, tokens: &[Token]) -> Option<u64> {
        let base = self.alphabet.len() as u128;
        let scattered = tokens.get(..self.digits)?.iter().rev().try_fold(0, |number, token| {
            let digit = self.alphabet.contains(token).then(|| u128::from(token - self.alphabet.start))?;
            Some(number * base + digit)
        })?;
        u64::try_from(scattered * self.restore % self.modulus).ok()
    }
}

/// Fewest tokens of a sample with its number in tokens of this alphabet: those of the number and one more.
///
/// # Panics
/// If the alphabet has fewer than two tokens.
#[must_use]
pub fn fewest_tokens(alphabet: Range<Token>) -> usize {
    SampleNumbers::new(alphabet).digits() + 1
}

/// The inverse of a number modulo another one, by the extended Euclidean algorithm; `None` if they share a divisor.
fn inverse(number: u128, modulus: u128) -> Option<u128> {
    let [mut old, mut new] = [number as i128, modulus as i128];
    let [mut old_factor, mut factor] = [1_i128, 0];
    while new != 0 {
        let quotient = old / new;
        [old, new] = [new, old - quotient * new];
        [old_factor, factor] = [factor, old_factor - quotient * factor];
    }
    (old == 1).then(|| old_factor.rem_euclid(modulus as i128) as u128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_read_as_it_is_written() {
        for alphabet in [97..123, 300..2000, 0..2, 7..100_000] {
            let numbers = SampleNumbers::new(alphabet.clone());
            for number in (0..1000).chain([1 << 20, (1 << 32) - 1]) {
                let tokens = numbers.encode(number);
                assert_eq!(tokens.len(), numbers.digits());
                assert!(tokens.iter().all(|token| alphabet.contains(token)));
                assert_eq!(numbers.decode(&tokens), Some(number), "{alphabet:?}");
            }
            assert_eq!(numbers.decode(&[alphabet.end; 64]), None, "a token outside the alphabet");
            assert_eq!(numbers.decode(&[alphabet.start]).is_some(), numbers.digits() == 1);
        }
    }

    /// 3 · 5 = 15 = 2 · 7 + 1, and 6 shares the divisor 3 with 9.
    #[test]
    fn inverses_are_those_of_arithmetic() {
        assert_eq!([inverse(3, 7), inverse(6, 9)], [Some(5), None]);
    }
}
