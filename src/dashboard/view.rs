//! What the dashboard knows of a run: its head, its line, and what the run's follower has told it.
//!
//! The follower writes, requests read; what is kept is bounded in numbers and in tokens.

use super::recent_groups::RecentGroups;
use super::run_info::RunInfo;
use super::thinned_rows::ThinnedRows;
use crate::run_folder::CheckpointRecord;
use minds_core::chat::Tokenizer;
use minds_core::reward::Metrics;
use minds_stages::evaluator::Evaluation;
use minds_stages::messages::StepRecord;
use minds_stages::pipeline::Observer;
use minds_stages::telemetry::meters::PipelineMeters;
use minds_stages::telemetry::names;
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
pub enum RunState {
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
pub enum EventLevel {
    /// As it should be.
    Info,
    /// Worth a look.
    Warn,
    /// The run cannot go on.
    Error,
}

/// Something that happened.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DashboardEvent {
    at: f64,
    level: EventLevel,
    text: String,
}

/// A run as it is seen from outside.
pub struct RunView {
    /// What does not change.
    pub(crate) run_info: RunInfo,
    /// The line.
    pub(super) pipeline: Observer,
    /// What the line counts.
    pub(super) meters: PipelineMeters,
    /// What the client counts.
    pub(super) client: minds_tinker::client::ClientMetrics,
    /// Ends of Python processes, by environment.
    pub(super) ends: Vec<(String, Arc<AtomicU64>)>,
    /// Tokens to text.
    pub(super) tokenizer: Arc<dyn Tokenizer>,
    history: Mutex<RunHistory>,
    /// Steps and events to those that look on, as they are sent: name and JSON.
    pub(super) updates: broadcast::Sender<(&'static str, Arc<str>)>,
    /// How the line is doing, as JSON, once a second.
    pub(super) state: watch::Sender<Arc<str>>,
    /// Whether nothing more will be told.
    pub(super) closed: watch::Sender<bool>,
}

/// What the follower has told.
pub(super) struct RunHistory {
    pub(super) state: RunState,
    pub(super) step: u64,
    /// When that was; at first, when the process started.
    pub(super) step_at: f64,
    pub(super) rows: ThinnedRows,
    /// Evaluations, as rows with their step.
    pub(super) evaluations: ThinnedRows,
    pub(super) events: VecDeque<DashboardEvent>,
    pub(super) recent: RecentGroups,
    pub(super) checkpoints: Vec<Value>,
    /// Step and time of the last one.
    pub(super) checkpoint: Option<(u64, f64)>,
}

impl RunView {
    /// Nothing told yet.
    #[must_use]
    pub fn new(
        run_info: RunInfo,
        pipeline: Observer,
        meters: PipelineMeters,
        client: minds_tinker::client::ClientMetrics,
        ends: Vec<(String, Arc<AtomicU64>)>,
        tokenizer: Arc<dyn Tokenizer>,
    ) -> Self {
        let history = RunHistory {
            state: RunState::Running,
            step: run_info.first_step,
            step_at: run_info.started,
            rows: ThinnedRows::default(),
            evaluations: ThinnedRows::default(),
            events: VecDeque::new(),
            recent: RecentGroups::default(),
            checkpoints: Vec::new(),
            checkpoint: None,
        };
        let (updates, _) = broadcast::channel(256);
        let (history, state, closed) =
            (Mutex::new(history), watch::Sender::new("{}".into()), watch::Sender::new(false));
        Self { run_info, pipeline, meters, client, ends, tokenizer, history, updates, state, closed }
    }

    /// What was told of steps, evaluations and states before the process started.
    pub fn restore(&self, rows: Vec<Metrics>, evaluations: Vec<Metrics>, states: &[CheckpointRecord]) {
        let mut history = self.history();
        rows.into_iter().for_each(|row| history.rows.push(row));
        evaluations.into_iter().for_each(|row| history.evaluations.push(row));
        history.checkpoints = states.iter().map(listed).collect();
    }

    /// A state is saved.
    pub fn add_checkpoint(&self, state: &CheckpointRecord) {
        let mut history = self.history();
        history.checkpoints.push(listed(state));
        history.checkpoint = Some((state.step, now()));
    }

    /// Steps that the weights had behind them when the process started.
    #[must_use]
    pub fn first_step(&self) -> u64 {
        self.run_info.first_step
    }

    /// What the line counts.
    #[must_use]
    pub fn meters(&self) -> &PipelineMeters {
        &self.meters
    }

    /// A step is done.
    pub fn add_step(&self, done: StepRecord) {
        let at = now();
        let StepRecord { step, metrics, groups } = done;
        self.send("step", &row(&metrics, at));
        let mut history = self.history();
        (history.step, history.step_at) = (step, at);
        history.rows.push(metrics);
        groups.into_iter().for_each(|group| history.recent.push(step, at, group));
    }

    /// Weights are measured.
    pub fn add_evaluation(&self, evaluation: &Evaluation) {
        let mut metrics = evaluation.metrics.clone();
        metrics.insert(names::STEP.into(), evaluation.step as f64);
        self.send("evaluation", &metrics);
        self.history().evaluations.push(metrics);
        self.add_event(EventLevel::Info, format!("measured the weights of step {}", evaluation.step));
    }

    /// Something happened.
    pub fn add_event(&self, level: EventLevel, text: impl Into<String>) {
        let event = DashboardEvent { at: now(), level, text: text.into() };
        self.send("event", &event);
        let events = &mut self.history().events;
        events.truncate(EVENTS - 1);
        events.push_front(event);
    }

    /// The run has ended without a fault, after so many steps.
    pub fn finish(&self, step: u64) {
        let (state, text) = if step >= self.run_info.steps {
            (RunState::Done, format!("done: all {step} steps"))
        } else {
            (RunState::Stopped, format!("stopped after step {step} of {}", self.run_info.steps))
        };
        self.set_state(state);
        self.add_event(EventLevel::Info, text);
    }

    /// The run does something else now.
    pub fn set_state(&self, state: RunState) {
        self.history().state = state;
    }

    pub(super) fn history(&self) -> MutexGuard<'_, RunHistory> {
        // Each change is complete in itself.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(&self, name: &'static str, what: &impl Serialize) {
        if self.updates.receiver_count() > 0
            && let Ok(text) = serde_json::to_string(what)
        {
            // Nobody may be looking on by now.
            drop(self.updates.send((name, text.into())));
        }
    }
}

/// A state's line of the list.
fn listed(state: &CheckpointRecord) -> Value {
    let CheckpointRecord { name, step, state_path, sampler_path, .. } = state;
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
