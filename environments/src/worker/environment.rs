//! A Python environment as the line sees it: items, and rollouts that it plays by itself.

use super::crew::Crew;
use super::desk::Desk;
use super::message::{Description, Said, ToHost};
use super::options::{BadReward, PythonOptions};
use super::replay::Replay;
use super::rollout::{Rollout, RolloutLimits};
use super::tools;
use super::variety::{LOOKED_AT, Variety};
use super::voice::Voice;
use super::worker::Worker;
use crate::error::EnvError;
use async_trait::async_trait;
use futures::future::join_all;
use minds_core::backend::SamplingBackend;
use minds_core::environment::{Conductor, Environment, Item, Oracle, Performance, Scene, Seat};
use minds_core::reward::{Missing, Score};
use serde_json::{Value, json};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::sync::OwnedSemaphorePermit;
use tracing::warn;

/// An environment whose code is Python.
pub struct PythonEnvironment {
    id: String,
    crew: Crew,
    description: Description,
    /// As people are shown them; those that rewards see are in the processes.
    rows: Vec<Value>,
    variety: Variety,
    /// Rollouts so far: every one has a name of its own.
    played: AtomicU64,
}

impl PythonEnvironment {
    /// Starts the processes and loads the environment.
    ///
    /// # Errors
    /// There is no such environment, or it cannot be loaded.
    ///
    /// # Panics
    /// If it is called on a thread of an asynchronous runtime: loading blocks.
    pub fn open(options: PythonOptions, voice: Voice) -> Result<Self, EnvError> {
        let id = options.id.clone();
        let (crew, description) = Crew::start(options, voice)?;
        for note in &description.notes {
            warn!(environment = id, "{note}");
        }
        let rows = crew.rows(&description)?;
        Ok(Self { id, crew, description, rows, variety: Variety::default(), played: AtomicU64::new(0) })
    }

    /// What it says about itself.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.description
    }

    fn row(&self, index: u64) -> Option<&Value> {
        self.rows.get((index % self.items()) as usize)
    }

    /// Plays one rollout in a process, with an answerer for its questions.
    async fn rollout(
        &self,
        place: AssignedSlot,
        group: &Group<'_>,
        name: String,
        sampler: &dyn SamplingBackend,
        oracle: &dyn Oracle,
    ) -> Result<Performance, Missing> {
        let options = self.crew.options();
        let desk = Desk::new(self.crew.voice(), name.clone());
        let is_classic = self.description.kind == "classic";
        let AssignedSlot { worker, slot, limits } = place;
        let rollout = Rollout {
            name,
            group: &group.name,
            members: group.members,
            item: group.item.index,
            worker,
            slot,
            endpoint: self.crew.endpoint().clone(),
            limits,
            fail_on_bad_reward: options.on_bad_reward == BadReward::Fail,
            bad_rewards: if is_classic { "reward_coerced" } else { "reward_errors" },
        };
        let performance = rollout.play(desk, sampler, oracle).await?;
        if self.variety.is_missing(group.item.index, &performance) {
            warn!(
                environment = self.id,
                "the first {LOOKED_AT} items are one prompt: if they should differ, have them drawn from random, numpy \
                 or torch in `initial_observation`, not when the environment is loaded"
            );
        }
        Ok(performance)
    }

    /// A process, with room for so many rollouts.
    async fn room(&self, seats: usize) -> Result<(Assigned, Vec<OwnedSemaphorePermit>), Missing> {
        loop {
            let worker = self.crew.least_busy().await.map_err(Missing::Environment)?;
            let assigned = Assigned::new(worker, seats);
            // A process that ends while somebody waits for it is waited for no longer.
            if let Ok(slots) = assigned.worker.slots.clone().acquire_many_owned(seats as u32).await {
                return Ok((assigned, split(slots, seats)));
            }
        }
    }

    fn group<'a>(&self, item: &'a Item, name: String, members: usize) -> Group<'a> {
        let number = self.played.fetch_add(1, Relaxed);
        Group { name: format!("{name}-{number}"), members, item }
    }

    /// All seats in one process at the same time: their rewards compare them.
    async fn together(&self, group: Group<'_>, seats: Vec<Seat>) {
        let limit = self.crew.options().rollouts_per_worker.get();
        if seats.len() > limit {
            let why = format!(
                "its rewards compare the {} members of a group, and one worker plays {limit} rollouts at a time: raise \
                 rollouts_per_worker",
                seats.len()
            );
            seats.into_iter().for_each(|seat| seat.leave(Err(Missing::Environment(why.clone()))));
            return;
        }
        match self.room(seats.len()).await {
            Err(missing) => seats.into_iter().for_each(|seat| seat.leave(Err(missing.clone()))),
            Ok((assigned, slots)) => {
                let limits = self.limits();
                join_all(seats.into_iter().zip(slots).map(|(seat, slot)| {
                    let place =
                        AssignedSlot { worker: assigned.worker.clone(), slot, limits: limits.clone() };
                    self.seated(place, &group, seat)
                }))
                .await;
            }
        }
    }

    /// Each seat as soon as there is room, all of them in one process as long as it lives.
    async fn apart(&self, group: Group<'_>, seats: Vec<Seat>) {
        let home = self.crew.least_busy().await.ok();
        join_all(seats.into_iter().map(|seat| async {
            match self.place(home.as_ref()).await {
                Err(missing) => seat.leave(Err(missing)),
                Ok((assigned, slot)) => {
                    let place = AssignedSlot { worker: assigned.worker.clone(), slot, limits: self.limits() };
                    self.seated(place, &group, seat).await;
                }
            }
        }))
        .await;
        if let Some(home) = home.filter(|_| self.rows.is_empty()) {
            home.hint(&ToHost::Forget { group: &group.name });
        }
    }

    /// Room for one rollout: in this process, or in another one if it ends.
    async fn place(&self, home: Option<&Arc<Worker>>) -> Result<(Assigned, OwnedSemaphorePermit), Missing> {
        if let Some(home) = home {
            let assigned = Assigned::new(home.clone(), 1);
            if let Ok(slot) = home.slots.clone().acquire_owned().await {
                return Ok((assigned, slot));
            }
        }
        let (assigned, mut slots) = self.room(1).await?;
        Ok((assigned, slots.pop().expect("one was asked for")))
    }

    /// The time of a rollout, or of a group whose members are compared.
    fn limits(&self) -> RolloutLimits {
        RolloutLimits::new(self.crew.options().rollout_timeout)
    }

    async fn seated(&self, place: AssignedSlot, group: &Group<'_>, seat: Seat) {
        let name = format!("{}.{}", group.name, seat.episode.member);
        let (sampler, oracle) = (seat.sampler.clone(), seat.oracle.clone());
        let result = self.rollout(place, group, name, &*sampler, &*oracle).await;
        seat.leave(result);
    }
}

/// Where a rollout is played, and the time that it has.
struct AssignedSlot {
    worker: Arc<Worker>,
    slot: OwnedSemaphorePermit,
    limits: RolloutLimits,
}

/// Rollouts of one item.
struct Group<'a> {
    name: String,
    members: usize,
    item: &'a Item,
}

/// Rollouts that a process has to play, counted until this is dropped.
struct Assigned {
    worker: Arc<Worker>,
    seats: usize,
}

impl Assigned {
    fn new(worker: Arc<Worker>, seats: usize) -> Self {
        worker.assigned.fetch_add(seats, Relaxed);
        Self { worker, seats }
    }
}

impl Drop for Assigned {
    fn drop(&mut self) {
        self.worker.assigned.fetch_sub(self.seats, Relaxed);
    }
}

fn split(mut slots: OwnedSemaphorePermit, count: usize) -> Vec<OwnedSemaphorePermit> {
    let mut found: Vec<_> = (1..count).filter_map(|_| slots.split(1)).collect();
    found.push(slots);
    found
}

/// A prompt as messages: a text is what the user says.
fn said(prompt: &Value) -> Vec<Said> {
    match prompt {
        Value::String(_) => vec![Said { role: "user".into(), content: prompt.clone(), ..Said::default() }],
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

    /// An environment that makes its tasks by chance shows them only when they are played, all but the first.
    fn item(&self, index: u64) -> Item {
        let index = index % self.items();
        let (said, answer, info) = match self.row(index) {
            Some(row) => (said(&row["prompt"]), &row["answer"], &row["info"]),
            None if index == 0 => (self.description.preview.clone(), &Value::Null, &Value::Null),
            None => (Vec::<Said>::new(), &Value::Null, &Value::Null),
        };
        Item {
            index,
            prompt: tools::messages(&said, &[], |_| None),
            answer: answer.as_str().map(str::to_owned),
            info: if info.is_null() { json!({}) } else { info.clone() },
        }
    }

    fn asks_shift(&self) -> bool {
        self.description.borrows
    }

    /// Has the environment play the episode once more, the answers being those of the scene.
    async fn score(&self, scene: Scene<'_>) -> Result<Score, Missing> {
        let group = self.group(scene.item, "score".into(), 1);
        let (assigned, slot) = self.place(None).await?;
        let name = group.name.clone();
        let replay = Replay::new(&scene.episode.turns);
        let place = AssignedSlot { worker: assigned.worker.clone(), slot, limits: self.limits() };
        let played = self.rollout(place, &group, name, &replay, scene.oracle).await;
        if replay.is_exhausted() {
            let what = "it samples more than the answers that were given, which only a run does";
            return Err(Missing::Unsupported(what.into()));
        }
        Ok(played?.score)
    }

    fn conductor(&self) -> Option<&dyn Conductor> {
        Some(self)
    }
}

#[async_trait]
impl Conductor for PythonEnvironment {
    async fn play(&self, item: &Item, seats: Vec<Seat>) {
        let Some(first) = seats.first() else { return };
        let group = self.group(item, first.episode.group.to_string(), seats.len());
        if self.description.group_rewards {
            self.together(group, seats).await;
        } else {
            self.apart(group, seats).await;
        }
    }

    fn compares(&self) -> bool {
        self.description.group_rewards
    }
}
