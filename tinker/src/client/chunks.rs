//! Large passes in parts, and their results put together again.
//!
//! Losses are sums, so the gradients of the parts add up to those of the whole.

use crate::types::ClientConfig;
use minds_core::backend::Forward;
use minds_core::datum::{Datum, LossInputs};
use std::collections::BTreeMap;
use std::ops::Range;

/// Where to cut: in order, whenever the next datum would exceed the server's count or bytes.
pub(super) fn split(data: &[Datum], config: &ClientConfig) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let (mut start, mut bytes) = (0, 0);
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

/// As the SDK estimates: 4 bytes per token, 8 per target, 4 per float.
fn estimate(datum: &Datum) -> usize {
    let floats = match datum.inputs() {
        LossInputs::Weights(_) => 1,
        LossInputs::Policy { .. } => 2,
    };
    datum.len() * (4 + 8 + 4 * floats)
}

/// The results of the parts as the result of the whole. The part of a metric's name behind the colon says how.
pub(super) fn merge(parts: Vec<Forward>) -> Forward {
    let weights: Vec<f64> = parts.iter().map(|part| part.logprobs.len() as f64).collect();
    let mut metrics = BTreeMap::new();
    for key in parts.first().into_iter().flat_map(|first| first.metrics.keys()) {
        let values: Option<Vec<f64>> = parts.iter().map(|part| part.metrics.get(key).copied()).collect();
        // A metric that only some parts have means nothing for the whole.
        if let Some(values) = values {
            reduce(key, &values, &weights, &mut metrics);
        }
    }
    Forward { logprobs: parts.into_iter().flat_map(|part| part.logprobs).collect(), metrics }
}

fn reduce(key: &str, values: &[f64], weights: &[f64], out: &mut BTreeMap<String, f64>) {
    let total: f64 = weights.iter().sum();
    let mean = || {
        let weighted: f64 = values.iter().zip(weights).map(|(v, w)| v * w).sum();
        if total > 0.0 { weighted / total } else { values.iter().sum::<f64>() / values.len() as f64 }
    };
    let max = || values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let value = match key.rsplit_once(':').map(|(_, how)| how) {
        Some("sum") => values.iter().sum(),
        Some("mean") => mean(),
        Some("max") => max(),
        Some("min") => values.iter().copied().fold(f64::INFINITY, f64::min),
        Some("slack") => max() - mean(),
        Some("hash2" | "hash_unordered") => {
            // The SDK adds modulo 2^64; a sum of floats of that size has no finer grain.
            values.iter().sum::<f64>().rem_euclid(2f64.powi(64))
        }
        Some("unique") => {
            for (i, value) in values.iter().enumerate().skip(1) {
                out.insert(format!("{key}_{i}"), *value);
            }
            values[0]
        }
        // No rule: good for the whole only if there is one part.
        _ if values.len() == 1 => values[0],
        _ => return,
    };
    out.insert(key.into(), value);
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

    #[test]
    fn metrics_are_put_together_by_their_suffix() {
        let part = |n: usize, values: &[(&str, f64)]| Forward {
            logprobs: vec![vec![-1.0]; n],
            metrics: values.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect(),
        };
        let keys = ["a:sum", "b:mean", "c:max", "d:min", "e:slack", "f:unique", "plain"];
        let all = |v: f64| keys.map(|k| (k, v));
        let mut first = part(3, &all(2.0));
        first.metrics.insert("only:sum".into(), 1.0);
        let whole = merge(vec![first, part(1, &all(6.0))]);
        // By hand: the mean is (3 * 2 + 1 * 6) / 4 = 3, the slack 6 - 3.
        let expected = [
            ("a:sum", 8.0),
            ("b:mean", 3.0),
            ("c:max", 6.0),
            ("d:min", 2.0),
            ("e:slack", 3.0),
            ("f:unique", 2.0),
        ];
        let mut expected: BTreeMap<String, f64> = expected.map(|(k, v)| (k.to_owned(), v)).into();
        expected.insert("f:unique_1".into(), 6.0);
        assert_eq!(whole.metrics, expected);
        assert_eq!(whole.logprobs.len(), 4);
        assert_eq!(merge(vec![part(1, &[("plain", 5.0)])]).metrics["plain"], 5.0);
    }
}
