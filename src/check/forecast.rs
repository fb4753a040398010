//! Forecasts what a run costs, from the estimate of its tokens.

use super::TokenEstimate;
use crate::config::RunPlan;
use minds_core::usage::{TokenPrices, TokenUsage};
use serde::Serialize;

/// Most tokens of a step and their price, if every rollout has one turn. Logprob queries, measurements and evaluations
/// are not included: their number is known only when rewards make them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CostForecast {
    /// Most billed tokens of a step, with prompts of the mean length.
    pub tokens_per_step: TokenUsage,
    /// Optimizer steps that the run has left.
    pub steps: u64,
    /// Price of a step in USD, where the prices of the model are known.
    pub usd_per_step: Option<f64>,
    /// Price of all steps left in USD.
    pub usd_total: Option<f64>,
}

impl CostForecast {
    /// Forecasts the steps that are left of a run on a server; `None` if the lengths of its prompts are unknown.
    #[must_use]
    pub fn of(
        plan: &RunPlan,
        tokens: &TokenEstimate,
        steps: u64,
        prices: Option<&TokenPrices>,
    ) -> Option<Self> {
        let mean = tokens.prompts.as_ref().filter(|_| plan.service.engine().is_none())?.mean;
        let groups = plan.pipeline.batch.groups_per_batch.get() as f64;
        let members = f64::from(plan.group_size.get());
        let prompt_tokens = |prompts: f64| (mean * prompts).ceil() as u64;
        let tokens_per_step = TokenUsage {
            prefill_uncached: prompt_tokens(groups),
            prefill_cached: prompt_tokens(groups * (members - 1.0)),
            sampled: tokens.sampled_at_most,
            trained: prompt_tokens(groups * members).saturating_add(tokens.sampled_at_most),
        };
        let usd_per_step = prices.map(|prices| prices.usd(&tokens_per_step));
        let usd_total = usd_per_step.map(|usd| usd * steps as f64);
        Some(Self { tokens_per_step, steps, usd_per_step, usd_total })
    }

    /// The forecast as a line for people.
    #[must_use]
    pub fn line(&self) -> String {
        let TokenUsage { prefill_uncached, prefill_cached, sampled, trained } = self.tokens_per_step;
        let tokens = format!(
            "at most {prefill_uncached} tokens prefilled, {prefill_cached} cached, {sampled} sampled, {trained} trained \
             a step and turn"
        );
        match (self.usd_per_step, self.usd_total) {
            (Some(step), Some(total)) => {
                format!("{tokens}: {step:.4} USD a step, {total:.2} USD in {} steps", self.steps)
            }
            _ => tokens,
        }
    }
}
