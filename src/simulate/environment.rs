//! An environment with meaningless rewards that take the time set in `[simulate]`.

use super::service::SimulatedService;
use async_trait::async_trait;
use futures::future::try_join_all;
use minds_core::chat::Message;
use minds_core::environment::{Environment, Item, ScoringContext};
use minds_core::ids::{RolloutId, Token};
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use std::num::NonZeroU64;
use std::sync::Arc;

/// An environment with endless items and scripted rewards.
pub struct SimulatedEnvironment {
    name: String,
    service: Arc<SimulatedService>,
}

impl SimulatedEnvironment {
    /// Creates an environment of this name.
    pub fn new(name: String, service: Arc<SimulatedService>) -> Self {
        Self { name, service }
    }
}

#[async_trait]
impl Environment for SimulatedEnvironment {
    fn id(&self) -> &str {
        &self.name
    }

    fn items(&self) -> NonZeroU64 {
        NonZeroU64::MAX
    }

    fn item(&self, index: u64) -> Item {
        let prompt = vec![Message::user(format!("item {index}"))];
        Item { index, prompt, answer: None, info: serde_json::Value::Null }
    }

    async fn score(&self, scene: ScoringContext<'_>) -> Result<Score, RewardError> {
        let id = scene.rollout.id;
        self.service.reward(id).await?;
        // No two queries are equal, so each one reaches the service.
        let ask = |n: usize| {
            let RolloutId { group, member } = id;
            let prefix = [group.0 as Token, (group.0 >> 32) as Token, member, n as Token];
            scene.oracle.logprobs(prefix.into(), [0].into())
        };
        try_join_all((0..self.service.plan().queries).map(ask)).await?;
        Ok(Score { reward: Reward::new(self.service.value(id))?, metrics: Metrics::new() })
    }
}
