//! What the dashboard knows of a run: its fixed facts, its pipeline, and the history that the run reports.
//!
//! The run writes and requests read; the history is bounded in entries and in tokens.

use super::recent_groups::RecentGroups;
use super::run_info::RunInfo;
use super::thinned_rows::ThinnedRows;
use crate::CheckpointSummary;
use minds_core::chat::Tokenizer;
use minds_core::record::{EvaluationRecord, StepRecord};
use minds_stages::messages::CommittedStep;
use minds_stages::pipeline::Observer;
use minds_stages::remote::Dispatcher;
use serde::Serialize;
use serde_json::json;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{broadcast, watch};

/// Maximum number of events kept.
const EVENTS: usize = 500;

/// What a run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// The pipeline runs and trains.
    Running,
    /// The run saves a checkpoint and ends.
    Stopping,
    /// All steps are done.
    Done,
    /// The run was stopped before its last step, and a checkpoint is saved.
    Stopped,
    /// The run ended with an error.
    Failed,
}

/// Severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EventLevel {
    /// Part of normal operation.
    Info,
    /// Unexpected, but the run continues.
    Warn,
    /// The run cannot continue.
    Error,
}

/// An entry of the event list.
#[derive(Clone, Debug, Serialize)]
pub(super) struct DashboardEvent {
    at: f64,
    level: EventLevel,
    text: String,
}

/// The state of a run as the dashboard serves it.
pub struct RunView {
    /// Facts that do not change during the run.
    pub run_info: RunInfo,
    /// Read access to the running pipeline.
    pub(super) pipeline: Observer,
    /// Exits of Python processes, by environment.
    pub(super) python_exits: Vec<(String, Arc<AtomicU64>)>,
    /// The workers of the run, if it has a broker.
    pub workers: Option<Dispatcher>,
    /// Decodes the tokens of completions.
    pub(super) tokenizer: Arc<dyn Tokenizer>,
    history: Mutex<RunHistory>,
    /// Sends steps and events to open connections: name and JSON.
    pub(super) updates: broadcast::Sender<(&'static str, Arc<str>)>,
    /// Status of the pipeline as JSON, updated once a second.
    pub(super) state: watch::Sender<Arc<str>>,
    /// Whether the last update has been sent.
    pub(super) closed: watch::Sender<bool>,
}

/// What the run has reported so far.
pub(super) struct RunHistory {
    pub(super) state: RunState,
    pub(super) step: u64,
    /// Unix time of that step in seconds; before the first step, of the process start.
    pub(super) step_at: f64,
    pub(super) rows: ThinnedRows<StepRecord>,
    pub(super) evaluations: ThinnedRows<EvaluationRecord>,
    pub(super) events: VecDeque<DashboardEvent>,
    pub(super) recent: RecentGroups,
    pub(super) checkpoints: Vec<CheckpointSummary>,
    /// Step and Unix time of the last checkpoint of this process.
    pub(super) checkpoint: Option<(u64, f64)>,
}

impl RunView {
    /// Creates the view of a run without any history.
    #[must_use]
    pub fn new(
        run_info: RunInfo,
        pipeline: Observer,
        python_exits: Vec<(String, Arc<AtomicU64>)>,
        workers: Option<Dispatcher>,
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
        Self {
            run_info,
            pipeline,
            python_exits,
            workers,
            tokenizer,
            history: Mutex::new(history),
            updates,
            state: watch::Sender::new("{}".into()),
            closed: watch::Sender::new(false),
        }
    }

    /// Restores steps, evaluations and checkpoints from before the process started.
    pub fn restore(
        &self,
        rows: Vec<StepRecord>,
        evaluations: Vec<EvaluationRecord>,
        checkpoints: Vec<CheckpointSummary>,
    ) {
        let mut history = self.history();
        rows.into_iter().for_each(|row| history.rows.push(row));
        evaluations.into_iter().for_each(|row| history.evaluations.push(row));
        history.checkpoints = checkpoints;
    }

    /// Records a saved checkpoint.
    pub fn add_checkpoint(&self, checkpoint: CheckpointSummary) {
        let mut history = self.history();
        history.checkpoint = Some((checkpoint.step, now()));
        history.checkpoints.push(checkpoint);
    }

    /// Records a finished step and sends it to open connections.
    pub fn add_step(&self, done: CommittedStep) {
        let at = now();
        let CommittedStep { record, groups } = done;
        let step = record.step;
        let mut row = json!(record);
        row["at"] = json!(at);
        self.send("step", &row);
        let mut history = self.history();
        history.step = step;
        history.step_at = at;
        history.rows.push(record);
        groups.into_iter().for_each(|group| history.recent.push(step, at, group));
    }

    /// Records an evaluation and sends it to open connections.
    pub fn add_evaluation(&self, evaluation: &EvaluationRecord) {
        let step = evaluation.step;
        self.send("evaluation", evaluation);
        self.history().evaluations.push(evaluation.clone());
        self.add_event(EventLevel::Info, format!("measured the weights of step {step}"));
    }

    /// Records an event and sends it to open connections.
    pub fn add_event(&self, level: EventLevel, text: impl Into<String>) {
        let event = DashboardEvent { at: now(), level, text: text.into() };
        self.send("event", &event);
        let events = &mut self.history().events;
        events.truncate(EVENTS - 1);
        events.push_front(event);
    }

    /// Records that the run ended without an error after `step` steps.
    pub fn finish(&self, step: u64) {
        let (state, text) = if step >= self.run_info.steps {
            (RunState::Done, format!("done: all {step} steps"))
        } else {
            (RunState::Stopped, format!("stopped after step {step} of {}", self.run_info.steps))
        };
        self.set_state(state, EventLevel::Info, text);
    }

    /// Sets the state of the run, and records that as an event.
    pub fn set_state(&self, state: RunState, level: EventLevel, text: impl Into<String>) {
        self.history().state = state;
        self.add_event(level, text);
    }

    pub(super) fn history(&self) -> MutexGuard<'_, RunHistory> {
        // Each change is complete in itself.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(&self, name: &'static str, what: &impl Serialize) {
        if self.updates.receiver_count() > 0
            && let Ok(text) = serde_json::to_string(what)
        {
            // The last connection may have closed by now.
            drop(self.updates.send((name, text.into())));
        }
    }
}

/// Current Unix time in seconds.
pub(super) fn now() -> f64 {
    jiff::Timestamp::now().as_duration().as_secs_f64()
}
