//! An environment with meaningless rewards that take the time set in `[simulate]`.

use super::event_log::EventLog;
use crate::config::RunPlan;
use crate::config::simulate::SimulatePlan;
use async_trait::async_trait;
use futures::future::try_join_all;
use minds_core::chat::Message;
use minds_core::environment::{Environment, Item, ScoringContext};
use minds_core::ids::{RolloutId, Token};
use minds_core::random::seeded_rng;
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use minds_simulation::SimulatedService;
use rand::RngExt as _;
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::sleep;

/// Purpose of a random draw: each kind has its own random stream, apart from those of the service.
#[derive(Clone, Copy)]
enum RewardDraw {
    Time = 100,
    Fault,
    Value,
}

/// An environment with endless items and scripted rewards, for all components of a mixture.
pub struct SimulatedEnvironment {
    plan: SimulatePlan,
    seed: u64,
    service: Arc<SimulatedService>,
    log: Arc<EventLog>,
    /// Number of attempts at each reward: a retry has its own random draws.
    attempts: Mutex<HashMap<RolloutId, u64>>,
    missing: AtomicU64,
}

impl SimulatedEnvironment {
    /// Creates the environment of a plan, beside the service that it asks.
    pub fn new(plan: &RunPlan, service: Arc<SimulatedService>, log: Arc<EventLog>) -> Self {
        let (attempts, missing) = Default::default();
        Self { plan: plan.simulate.clone(), seed: plan.pipeline.seed, service, log, attempts, missing }
    }

    /// Number of rewards that failed for good.
    pub fn missing(&self) -> u64 {
        self.missing.load(Relaxed)
    }

    fn key(&self, kind: RewardDraw, id: RolloutId, attempt: u64) -> [u64; 4] {
        [self.seed, kind as u64, id.group.0, u64::from(id.member) << 16 | attempt]
    }

    /// Waits for the scripted time of a reward, and returns a value in [0, 1); fails if the script says so.
    async fn reward(&self, id: RolloutId) -> Result<f32, RewardError> {
        let attempt = {
            let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
            let attempts = attempts.entry(id).or_default();
            *attempts += 1;
            *attempts - 1
        };
        let chance = |kind, attempt| seeded_rng(self.key(kind, id, attempt)).random::<f64>();
        let time = self.plan.reward.draw(self.key(RewardDraw::Time, id, attempt));
        let seconds = self.service.slowness() * time;
        sleep(Duration::from_secs_f64(seconds)).await;
        if chance(RewardDraw::Fault, attempt) < self.plan.missing {
            self.missing.fetch_add(1, Relaxed);
            self.log.record("reward_missing", [("group", id.group.0.into()), ("member", id.member.into())]);
            return Err(RewardError::Environment("scripted to be missing".into()));
        }
        Ok(chance(RewardDraw::Value, 0) as f32)
    }
}

#[async_trait]
impl Environment for SimulatedEnvironment {
    fn id(&self) -> &str {
        "simulated"
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
        let value = self.reward(id).await?;
        // No two queries are equal, so each one reaches the service.
        let ask = |n: usize| {
            let text = format!("{} {} {n}", id.group.0, id.member);
            let prefix: Vec<Token> = text.bytes().map(Token::from).collect();
            scene.oracle.logprobs(prefix.into(), [0].into())
        };
        try_join_all((0..self.plan.queries).map(ask)).await?;
        Ok(Score { reward: Reward::new(value)?, metrics: Metrics::new() })
    }
}
