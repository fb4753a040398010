//! What the minibatches of a step have produced so far.

use crate::error::PipelineError;
use crate::ledger::GroupOutcome;
use crate::messages::TrainingGroup;
use minds_core::datum::Datum;
use minds_core::service::{BackendError, ForwardOutput, OptimStep};
use std::time::Duration;

/// The minibatches of one step, accumulated.
#[derive(Default)]
pub(super) struct GradientAccumulation {
    /// Groups that are part of the step.
    pub(super) groups: Vec<TrainingGroup>,
    /// What was trained on, in the order of `forward`; empty when no group had a learning signal.
    pub(super) data: Vec<Datum>,
    /// Outputs of the passes, if there were any.
    forwards: Vec<ForwardOutput>,
    /// The last optimizer step, if there was one.
    pub(super) optim: Option<OptimStep>,
    /// Whether gradients wait for an optimizer step.
    pub(super) gradients: bool,
    /// Optimizer steps whose gradients were clipped at the running limit.
    pub(super) clipped: u32,
    /// Groups, data and passes that belong to earlier optimizer steps of the batch.
    behind: [usize; 3],
    /// Why a minibatch was refused, the first cause.
    pub(super) refused: Option<BackendError>,
    /// Time from submission to results.
    pub(super) train: Duration,
    /// Time spent waiting for minibatches.
    pub(super) idle: Duration,
    /// The share of `idle` in which a minibatch was complete and held back for stragglers.
    pub(super) held: Duration,
}

impl GradientAccumulation {
    /// Adds a minibatch whose gradients have been computed.
    pub(super) fn add(&mut self, groups: Vec<TrainingGroup>, data: Vec<Datum>, forward: ForwardOutput) {
        self.groups.extend(groups);
        self.data.extend(data);
        self.forwards.push(forward);
        self.gradients = true;
    }

    /// Records the optimizer step that used up the gradients so far.
    pub(super) fn stepped(&mut self, optim: OptimStep) {
        self.optim = Some(optim);
        self.gradients = false;
    }

    /// What was added up to here belongs to optimizer steps that are over.
    pub(super) fn close_step(&mut self) {
        self.behind = [self.groups.len(), self.data.len(), self.forwards.len()];
    }

    /// The optimizer step was refused and its gradients are dropped: its groups are not part of the batch.
    pub(super) fn refuse_step(&mut self, error: &BackendError) {
        let [groups, data, forwards] = self.behind;
        let lost = self.groups.split_off(groups);
        self.data.truncate(data);
        self.forwards.truncate(forwards);
        self.gradients = false;
        self.refuse(&lost, error);
    }

    /// Fails the groups of a minibatch that the service refused.
    pub(super) fn refuse(&mut self, groups: &[TrainingGroup], error: &BackendError) {
        fail(groups, &refused(error));
        self.refused.get_or_insert_with(|| error.clone());
    }

    /// Discards the step; there is no next one.
    pub(super) fn give_up(&self, error: BackendError) -> PipelineError {
        fail(&self.groups, &refused(&error));
        match error {
            BackendError::Lost(why) => PipelineError::SessionLost(why),
            BackendError::TimedOut(_) | BackendError::Away(_) => PipelineError::TrainingUnanswered(error),
            BackendError::Rejected(_)
            | BackendError::Unsupported(_)
            | BackendError::Unavailable(_)
            | BackendError::Denied { .. } => PipelineError::OptimizerStep(error),
        }
    }

    /// Takes all passes, merged into one.
    pub(super) fn take_forward(&mut self) -> Option<ForwardOutput> {
        let forwards = std::mem::take(&mut self.forwards);
        (!forwards.is_empty()).then(|| ForwardOutput::merged(forwards))
    }
}

/// Settles groups that are not part of a step.
pub(super) fn fail(groups: &[TrainingGroup], why: &str) {
    for group in groups {
        group.group.credit.settle(&GroupOutcome::Failed(why.into()));
    }
}

fn refused(error: &BackendError) -> String {
    format!("the batch was refused: {error}")
}
