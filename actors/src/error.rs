//! How a run can end before all its steps are done.

use minds_core::ids::{GroupId, PolicyVersion};
use minds_core::service::BackendError;
use thiserror::Error;

/// Where a gap between sampled and trained logprobs of the same weights comes from.
pub(crate) const GAP_ADVICE: &str = "look at `model.renderer_name` and the chat template, at `model.base_model` (does the server hold \
                                     the same weights, in the same precision?) and at `trainer.args` (a temperature other than 1, \
                                     top_k and top_p change what is sampled, not what is trained)";

/// Why a pipeline cannot continue, in groups by what can be done: wait for the service, change the config or the
/// environment, or report a bug. The last saved checkpoint can be resumed in every case.
#[derive(Debug, Error)]
pub enum PipelineError {
    // The service: resume when it answers again.
    /// The service has not answered within the longest wait allowed for it.
    #[error("the service is away: {0}")]
    ServiceAway(String),
    /// For too long no group became ready, because a service did not answer.
    #[error("no group succeeded for {seconds} s because a service did not answer: {why}")]
    Unanswered {
        /// Time since the last group that became ready.
        seconds: u64,
        /// Cause of the latest unanswered group.
        why: String,
    },
    /// A request of the trainer was not answered in time.
    #[error(transparent)]
    TrainingUnanswered(BackendError),
    /// The adapter in training is gone.
    #[error("the training session is lost: {0}")]
    SessionLost(String),
    /// An optimizer step failed, and its gradients may still be on the service.
    #[error("the optimizer's step failed: {0}")]
    OptimizerStep(#[source] BackendError),
    /// The new weights cannot sample.
    #[error("failed to export the weights of step {step}: {source}")]
    Export {
        /// Optimizer steps behind the weights.
        step: u64,
        /// Error of the service.
        source: BackendError,
    },
    /// The checkpoint of a step is missing.
    #[error("failed to save the state of step {step}: {source}")]
    Save {
        /// Optimizer steps behind the checkpoint.
        step: u64,
        /// Error of the service.
        source: BackendError,
    },
    /// The run ended for a reason of its own, and its last checkpoint could not be saved either.
    #[error("{why}; then it {source}")]
    NotSaved {
        /// Why the run ended.
        why: Box<PipelineError>,
        /// Why there is no checkpoint.
        source: Box<PipelineError>,
    },

    // The config, the environment or the model: change it, then resume.
    /// Too many groups in a row failed in the environment's own code.
    #[error(
        "every reward of {groups} groups in a row failed in the environment's own code; the first: {first}"
    )]
    EnvironmentFailed {
        /// Groups in a row.
        groups: u64,
        /// Cause of the first of them.
        first: String,
    },
    /// Too many groups in a row failed.
    #[error("{groups} groups in a row failed, the last was {group}: {last}{}", first_failure(.first))]
    GroupsFailed {
        /// Groups in a row.
        groups: u64,
        /// The last of them.
        group: GroupId,
        /// Why the last of them failed.
        last: String,
        /// Cause of the run's first failure, if it is another one.
        first: Option<String>,
        /// Whether the last of them failed because the service has lost what was to sample or score it.
        lost: bool,
    },
    /// Too many groups in a row had no learning signal.
    #[error(
        "{groups} groups in a row had equal rewards and were replaced (`constant_groups`): there is nothing to learn \
         from, the task is too easy or too hard"
    )]
    NothingToLearn {
        /// Groups in a row.
        groups: u64,
    },
    /// Too many batches in a row were refused.
    #[error("{batches} batches in a row were refused: {source}")]
    BatchesRefused {
        /// Batches in a row.
        batches: u32,
        /// Why the last one was refused.
        source: BackendError,
    },
    /// Sampler and trainer disagree about the policy.
    #[error(
        "the logprobs of the first step's tokens when sampled and when trained differ by {gap:.2} nats on average, though \
         the weights are the same: {advice}; `trainer.max_first_gap = 0` continues all the same",
        advice = GAP_ADVICE
    )]
    FirstGap {
        /// Mean absolute gap in nats.
        gap: f64,
    },
    /// The weights or the gradients are not finite.
    #[error("the pass returned non-finite logprobs for {group}: resume from the last checkpoint")]
    NotFinite {
        /// The group whose logprobs are not finite.
        group: GroupId,
    },
    /// The weights of the last step are not worth a checkpoint.
    #[error("did not save step {step}: its weights give non-finite logprobs")]
    UnusableWeights {
        /// Optimizer steps behind the weights.
        step: u64,
    },

    // Bugs.
    /// A stage panicked more often than it may be restarted.
    #[error("the {stage} panicked: {why}")]
    StagePanicked {
        /// Name of the stage.
        stage: &'static str,
        /// Message of the last panic.
        why: String,
    },
    /// A group was sampled by weights that did not exist yet.
    #[error("a group was sampled by weights newer than {version}: versions went back")]
    VersionsWentBack {
        /// The version in training.
        version: PolicyVersion,
    },
    /// The task that commits steps has ended.
    #[error("the step committer has stopped")]
    CommitterGone,
    /// The owner of the pipeline receives no events any more.
    #[error("the owner of the pipeline has stopped receiving events")]
    ObserverGone,
}

impl PipelineError {
    /// Whether the service has failed, so that the same run resumes when it answers again.
    #[must_use]
    pub fn is_service_failure(&self) -> bool {
        match self {
            Self::ServiceAway(_)
            | Self::Unanswered { .. }
            | Self::TrainingUnanswered(_)
            | Self::SessionLost(_)
            | Self::OptimizerStep(_)
            | Self::Export { .. }
            | Self::Save { .. } => true,
            Self::GroupsFailed { lost, .. } => *lost,
            Self::NotSaved { why, .. } => why.is_service_failure(),
            Self::EnvironmentFailed { .. }
            | Self::NothingToLearn { .. }
            | Self::BatchesRefused { .. }
            | Self::FirstGap { .. }
            | Self::NotFinite { .. }
            | Self::UnusableWeights { .. }
            | Self::StagePanicked { .. }
            | Self::VersionsWentBack { .. }
            | Self::CommitterGone
            | Self::ObserverGone => false,
        }
    }
}

fn first_failure(first: &Option<String>) -> String {
    first.as_ref().map(|first| format!("; the run's first failure: {first}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    #[test]
    fn an_error_keeps_its_source_and_a_run_that_was_not_saved_names_both_causes() {
        let save = PipelineError::Save { step: 3, source: BackendError::Lost("gone".into()) };
        assert!(save.source().is_some_and(|source| source.is::<BackendError>()));
        assert!(save.is_service_failure());
        let why = PipelineError::GroupsFailed {
            groups: 2,
            group: GroupId(7),
            last: "no sample".into(),
            first: Some("no model".into()),
            lost: false,
        };
        let both = PipelineError::NotSaved { why: why.into(), source: save.into() };
        assert_eq!(
            both.to_string(),
            "2 groups in a row failed, the last was g7: no sample; the run's first failure: no model; then it failed \
             to save the state of step 3: the service is lost: gone"
        );
        assert!(!both.is_service_failure(), "the first cause counts");
    }
}
