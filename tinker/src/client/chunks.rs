//! Splits large passes into chunks. Losses are sums, so the gradients of the chunks add up to those of the whole.

use crate::types::ClientConfig;
use minds_core::datum::{Datum, LossInputs};
use std::ops::Range;

/// Splits in order, whenever the next datum would exceed the server's limit of count or bytes.
pub(super) fn split(data: &[Datum], config: &ClientConfig) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut bytes = 0;
    for (i, datum) in data.iter().enumerate() {
        let more = estimate(datum);
        let full = i - start >= config.fwdbwd_max_chunk_len.max(1);
        if i > start && (full || bytes + more > config.fwdbwd_max_chunk_bytes_count) {
            parts.push(start..i);
            (start, bytes) = (i, 0);
        }
        bytes += more;
    }
    parts.push(start..data.len());
    parts
}

/// Estimates the size as the SDK does: 4 bytes per token, 8 per target, 4 per float.
fn estimate(datum: &Datum) -> usize {
    let floats = match datum.inputs() {
        LossInputs::Weights(_) => 1,
        LossInputs::Policy { .. } => 2,
    };
    datum.len() * (4 + 8 + 4 * floats)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datum(len: usize) -> Datum {
        let tokens = vec![1; len];
        Datum::new(tokens.clone(), tokens, LossInputs::Weights(vec![1.0; len])).unwrap()
    }

    fn check(lens: &[usize], max_len: usize, max_bytes: usize, expected: &[Range<usize>]) {
        let data: Vec<Datum> = lens.iter().map(|len| datum(*len)).collect();
        let config = ClientConfig {
            fwdbwd_max_chunk_len: max_len,
            fwdbwd_max_chunk_bytes_count: max_bytes,
            ..ClientConfig::default()
        };
        assert_eq!(split(&data, &config), expected);
    }

    #[test]
    fn passes_are_cut_by_count_and_by_bytes() {
        check(&[1; 5], 2, 1000, &[0..2, 2..4, 4..5]);
        // 16 bytes per position: two data of two make 64.
        check(&[2; 4], 10, 64, &[0..2, 2..4]);
        check(&[2; 4], 10, 63, &[0..1, 1..2, 2..3, 3..4]);
        // One that is too large goes alone.
        check(&[1, 9, 1], 10, 32, &[0..1, 1..2, 2..3]);
        check(&[3, 3], 1, 1, &[0..1, 1..2]);
    }
}
