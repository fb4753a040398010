//! The result of a pass over data, and of one that was made in parts.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How far above 0 a logprob may lie: it is a difference of large numbers, and servers round.
pub const LOGPROB_ROUNDING: f32 = 1e-3;

/// Result of a forward or forward_backward pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForwardOutput {
    /// Logprob of each target under the weights at that moment, one vector per datum, as the service reports them.
    /// No logprob should exceed 0 by more than [`LOGPROB_ROUNDING`], but services do return such values.
    pub logprobs: Vec<Vec<f32>>,
    /// Numbers the service reports, by name; `loss:sum` is always there.
    pub metrics: BTreeMap<String, f64>,
}

impl ForwardOutput {
    /// Merges the results of parts, in order, into the result of the whole. The suffix of a metric's name after the
    /// colon is the rule; a metric without a rule, or that only some parts have, is left out.
    #[must_use]
    pub fn merged(parts: Vec<Self>) -> Self {
        let weights: Vec<f64> = parts.iter().map(|part| part.logprobs.len() as f64).collect();
        let mut metrics = BTreeMap::new();
        for key in parts.first().into_iter().flat_map(|first| first.metrics.keys()) {
            let values: Option<Vec<f64>> = parts.iter().map(|part| part.metrics.get(key).copied()).collect();
            if let Some(values) = values {
                reduce(key, &values, &weights, &mut metrics);
            }
        }
        Self { logprobs: parts.into_iter().flat_map(|part| part.logprobs).collect(), metrics }
    }
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

    #[test]
    fn metrics_are_combined_by_their_suffix() {
        let part = |n: usize, values: &[(&str, f64)]| ForwardOutput {
            logprobs: vec![vec![-1.0]; n],
            metrics: values.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect(),
        };
        let keys = ["a:sum", "b:mean", "c:max", "d:min", "e:slack", "f:unique", "plain"];
        let all = |v: f64| keys.map(|k| (k, v));
        let mut first = part(3, &all(2.0));
        first.metrics.insert("only:sum".into(), 1.0);
        let whole = ForwardOutput::merged(vec![first, part(1, &all(6.0))]);
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
        assert_eq!(ForwardOutput::merged(vec![part(1, &[("plain", 5.0)])]).metrics["plain"], 5.0);
    }
}
