//! A Python environment as the pipeline sees it: items, and rollouts that it drives by itself.

use super::message::{ChatMessage, EnvDescription, ToWorker};
use super::model_profile::ModelProfile;
use super::options::{BadReward, PythonOptions};
use super::pool::WorkerPool;
use super::replay::ReplaySampler;
use super::request_handler::RequestHandler;
use super::rollout::{RolloutLimits, WorkerRollout};
use super::tools;
use super::variety::{CHECKED_ITEMS, PromptVariety};
use super::worker_process::WorkerProcess;
use crate::error::EnvError;
use async_trait::async_trait;
use futures::future::join_all;
use minds_core::environment::{
    Environment, Item, Oracle, RolloutSession, ScoringContext, SelfDrivenEnvironment, SessionError,
    SessionRollout,
};
use minds_core::reward::{RewardError, Score};
use minds_core::service::SamplingBackend;
use serde_json::{Value, json};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::OwnedSemaphorePermit;
use tracing::warn;

/// An environment whose code is Python.
pub struct PythonEnvironment {
    id: String,
    pool: WorkerPool,
    description: EnvDescription,
    /// Rows for display; the rows that rewards see are in the processes.
    rows: Vec<Value>,
    variety: PromptVariety,
    /// Number of rollouts so far; makes every rollout name unique.
    rollouts_started: AtomicU64,
}

impl PythonEnvironment {
    /// Starts the processes and loads the environment.
    ///
    /// # Errors
    /// There is no such environment, or it cannot be loaded.
    ///
    /// # Panics
    /// If called on a thread of an asynchronous runtime: loading blocks.
    pub fn open(options: PythonOptions, profile: ModelProfile) -> Result<Self, EnvError> {
        let id = options.id.clone();
        let (pool, description) = WorkerPool::start(options, profile)?;
        for note in &description.notes {
            warn!(environment = id, "{note}");
        }
        let rows = pool.rows(&description)?;
        Ok(Self {
            id,
            pool,
            description,
            rows,
            variety: PromptVariety::default(),
            rollouts_started: AtomicU64::new(0),
        })
    }

    /// What the loaded environment reports about itself.
    #[must_use]
    pub fn description(&self) -> &EnvDescription {
        &self.description
    }

    /// An item with its first prompt. An environment that makes prompts at the start of a rollout makes this one now; a
    /// rollout of the same item begins with the same prompt unless `description().notes` says otherwise.
    ///
    /// # Errors
    /// The environment raised, or asks the policy for its prompt.
    ///
    /// # Panics
    /// If called on a thread of an asynchronous runtime: observing blocks.
    pub fn observe(&self, index: u64) -> Result<Item, RewardError> {
        let item = self.item(index);
        if !self.rows.is_empty() {
            return Ok(item);
        }
        let prompt = self.pool.first_prompt(item.index).map_err(RewardError::Environment)?;
        Ok(Item { prompt: tools::messages(&chat_messages(&prompt.into()), &[], |_| None), ..item })
    }

    fn row(&self, index: u64) -> Option<&Value> {
        self.rows.get((index % self.items()) as usize)
    }

    /// Runs one rollout in a process and answers its requests.
    async fn rollout(
        &self,
        placement: RolloutPlacement,
        group: &RolloutGroup<'_>,
        name: String,
        sampler: &dyn SamplingBackend,
        oracle: &dyn Oracle,
    ) -> Result<SessionRollout, SessionError> {
        let options = self.pool.options();
        let handler = RequestHandler::new(self.pool.profile(), name.clone());
        let is_classic = self.description.kind == "classic";
        let RolloutPlacement { worker, permit, limits } = placement;
        let rollout = WorkerRollout {
            name,
            group: &group.name,
            members: group.members,
            item: group.item.index,
            worker,
            endpoint: self.pool.endpoint().clone(),
            limits,
            fail_on_bad_reward: options.on_bad_reward == BadReward::Fail,
            bad_rewards: if is_classic { "reward_coerced" } else { "reward_errors" },
        };
        let performance = rollout.run(handler, permit, sampler, oracle).await?;
        if self.variety.is_missing(group.item.index, &performance) {
            warn!(
                environment = self.id,
                "the first {CHECKED_ITEMS} items are one prompt: if they should differ, have them drawn from random, numpy \
                 or torch in `initial_observation`, not when the environment is loaded"
            );
        }
        Ok(performance)
    }

    /// Reserves a process with permits for all `sessions`.
    async fn reserve(
        &self,
        sessions: usize,
    ) -> Result<(WorkerAssignment, Vec<OwnedSemaphorePermit>), RewardError> {
        loop {
            let worker = self.pool.least_busy().await.map_err(RewardError::Environment)?;
            let assigned = WorkerAssignment::new(worker, sessions);
            // If the process ends during the wait, another one is chosen.
            if let Ok(permits) = assigned.worker.permits.clone().acquire_many_owned(sessions as u32).await {
                return Ok((assigned, split(permits, sessions)));
            }
        }
    }

    fn group<'a>(&self, item: &'a Item, name: String, members: usize) -> RolloutGroup<'a> {
        let number = self.rollouts_started.fetch_add(1, Relaxed);
        RolloutGroup { name: format!("{name}-{number}"), members, item }
    }

    /// Runs all sessions in one process at the same time: their rewards compare them.
    async fn run_compared(&self, group: RolloutGroup<'_>, sessions: Vec<RolloutSession>) {
        let limit = self.pool.options().rollouts_per_worker.get();
        if sessions.len() > limit {
            let why = format!(
                "its rewards compare the {} members of a group, and one worker plays {limit} rollouts at a time: raise \
                 rollouts_per_worker",
                sessions.len()
            );
            sessions
                .into_iter()
                .for_each(|session| session.finish(Err(RewardError::Environment(why.clone()).into())));
            return;
        }
        match self.reserve(sessions.len()).await {
            Err(error) => sessions.into_iter().for_each(|session| session.finish(Err(error.clone().into()))),
            Ok((assigned, permits)) => {
                let limits = self.limits();
                join_all(sessions.into_iter().zip(permits).map(|(session, permit)| {
                    let placement =
                        RolloutPlacement { worker: assigned.worker.clone(), permit, limits: limits.clone() };
                    self.run_session(placement, &group, session)
                }))
                .await;
            }
        }
    }

    /// Runs each session as soon as it has a permit, all of them in one process as long as it lives.
    async fn run_independent(&self, group: RolloutGroup<'_>, sessions: Vec<RolloutSession>) {
        let preferred = self.pool.least_busy().await.ok();
        join_all(sessions.into_iter().map(|session| async {
            match self.reserve_one(preferred.as_ref()).await {
                Err(error) => session.finish(Err(error.into())),
                Ok((assigned, permit)) => {
                    let placement =
                        RolloutPlacement { worker: assigned.worker.clone(), permit, limits: self.limits() };
                    self.run_session(placement, &group, session).await;
                }
            }
        }))
        .await;
        if let Some(preferred) = preferred.filter(|_| self.rows.is_empty()) {
            preferred.try_send(&ToWorker::Forget { group: &group.name });
        }
    }

    /// A permit for one rollout: in this process, or in another one if it ends.
    async fn reserve_one(
        &self,
        preferred: Option<&Arc<WorkerProcess>>,
    ) -> Result<(WorkerAssignment, OwnedSemaphorePermit), RewardError> {
        if let Some(preferred) = preferred {
            let assigned = WorkerAssignment::new(preferred.clone(), 1);
            if let Ok(permit) = preferred.permits.clone().acquire_owned().await {
                return Ok((assigned, permit));
            }
        }
        let (assigned, mut permits) = self.reserve(1).await?;
        Ok((assigned, permits.pop().expect("one was asked for")))
    }

    /// Time limits of a rollout, or of a group whose members are compared.
    fn limits(&self) -> RolloutLimits {
        RolloutLimits::new(self.pool.options().rollout_timeout)
    }

    async fn run_session(
        &self,
        placement: RolloutPlacement,
        group: &RolloutGroup<'_>,
        session: RolloutSession,
    ) {
        let name = format!("{}.{}", group.name, session.rollout.member);
        let sampler = session.sampler.clone();
        let oracle = session.oracle.clone();
        let result = self.rollout(placement, group, name, &*sampler, &*oracle).await;
        session.finish(result);
    }
}

/// The process of a rollout, its permit and its time limits.
struct RolloutPlacement {
    worker: Arc<WorkerProcess>,
    permit: OwnedSemaphorePermit,
    limits: RolloutLimits,
}

/// Rollouts of one item.
struct RolloutGroup<'a> {
    name: String,
    members: usize,
    item: &'a Item,
}

/// Sessions assigned to a process, counted until this is dropped.
struct WorkerAssignment {
    worker: Arc<WorkerProcess>,
    sessions: usize,
}

impl WorkerAssignment {
    fn new(worker: Arc<WorkerProcess>, sessions: usize) -> Self {
        worker.assigned.fetch_add(sessions, Relaxed);
        Self { worker, sessions }
    }
}

impl Drop for WorkerAssignment {
    fn drop(&mut self) {
        self.worker.assigned.fetch_sub(self.sessions, Relaxed);
    }
}

fn split(mut permits: OwnedSemaphorePermit, count: usize) -> Vec<OwnedSemaphorePermit> {
    let mut found: Vec<_> = (1..count).filter_map(|_| permits.split(1)).collect();
    found.push(permits);
    found
}

/// A prompt as messages: plain text becomes a user message.
fn chat_messages(prompt: &Value) -> Vec<ChatMessage> {
    match prompt {
        Value::String(_) => {
            vec![ChatMessage { role: "user".into(), content: prompt.clone(), ..ChatMessage::default() }]
        }
        messages => serde_json::from_value(messages.clone()).unwrap_or_default(),
    }
}

#[async_trait]
impl Environment for PythonEnvironment {
    fn id(&self) -> &str {
        &self.id
    }

    fn items(&self) -> NonZeroU64 {
        NonZeroU64::new(self.description.items).unwrap_or(NonZeroU64::MIN)
    }

    /// An environment that draws its tasks at random shows them only when they are run, all but the first.
    fn item(&self, index: u64) -> Item {
        let index = index % self.items();
        let (messages, answer, info) = match self.row(index) {
            Some(row) => (chat_messages(&row["prompt"]), &row["answer"], &row["info"]),
            None if index == 0 => (self.description.preview.clone(), &Value::Null, &Value::Null),
            None => (Vec::<ChatMessage>::new(), &Value::Null, &Value::Null),
        };
        Item {
            index,
            prompt: tools::messages(&messages, &[], |_| None),
            answer: answer.as_str().map(str::to_owned),
            info: if info.is_null() { json!({}) } else { info.clone() },
        }
    }

    fn needs_shadow_adapters(&self) -> bool {
        self.description.borrows
    }

    /// Runs the rollout again in the environment, with the completions of the scene.
    async fn score(&self, scene: ScoringContext<'_>) -> Result<Score, RewardError> {
        let group = self.group(scene.item, "score".into(), 1);
        let (assigned, permit) = self.reserve_one(None).await?;
        let name = group.name.clone();
        let replay = ReplaySampler::new(&scene.rollout.turns);
        let placement = RolloutPlacement { worker: assigned.worker.clone(), permit, limits: self.limits() };
        let result = self.rollout(placement, &group, name, &replay, scene.oracle).await;
        if replay.is_exhausted() {
            let what = "it samples more than the answers that were given, which only a run does";
            return Err(RewardError::Unsupported(what.into()));
        }
        result.map(|rollout| rollout.score).map_err(|failed| failed.cause)
    }

    fn self_driven(&self) -> Option<&dyn SelfDrivenEnvironment> {
        Some(self)
    }
}

#[async_trait]
impl SelfDrivenEnvironment for PythonEnvironment {
    async fn run_rollouts(&self, item: &Item, sessions: Vec<RolloutSession>) {
        let Some(first) = sessions.first() else { return };
        let group = self.group(item, first.rollout.group.to_string(), sessions.len());
        if self.description.group_rewards {
            self.run_compared(group, sessions).await;
        } else {
            self.run_independent(group, sessions).await;
        }
    }

    fn compares_rollouts(&self) -> bool {
        self.description.group_rewards
    }
}
