//! Operations on a model in training and their execution.

use crate::outcome::RequestOutcome;
use crate::samplers::SamplerRegistry;
use crate::sessions::SessionTable;
use minds_core::checkpoint::CheckpointNotes;
use minds_core::datum::Datum;
use minds_core::hosting::HostedTraining;
use minds_core::ids::PolicyVersion;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_core::service::{BackendError, Export};
use minds_tinker::types::{
    LoadWeightsResponse, OptimStepResponse, SaveWeightsForSamplerResponse, SaveWeightsResponse, UnloadModel,
};

/// A request to a model, validated as far as possible before its turn.
#[derive(Debug)]
pub(crate) enum ModelOperation {
    /// `forward_backward` if `with_gradients` is set, otherwise `forward`.
    Pass { data: Vec<Datum>, loss: Loss, with_gradients: bool },
    /// `optim_step`: one AdamW step on the accumulated gradients.
    Step(AdamParams),
    /// `save_weights`: saves a checkpoint that training can load.
    Save { name: String, overwrite: bool, notes: CheckpointNotes },
    /// `save_weights_for_sampler` under a name.
    SaveSampler { name: String, notes: CheckpointNotes },
    /// `save_weights_for_sampler` without a name: `sampler` is the id of the sampler that gets the weights. With
    /// `in_flight_of`, the id of the model, all its in-flight samplers get them.
    Export { sampler: String, session: String, in_flight_of: Option<String> },
    /// `load_weights`, with the optimizer moments if `optimizer` is set.
    Load { path: String, optimizer: bool },
    /// `unload_model`: the last operation of a model. Its result repeats the request.
    Unload(UnloadModel),
    /// An invalid request. It still takes its turn, because its number counts in the order.
    Invalid { kind: &'static str, error: BackendError },
}

/// Names of the operations, as in the paths of the API.
pub(crate) mod kind {
    pub(crate) const FORWARD: &str = "forward";
    pub(crate) const FORWARD_BACKWARD: &str = "forward_backward";
    pub(crate) const OPTIM_STEP: &str = "optim_step";
    pub(crate) const SAVE_WEIGHTS: &str = "save_weights";
    pub(crate) const SAVE_WEIGHTS_FOR_SAMPLER: &str = "save_weights_for_sampler";
    pub(crate) const LOAD_WEIGHTS: &str = "load_weights";
    pub(crate) const UNLOAD_MODEL: &str = "unload_model";
}

impl ModelOperation {
    /// The operation, or [`ModelOperation::Invalid`] with the error.
    pub(crate) fn or_invalid(kind: &'static str, operation: Result<Self, BackendError>) -> Self {
        operation.unwrap_or_else(|error| Self::Invalid { kind, error })
    }

    /// Name of the operation; a repeated request must have the same one.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Pass { with_gradients: true, .. } => kind::FORWARD_BACKWARD,
            Self::Pass { .. } => kind::FORWARD,
            Self::Step(_) => kind::OPTIM_STEP,
            Self::Save { .. } => kind::SAVE_WEIGHTS,
            Self::SaveSampler { .. } | Self::Export { .. } => kind::SAVE_WEIGHTS_FOR_SAMPLER,
            Self::Load { .. } => kind::LOAD_WEIGHTS,
            Self::Unload(_) => kind::UNLOAD_MODEL,
            Self::Invalid { kind, .. } => kind,
        }
    }

    pub(crate) async fn run(
        self,
        training: &dyn HostedTraining,
        sessions: &SessionTable,
        samplers: &SamplerRegistry,
    ) -> Result<RequestOutcome, BackendError> {
        match self {
            Self::Invalid { error, .. } => Err(error),
            Self::Pass { data, loss, with_gradients } => {
                let pass = if with_gradients {
                    training.forward_backward(data, loss)
                } else {
                    training.forward(data, loss)
                };
                Ok(RequestOutcome::Pass(pass.await?))
            }
            Self::Step(params) => {
                let metrics = training.optim_step(params).await?.metrics;
                Ok(RequestOutcome::json(&OptimStepResponse { metrics: Some(metrics) }))
            }
            Self::Save { name, overwrite, notes } => {
                let path = training.save_state_with(&name, overwrite, notes).await?;
                // Samplers may have cached the weights that this path held before.
                samplers.forget(&path);
                Ok(RequestOutcome::json(&SaveWeightsResponse { path, ..Default::default() }))
            }
            Self::SaveSampler { name, notes } => {
                let Export { sampler, path } = training.save_sampler_with(&name, notes).await?;
                if let Some(path) = &path {
                    samplers.cache_weights(path, sampler);
                }
                Ok(RequestOutcome::json(&SaveWeightsForSamplerResponse { path, ..Default::default() }))
            }
            Self::Export { sampler: id, session, in_flight_of } => {
                let sampler = match in_flight_of {
                    None => training.export_sampler(None).await?.sampler,
                    // Published weights could not be taken back.
                    Some(_) => {
                        samplers.check_free(&id)?;
                        // The API does not tell versions, so they need no names.
                        training.publish_in_flight(PolicyVersion::default()).await?
                    }
                };
                // Under the lock of the sessions: a sampler added after its session ended would never be removed.
                let added = sessions.with(&session, |_| {
                    match &in_flight_of {
                        Some(model) => samplers.add_in_flight(&id, &session, model, sampler)?,
                        None => samplers.add_exported(&id, &session, sampler)?,
                    }
                    Ok(())
                });
                added.map_err(|error| BackendError::Rejected(error.detail))?;
                let sampling_session_id = Some(id);
                Ok(RequestOutcome::json(&SaveWeightsForSamplerResponse {
                    sampling_session_id,
                    ..Default::default()
                }))
            }
            Self::Unload(request) => Ok(RequestOutcome::json(&request)),
            Self::Load { path, optimizer } => {
                training.load_state(&path, optimizer).await?;
                Ok(RequestOutcome::json(&LoadWeightsResponse { path: Some(path), ..Default::default() }))
            }
        }
    }
}
