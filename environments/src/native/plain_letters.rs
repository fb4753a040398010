//! Write letters and nothing else: a reward that even a model with random weights can climb.
//!
//! The reward is the share of ASCII letters among the characters of the answer, from 0 to 1; an empty answer gets 0.
//! It says nothing about language. It is for trying out a pipeline, a service or a machine without a trained model.

use crate::args;
use crate::error::EnvError;
use crate::native::EnvInfo;
use async_trait::async_trait;
use minds_core::chat::Message;
use minds_core::environment::{Environment, Item, ScoringContext};
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use serde_json::{Map, Value, json};
use std::num::NonZeroU64;
use std::sync::Arc;

const ID: &str = "plain_letters";

/// Entry of this environment in the registry.
pub const INFO: EnvInfo = EnvInfo {
    id: ID,
    about: "write letters and nothing else; even a random model can learn it",
    args: &[],
    queries_model: false,
    load,
};

/// Topics, so that prompts differ.
const TOPICS: [&str; 8] = ["rain", "bread", "stone", "light", "wool", "salt", "clay", "smoke"];

fn load(given: &Map<String, Value>, _seed: u64) -> Result<Arc<dyn Environment>, EnvError> {
    args::resolve(ID, INFO.args, given)?;
    Ok(Arc::new(PlainLetters))
}

struct PlainLetters;

#[async_trait]
impl Environment for PlainLetters {
    fn id(&self) -> &str {
        ID
    }

    fn items(&self) -> NonZeroU64 {
        NonZeroU64::MIN.saturating_add(TOPICS.len() as u64 - 1)
    }

    fn item(&self, index: u64) -> Item {
        let index = index % self.items();
        let topic = TOPICS[usize::try_from(index).unwrap_or_default() % TOPICS.len()];
        let prompt = vec![Message::user(format!("Write about {topic} in letters only."))];
        Item { index, prompt, answer: None, info: json!({}) }
    }

    fn queries_policy(&self) -> bool {
        false
    }

    async fn score(&self, scene: ScoringContext<'_>) -> Result<Score, RewardError> {
        let share = share(scene.answer());
        Ok(Score { reward: Reward::new(share)?, metrics: Metrics::new() })
    }
}

/// Share of ASCII letters among the characters.
fn share(answer: &str) -> f32 {
    let all = answer.chars().count();
    let letters = answer.chars().filter(char::is_ascii_alphabetic).count();
    if all == 0 { 0.0 } else { letters as f32 / all as f32 }
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn the_reward_is_the_share_of_letters() {
        for (answer, expected) in [("", 0.0), ("abcD", 1.0), ("a1é ", 0.25), ("123", 0.0)] {
            assert_eq!(share(answer), expected, "{answer:?}");
        }
    }
}
