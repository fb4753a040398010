//! What the dashboard knows of a run: its head, its line, and what the run's follower has told it.
//!
//! The follower writes, requests read; what is kept is bounded in numbers and in tokens.

use super::facts::Facts;
use super::rollouts::Recent;
use super::rows::Rows;
use crate::run_folder::Checkpoint;
use minds_core::chat::Tokenizer;
use minds_core::reward::Metrics;
use minds_stages::evaluator::Evaluation;
use minds_stages::meters::Meters;
use minds_stages::names;
use minds_stages::observer::Observer;
use minds_stages::parcels::StepDone;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{broadcast, watch};

/// Most events that are kept.
const EVENTS: usize = 500;

/// What a run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It trains.
    Running,
    /// It saves and ends.
    Stopping,
    /// All steps are done.
    Done,
    /// It was asked to end before its last step, and its state is saved.
    Stopped,
    /// It could not go on.
    Failed,
}

/// How loud an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Info,
    /// Worth a look.
    Warn,
    /// The run cannot go on.
    Error,
}

/// Something that happened.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Happened {
    at: f64,
    level: Level,
    text: String,
}

/// A run as it is seen from outside.
pub struct Hub {
    /// What does not change.
    pub(crate) facts: Facts,
    /// The line.
    pub(super) line: Observer,
    /// What the line counts.
    pub(super) meters: Meters,
    /// What the client counts.
    pub(super) client: minds_tinker::client::Meters,
    /// Ends of Python processes, by environment.
    pub(super) ends: Vec<(String, Arc<AtomicU64>)>,
    /// Tokens to text.
    pub(super) tokenizer: Arc<dyn Tokenizer>,
    told: Mutex<Told>,
    /// Steps and events to those that look on, as they are sent: name and JSON.
    pub(super) news: broadcast::Sender<(&'static str, Arc<str>)>,
    /// How the line is doing, as JSON, once a second.
    pub(super) state: watch::Sender<Arc<str>>,
    /// Whether nothing more will be told.
    pub(super) over: watch::Sender<bool>,
}

/// What the follower has told.
pub(super) struct Told {
    pub(super) state: State,
    pub(super) step: u64,
    /// When that was; at first, when the process started.
    pub(super) stepped: f64,
    pub(super) rows: Rows,
    /// Evaluations, as rows with their step.
    pub(super) evaluations: Rows,
    pub(super) events: VecDeque<Happened>,
    pub(super) recent: Recent,
    pub(super) checkpoints: Vec<Value>,
    /// Step and time of the last one.
    pub(super) checkpoint: Option<(u64, f64)>,
}

impl Hub {
    /// Nothing told yet.
    #[must_use]
    pub fn new(
        facts: Facts,
        line: Observer,
        meters: Meters,
        client: minds_tinker::client::Meters,
        ends: Vec<(String, Arc<AtomicU64>)>,
        tokenizer: Arc<dyn Tokenizer>,
    ) -> Self {
        let told = Told {
            state: State::Running,
            step: facts.first_step,
            stepped: facts.started,
            rows: Rows::default(),
            evaluations: Rows::default(),
            events: VecDeque::new(),
            recent: Recent::default(),
            checkpoints: Vec::new(),
            checkpoint: None,
        };
        let (news, _) = broadcast::channel(256);
        let (told, state, over) =
            (Mutex::new(told), watch::Sender::new("{}".into()), watch::Sender::new(false));
        Self { facts, line, meters, client, ends, tokenizer, told, news, state, over }
    }

    /// What was told of steps, evaluations and states before the process started.
    pub fn earlier(&self, rows: Vec<Metrics>, evaluations: Vec<Metrics>, states: &[Checkpoint]) {
        let mut told = self.told();
        rows.into_iter().for_each(|row| told.rows.push(row));
        evaluations.into_iter().for_each(|row| told.evaluations.push(row));
        told.checkpoints = states.iter().map(listed).collect();
    }

    /// A state is saved.
    pub fn saved(&self, state: &Checkpoint) {
        let mut told = self.told();
        told.checkpoints.push(listed(state));
        told.checkpoint = Some((state.step, now()));
    }

    /// Steps that the weights had behind them when the process started.
    #[must_use]
    pub fn first_step(&self) -> u64 {
        self.facts.first_step
    }

    /// What the line counts.
    #[must_use]
    pub fn meters(&self) -> &Meters {
        &self.meters
    }

    /// A step is done.
    pub fn step(&self, done: StepDone) {
        let at = now();
        let StepDone { step, metrics, groups } = done;
        self.send("step", &row(&metrics, at));
        let mut told = self.told();
        (told.step, told.stepped) = (step, at);
        told.rows.push(metrics);
        groups.into_iter().for_each(|group| told.recent.push(step, at, group));
    }

    /// Weights are measured.
    pub fn measured(&self, evaluation: &Evaluation) {
        let mut metrics = evaluation.metrics.clone();
        metrics.insert(names::STEP.into(), evaluation.step as f64);
        self.send("evaluation", &metrics);
        self.told().evaluations.push(metrics);
        self.happened(Level::Info, format!("measured the weights of step {}", evaluation.step));
    }

    /// Something happened.
    pub fn happened(&self, level: Level, text: impl Into<String>) {
        let event = Happened { at: now(), level, text: text.into() };
        self.send("event", &event);
        let events = &mut self.told().events;
        events.truncate(EVENTS - 1);
        events.push_front(event);
    }

    /// The run has ended without a fault, after so many steps.
    pub fn ended(&self, step: u64) {
        let (state, text) = if step >= self.facts.steps {
            (State::Done, format!("done: all {step} steps"))
        } else {
            (State::Stopped, format!("stopped after step {step} of {}", self.facts.steps))
        };
        self.turned(state);
        self.happened(Level::Info, text);
    }

    /// The run does something else now.
    pub fn turned(&self, state: State) {
        self.told().state = state;
    }

    pub(super) fn told(&self) -> MutexGuard<'_, Told> {
        // Each change is complete in itself.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(&self, name: &'static str, what: &impl Serialize) {
        if self.news.receiver_count() > 0
            && let Ok(text) = serde_json::to_string(what)
        {
            // Nobody may be looking on by now.
            drop(self.news.send((name, text.into())));
        }
    }
}

/// A state's line of the list.
fn listed(state: &Checkpoint) -> Value {
    let Checkpoint { name, step, state_path, sampler_path, .. } = state;
    json!({ "name": name, "step": step, "state_path": state_path, "sampler_path": sampler_path })
}

/// A step's numbers with the time at which they were told.
fn row(metrics: &Metrics, at: f64) -> Value {
    let mut row = json!(metrics);
    row["at"] = json!(at);
    row
}

/// Seconds since 1970.
pub(super) fn now() -> f64 {
    jiff::Timestamp::now().as_duration().as_secs_f64()
}
