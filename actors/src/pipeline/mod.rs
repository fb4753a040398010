//! Wires the stages into a pipeline and runs it to its end.
//!
//! `build` makes the parts, `wiring` connects and launches the stages, and here the pipeline runs. Its owner receives
//! events, reads the board, and can stop it.

mod build;
mod limits;
mod observer;
mod options;
mod wiring;

pub use crate::error::PipelineError;
use crate::ledger::Ledger;
use crate::mailbox::{MailboxSender, MailboxStats, StageExit, StageHandle};
pub use crate::stages::event::PipelineEvent;
use crate::stages::shadow::ShadowTrainer;
use crate::stages::trainer::FinishRequest;
use futures::future::select_all;
use limits::SeriesLimits;
use minds_core::record::EvaluationRecord;
pub use observer::Observer;
pub use options::{PipelineOptions, PipelineParts, ResumePoint, ShadowSetup, ShadowStart, batches_ahead};
use tokio::sync::{mpsc, watch};
use tracing::error;
pub use wiring::MailboxCapacities;

/// A running pipeline. Lives on the local task set on which it was started, and ends when it is dropped, which cancels
/// everything under way.
pub struct Pipeline {
    events: mpsc::Receiver<PipelineEvent>,
    stages: Vec<StageHandle>,
    stop: watch::Sender<bool>,
    finish: MailboxSender<FinishRequest>,
    observer: Observer,
    limits: SeriesLimits,
    /// Why the run stopped waiting for the service, if it did.
    away: watch::Receiver<Option<String>>,
    /// Turns true when new weights cannot be published or saved. The committer reports the cause at the end.
    commit_failed: watch::Receiver<bool>,
    /// Holds adapters and checkpoints on the service that belong to shadows alone.
    shadows: Option<ShadowTrainer>,
    /// Whether the run is being ended early, after a last checkpoint.
    giving_up: bool,
    /// Results of the evaluator.
    evaluations: mpsc::Receiver<EvaluationRecord>,
    /// Turns true when no more weights will come.
    last: watch::Sender<bool>,
    /// The final event, held back until the last evaluation has been reported.
    ended: Option<PipelineEvent>,
    over: bool,
}

impl Pipeline {
    /// The next event; `None` after the run's last one. May be dropped while it waits: no event is lost.
    pub async fn next(&mut self) -> Option<PipelineEvent> {
        if self.over {
            return None;
        }
        let ledger = self.observer.ledger.clone();
        let event = loop {
            // All steps are done; an evaluation that is due at the last step still runs, unless the run is stopped.
            if self.ended.is_some()
                && !*self.stop.borrow()
                && let Some(evaluation) = self.evaluations.recv().await
            {
                break PipelineEvent::Evaluated(evaluation);
            }
            if let Some(ended) = self.ended.take() {
                break ended;
            }
            tokio::select! {
                biased;
                Some(event) = self.events.recv() => match event {
                    PipelineEvent::Ended { .. } => {
                        // A stopped run has no last weights: it may be resumed.
                        if !*self.stop.borrow() {
                            self.last.send_replace(true);
                        }
                        self.ended = Some(event);
                    }
                    event => break event,
                },
                Some(evaluation) = self.evaluations.recv() => break PipelineEvent::Evaluated(evaluation),
                why = broken(&mut self.stages) => break PipelineEvent::Failed(why),
                // The rest of the service may still be reachable: the weights may still be saved.
                why = given_up(&mut self.away), if !self.giving_up => self.give_up(why),
                () = turned_true(&mut self.commit_failed), if !self.giving_up => {
                    self.giving_up = true;
                    self.end(None);
                }
                // The weights are good: they are saved before the run ends.
                why = self.limits.exceeded(&ledger), if !self.giving_up => self.give_up(why),
            }
        };
        self.over = matches!(event, PipelineEvent::Ended { .. } | PipelineEvent::Failed(_));
        Some(event)
    }

    /// Opens no more groups, completes the step under way, saves a checkpoint, and ends.
    pub fn stop(&self) {
        self.end(None);
    }

    /// Cancels everything under way, and deletes what the run kept on the service for itself alone.
    pub async fn close(self) {
        let shadows = self.shadows.clone();
        drop(self);
        if let Some(shadows) = shadows {
            shadows.close().await;
        }
    }

    /// Ends the run early, after a last checkpoint.
    fn give_up(&mut self, why: PipelineError) {
        error!(%why, "stopping after the step in progress");
        self.giving_up = true;
        self.end(Some(why));
    }

    fn end(&self, why: Option<PipelineError>) {
        if !self.stop.send_replace(true) {
            let finish = self.finish.clone();
            // If the trainer has already gone, its end is among the events.
            tokio::spawn(async move { drop(finish.send(FinishRequest(why)).await) });
        }
    }

    /// Reads the pipeline, also after it has ended.
    #[must_use]
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// The ledger of all groups.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.observer.ledger
    }

    /// Depth and traffic of the mailboxes, in the order of the stages.
    #[must_use]
    pub fn mailboxes(&self) -> Vec<MailboxStats> {
        self.observer.mailboxes()
    }
}

/// Waits until the outage limit of the service is reached.
async fn given_up(away: &mut watch::Receiver<Option<String>>) -> PipelineError {
    let why = away.wait_for(Option::is_some).await.ok().and_then(|away| away.clone());
    match why {
        Some(why) => PipelineError::ServiceAway(why),
        None => std::future::pending().await,
    }
}

/// Waits until the value is true; forever if that cannot happen any more.
async fn turned_true(value: &mut watch::Receiver<bool>) {
    if value.wait_for(|value| *value).await.is_err() {
        std::future::pending().await
    }
}

/// Waits until a stage has panicked for good. Stages that end otherwise are removed from the list.
async fn broken(stages: &mut Vec<StageHandle>) -> PipelineError {
    while !stages.is_empty() {
        let (exit, index, _) = select_all(stages.iter_mut().map(|stage| Box::pin(stage.watch()))).await;
        let stage = stages.swap_remove(index);
        if let StageExit::Panicked(why) = exit {
            return PipelineError::StagePanicked { stage: stage.name(), why };
        }
    }
    std::future::pending().await
}
