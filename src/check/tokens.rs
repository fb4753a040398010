//! Estimates the tokens of a step: a bound for the sampled ones, and measured prompts.

use crate::config::RunPlan;
use minds_core::chat::Renderer;
use minds_core::environment::Environment;
use minds_core::schedule::Schedule;
use serde::Serialize;

/// Items of each environment whose prompts are measured.
const MEASURED: u64 = 16;

/// Estimated tokens of one step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenEstimate {
    /// Most sampled tokens, if every rollout has one turn.
    pub sampled_at_most: u64,
    /// Prompt lengths of the first items, where a tokenizer is present and an environment is built in.
    pub prompts: Option<PromptLengths>,
}

/// Lengths of the first prompts, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PromptLengths {
    /// Number of measured prompts.
    pub items: u64,
    /// Mean length in tokens.
    pub mean: f64,
    /// Largest length in tokens.
    pub longest: u64,
}

impl TokenEstimate {
    /// Estimates a step that samples these environments.
    #[must_use]
    pub fn of(plan: &RunPlan, environments: &[&dyn Environment], renderer: Option<&dyn Renderer>) -> Self {
        let rollouts = plan.pipeline.batch.groups_per_batch.get() as u64 * u64::from(plan.group_size.get());
        let lengths: Vec<u64> = renderer
            .into_iter()
            .flat_map(|renderer| {
                environments.iter().flat_map(move |of| lengths(plan.pipeline.seed, *of, renderer))
            })
            .collect();
        let prompts = lengths.iter().max().map(|longest| PromptLengths {
            items: lengths.len() as u64,
            mean: lengths.iter().sum::<u64>() as f64 / lengths.len() as f64,
            longest: *longest,
        });
        Self { sampled_at_most: rollouts.saturating_mul(plan.sampling.max_tokens as u64), prompts }
    }
}

fn lengths(seed: u64, environment: &dyn Environment, renderer: &dyn Renderer) -> Vec<u64> {
    let schedule = Schedule::of_one(seed, environment.items(), environment.strata());
    (0..MEASURED.min(environment.items().get()))
        .map(|position| environment.item(schedule.item(position).item))
        .filter_map(|item| renderer.prompt(&item.prompt).ok())
        .map(|tokens| tokens.len() as u64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file::EnvConfig;
    use minds_environments::{native, render};
    use minds_models::ByteTokenizer;
    use serde_json::Map;
    use std::sync::Arc;

    #[test]
    fn prompts_are_measured_as_they_will_be_sent() {
        let env = EnvConfig { id: "target_number".into(), ..EnvConfig::default() };
        let plan = RunPlan::embedded(env, minds_models::TINY_RANDOM, None, 0).unwrap();
        let environment = native::load("target_number", &Map::new(), 0).unwrap();
        let renderer = render::renderer("role_colon", Arc::new(ByteTokenizer)).unwrap();
        let tokens = TokenEstimate::of(&plan, &[&*environment], Some(&*renderer));
        // 4 groups of 4, 2048 tokens each: the defaults.
        assert_eq!(tokens.sampled_at_most, 4 * 4 * 2048);
        // It has one item only, and a byte is a token.
        let prompt = renderer.prompt(&environment.item(0).prompt).unwrap().len() as u64;
        assert_eq!(tokens.prompts, Some(PromptLengths { items: 1, mean: prompt as f64, longest: prompt }));
        assert_eq!(TokenEstimate::of(&plan, &[&*environment], None).prompts, None);
    }
}
