//! An environment with meaningless rewards that take the time set in `[simulate]`.

use super::event_log::EventLog;
use super::workers::{SimulatedWorkers, SimulatedWorkersOptions};
use crate::config::RunPlan;
use crate::config::simulate::SimulatePlan;
use async_trait::async_trait;
use futures::future::try_join_all;
use minds_core::chat::Message;
use minds_core::environment::{Environment, Item, ScoringContext};
use minds_core::ids::{RolloutId, Token};
use minds_core::random::seeded_rng;
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use minds_simulation::{SimulatedLatency, SimulatedService};
use rand::{Rng, RngExt as _};
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
    Broker,
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
    /// Workers behind a broker, if rewards are computed there.
    workers: Option<SimulatedWorkers>,
    redelivered: AtomicU64,
    /// Longest time of a reward on a worker.
    limit: Duration,
}

impl SimulatedEnvironment {
    /// Creates the environment of a plan, beside the service that it asks.
    pub fn new(plan: &RunPlan, service: Arc<SimulatedService>, log: Arc<EventLog>) -> Self {
        let workers = plan.nats.as_ref().map(|nats| {
            SimulatedWorkers::new(SimulatedWorkersOptions {
                slots: plan.simulate.reward_slots(plan.pipeline.scorers),
                losses: plan.simulate.worker_losses(),
                ack_wait: nats.ack_wait,
                max_deliver: nats.max_deliver,
            })
        });
        Self {
            plan: plan.simulate.clone(),
            seed: plan.pipeline.seed,
            service,
            log,
            attempts: Mutex::default(),
            missing: AtomicU64::new(0),
            workers,
            redelivered: AtomicU64::new(0),
            limit: plan.score_timeout,
        }
    }

    /// Number of rewards that failed for good.
    pub fn missing(&self) -> u64 {
        self.missing.load(Relaxed)
    }

    /// Job slots of all workers, if there are any.
    pub fn job_slots(&self) -> Option<usize> {
        self.workers.as_ref().map(SimulatedWorkers::slots)
    }

    /// Number of jobs that were delivered again because their worker went.
    pub fn redelivered(&self) -> u64 {
        self.redelivered.load(Relaxed)
    }

    fn key(&self, kind: RewardDraw, id: RolloutId, attempt: u64) -> [u64; 4] {
        [self.seed, kind as u64, id.group.0, u64::from(id.member) << 16 | attempt]
    }

    /// Number of earlier attempts at a reward.
    fn attempt(&self, id: RolloutId) -> u64 {
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let attempts = attempts.entry(id).or_default();
        *attempts += 1;
        *attempts - 1
    }

    /// Waits for the scripted time of a reward, and returns a value in [0, 1); fails if the script says so.
    async fn reward(&self, id: RolloutId, attempt: u64) -> Result<f32, RewardError> {
        let chance = |kind, attempt| seeded_rng(self.key(kind, id, attempt)).random::<f64>();
        let time = self.plan.reward.draw(self.key(RewardDraw::Time, id, attempt));
        let seconds = self.service.slowness() * time;
        if self.workers.is_some() && seconds > self.limit.as_secs_f64() {
            sleep(self.limit).await;
            return Err(RewardError::TimedOut(self.limit.as_secs()));
        }
        sleep(Duration::from_secs_f64(seconds)).await;
        if chance(RewardDraw::Fault, attempt) < self.plan.missing {
            self.missing.fetch_add(1, Relaxed);
            self.log.record("reward_missing", [("group", id.group.0.into()), ("member", id.member.into())]);
            return Err(RewardError::Environment("scripted to be missing".into()));
        }
        Ok(chance(RewardDraw::Value, 0) as f32)
    }

    /// Computes a reward and makes its queries, each of which takes two of the delays.
    async fn compute(
        &self,
        scene: &ScoringContext<'_>,
        attempt: u64,
        delays: &mut BrokerDelays,
    ) -> Result<Score, RewardError> {
        let id = scene.rollout.id;
        let value = self.reward(id, attempt).await?;
        // No two queries are equal, so each one reaches the service.
        let queries = (0..self.plan.queries).map(|n| {
            let text = format!("{} {} {n}", id.group.0, id.member);
            let prefix: Vec<Token> = text.bytes().map(Token::from).collect();
            let question = delays.draw();
            let answer = delays.draw();
            async move {
                pause(question).await;
                let logprobs = scene.oracle.logprobs(prefix.into(), [0].into()).await;
                pause(answer).await;
                logprobs
            }
        });
        try_join_all(queries).await?;
        Ok(Score { reward: Reward::new(value)?, metrics: Metrics::new() })
    }

    fn delays(&self, id: RolloutId, attempt: u64) -> BrokerDelays {
        let draws = seeded_rng(self.key(RewardDraw::Broker, id, attempt));
        BrokerDelays { delay: *self.plan.broker_delay, draws: Box::new(draws) }
    }

    /// Computes a reward on a worker, again if the worker goes.
    async fn compute_remotely(
        &self,
        workers: &SimulatedWorkers,
        scene: &ScoringContext<'_>,
        attempt: u64,
    ) -> Result<Score, RewardError> {
        let id = scene.rollout.id;
        let job = || async {
            let mut delays = self.delays(id, attempt);
            pause(delays.draw()).await;
            let score = self.compute(scene, attempt, &mut delays).await;
            pause(delays.draw()).await;
            score
        };
        let record =
            |event| self.log.record(event, [("group", id.group.0.into()), ("member", id.member.into())]);
        let redelivered = || {
            self.redelivered.fetch_add(1, Relaxed);
            record("redelivered");
        };
        workers.run(job, redelivered).await.unwrap_or_else(|| {
            record("dead_letter");
            Err(RewardError::Environment("no worker finished it".into()))
        })
    }
}

/// Times that the messages of one job take through the broker, in their order.
struct BrokerDelays {
    delay: SimulatedLatency,
    draws: Box<dyn Rng + Send>,
}

impl BrokerDelays {
    /// Seconds that the next message takes.
    fn draw(&mut self) -> f64 {
        self.delay.draw([self.draws.random(), 0, 0, 0])
    }
}

/// Waits for a number of seconds; a timer would round no time at all up to a millisecond.
async fn pause(seconds: f64) {
    if seconds > 0.0 {
        sleep(Duration::from_secs_f64(seconds)).await;
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

    /// A worker does; the time in the queue does not count.
    fn limits_reward_time(&self) -> bool {
        self.workers.is_some()
    }

    fn queries_policy(&self) -> bool {
        self.plan.queries > 0
    }

    async fn score(&self, scene: ScoringContext<'_>) -> Result<Score, RewardError> {
        let id = scene.rollout.id;
        let attempt = self.attempt(id);
        match &self.workers {
            Some(workers) => self.compute_remotely(workers, &scene, attempt).await,
            None => self.compute(&scene, attempt, &mut self.delays(id, attempt)).await,
        }
    }
}
