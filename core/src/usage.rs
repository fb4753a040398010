//! Tokens that a service bills, and their prices.
//!
//! A service bills four kinds of tokens, each at a price of its own. A sample bills its prompt once per sequence: the
//! first at the prefill price, except for the prefix that the cache had, and the others at the cached one.

use crate::datum::Datum;
use crate::sampling::{SampleRequest, SampleResponse};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::{Add, Sub};

/// Prices are quoted per this many tokens.
const MILLION: f64 = 1e6;

/// Billed tokens by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    /// Prompt tokens that were not in the prefix cache.
    pub prefill_uncached: u64,
    /// Prompt tokens from the prefix cache.
    pub prefill_cached: u64,
    /// Tokens that the model sampled.
    pub sampled: u64,
    /// Input tokens of training passes.
    pub trained: u64,
}

impl TokenUsage {
    /// Tokens that this response bills.
    #[must_use]
    pub fn of_sample(request: &SampleRequest, response: &SampleResponse) -> Self {
        let prompt = request.prompt.len() as u64;
        let hits = (response.cached_prompt_tokens as u64).min(prompt);
        Self {
            prefill_uncached: prompt - hits,
            prefill_cached: hits + prompt * (request.num_samples as u64).saturating_sub(1),
            sampled: response.sequences.iter().map(|sequence| sequence.tokens.len() as u64).sum(),
            trained: 0,
        }
    }

    /// Most tokens that this request can bill: nothing is cached, and every completion reaches its limit.
    #[must_use]
    pub fn most_of_sample(request: &SampleRequest) -> Self {
        let prompt = request.prompt.len() as u64;
        let samples = request.num_samples as u64;
        Self {
            prefill_uncached: prompt,
            prefill_cached: prompt * samples.saturating_sub(1),
            sampled: samples.saturating_mul(request.params.max_tokens as u64),
            trained: 0,
        }
    }

    /// Tokens that a training pass over these data bills.
    #[must_use]
    pub fn of_pass<'a>(data: impl IntoIterator<Item = &'a Datum>) -> Self {
        Self { trained: data.into_iter().map(|datum| datum.len() as u64).sum(), ..Self::default() }
    }

    /// Tokens that a pass without gradients bills.
    #[must_use]
    pub fn of_forward(data: &[Datum]) -> Self {
        Self { prefill_uncached: Self::of_pass(data).trained, ..Self::default() }
    }
}

impl Add for TokenUsage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            prefill_uncached: self.prefill_uncached.saturating_add(other.prefill_uncached),
            prefill_cached: self.prefill_cached.saturating_add(other.prefill_cached),
            sampled: self.sampled.saturating_add(other.sampled),
            trained: self.trained.saturating_add(other.trained),
        }
    }
}

impl Sub for TokenUsage {
    type Output = Self;

    /// The difference by kind; 0 where the other one is larger.
    fn sub(self, other: Self) -> Self {
        Self {
            prefill_uncached: self.prefill_uncached.saturating_sub(other.prefill_uncached),
            prefill_cached: self.prefill_cached.saturating_sub(other.prefill_cached),
            sampled: self.sampled.saturating_sub(other.sampled),
            trained: self.trained.saturating_sub(other.trained),
        }
    }
}

/// Prices of one model in USD per million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenPrices {
    /// Price of computed prompt tokens.
    pub prefill: f64,
    /// Price of prompt tokens from the prefix cache.
    pub cached_prefill: f64,
    /// Price of sampled tokens.
    pub sample: f64,
    /// Price of trained tokens.
    pub train: f64,
}

impl TokenPrices {
    /// Prices of a model in a list as Tinker publishes it: a JSON array of objects with `tinker_id` and the four prices,
    /// numbers or texts such as `"$1.87"`. `None` if the model is not listed.
    ///
    /// # Errors
    /// The text is not such a list, or the entry of the model lacks a price.
    pub fn in_list(list: &str, model: &str) -> Result<Option<Self>, String> {
        let entries: Vec<Value> =
            serde_json::from_str(list).map_err(|error| format!("is not a JSON list of models: {error}"))?;
        let Some(entry) = entries.iter().find(|entry| entry["tinker_id"] == model) else { return Ok(None) };
        let price = |key: &str| {
            price(&entry[key])
                .ok_or_else(|| format!("has no valid price `{key}` for {model}: {}", entry[key]))
        };
        Ok(Some(Self {
            prefill: price("prefill")?,
            cached_prefill: price("cached_prefill")?,
            sample: price("sample")?,
            train: price("train")?,
        }))
    }

    /// Price of these tokens in USD.
    #[must_use]
    pub fn usd(&self, usage: &TokenUsage) -> f64 {
        let sum = usage.prefill_uncached as f64 * self.prefill
            + usage.prefill_cached as f64 * self.cached_prefill
            + usage.sampled as f64 * self.sample
            + usage.trained as f64 * self.train;
        sum / MILLION
    }
}

/// A price that is finite and not negative.
fn price(written: &Value) -> Option<f64> {
    let price = match written {
        Value::String(text) => text.trim().trim_start_matches('$').replace(',', "").parse().ok()?,
        number => number.as_f64()?,
    };
    (0.0..f64::INFINITY).contains(&price).then_some(price)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::SamplingParams;

    const LIST: &str = r#"[
        {"tinker_id": "a/b", "prefill": "$0.50", "cached_prefill": "$0.05", "sample": "$1,000.00", "train": 2},
        {"tinker_id": "a/c", "prefill": "$0.50", "cached_prefill": "-", "sample": "$1", "train": "$2"}
    ]"#;

    #[test]
    fn prices_are_read_as_they_are_published() {
        let prices = TokenPrices::in_list(LIST, "a/b").unwrap().unwrap();
        assert_eq!(prices, TokenPrices { prefill: 0.5, cached_prefill: 0.05, sample: 1000.0, train: 2.0 });
        let million = TokenUsage { prefill_uncached: 2_000_000, trained: 1_000_000, ..TokenUsage::default() };
        assert!((prices.usd(&million) - 3.0).abs() < 1e-12);
        assert_eq!(TokenPrices::in_list(LIST, "a/d"), Ok(None));
        assert!(TokenPrices::in_list(LIST, "a/c").unwrap_err().contains("`cached_prefill`"));
        assert!(TokenPrices::in_list("{}", "a/b").is_err());
    }

    #[test]
    fn a_prompt_is_computed_once_and_cached_for_the_other_samples() {
        let request = SampleRequest::new([1, 2, 3, 4, 5].into(), 3, SamplingParams::plain(10));
        let most = TokenUsage::most_of_sample(&request);
        let expected = TokenUsage { prefill_uncached: 5, prefill_cached: 10, sampled: 30, trained: 0 };
        assert_eq!(most, expected);
        let response = SampleResponse {
            sequences: vec![],
            prompt_logprobs: None,
            topk_prompt_logprobs: None,
            target_prompt_logprobs: None,
            cached_prompt_tokens: 4,
        };
        let billed = TokenUsage::of_sample(&request, &response);
        assert_eq!(billed, TokenUsage { prefill_uncached: 1, prefill_cached: 14, ..TokenUsage::default() });
    }
}
