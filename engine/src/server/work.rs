//! What can be asked of a model in training, and how it is carried out.

use super::outcome::Outcome;
use super::state::Server;
use crate::checkpoint::{Kind, Notes};
use crate::local::LocalTraining;
use minds_core::backend::{BackendError, TrainingBackend as _};
use minds_core::datum::Datum;
use minds_core::loss::Loss;
use minds_core::optim::AdamParams;
use minds_tinker::types::{
    LoadWeightsResponse, OptimStepResponse, SaveWeightsForSamplerResponse, SaveWeightsResponse, UnloadModel,
};
use std::sync::{Arc, Weak};

/// A request to a model, checked as far as it can be before its turn.
#[derive(Debug)]
pub(super) enum Work {
    /// `forward_backward` or `forward`.
    Pass { data: Vec<Datum>, loss: Loss, with_gradients: bool },
    /// `optim_step`
    Step(AdamParams),
    /// `save_weights`
    Save { name: String, overwrite: bool, notes: Notes },
    /// `save_weights_for_sampler` under a name.
    SaveSampler { name: String, notes: Notes },
    /// `save_weights_for_sampler` without a name: the sampler that is to have the weights.
    Export { sampler: String, session: String },
    /// `load_weights`
    Load { path: String, optimizer: bool },
    /// `unload_model`: the last one, which leaves the model's name in its answer.
    Unload(UnloadModel),
    /// It was wrong. It takes its turn all the same, for its number is used up.
    Refused { kind: &'static str, error: BackendError },
}

/// Names of the kinds, as the addresses of the API have them.
pub(super) mod kind {
    pub(crate) const FORWARD: &str = "forward";
    pub(crate) const FORWARD_BACKWARD: &str = "forward_backward";
    pub(crate) const OPTIM_STEP: &str = "optim_step";
    pub(crate) const SAVE_WEIGHTS: &str = "save_weights";
    pub(crate) const SAVE_WEIGHTS_FOR_SAMPLER: &str = "save_weights_for_sampler";
    pub(crate) const LOAD_WEIGHTS: &str = "load_weights";
    pub(crate) const UNLOAD_MODEL: &str = "unload_model";
}

impl Work {
    /// The work, or the refusal in its place.
    pub(super) fn or_refused(kind: &'static str, work: Result<Self, BackendError>) -> Self {
        work.unwrap_or_else(|error| Self::Refused { kind, error })
    }

    /// What a repeated request must be again.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Pass { with_gradients: true, .. } => kind::FORWARD_BACKWARD,
            Self::Pass { .. } => kind::FORWARD,
            Self::Step(_) => kind::OPTIM_STEP,
            Self::Save { .. } => kind::SAVE_WEIGHTS,
            Self::SaveSampler { .. } | Self::Export { .. } => kind::SAVE_WEIGHTS_FOR_SAMPLER,
            Self::Load { .. } => kind::LOAD_WEIGHTS,
            Self::Unload(_) => kind::UNLOAD_MODEL,
            Self::Refused { kind, .. } => kind,
        }
    }

    pub(super) async fn run(
        self,
        training: &LocalTraining,
        server: &Weak<Server>,
    ) -> Result<Outcome, BackendError> {
        match self {
            Self::Refused { error, .. } => Err(error),
            Self::Pass { data, loss, with_gradients } => {
                let pass = if with_gradients {
                    training.forward_backward(data, loss)
                } else {
                    training.forward(data, loss)
                };
                Ok(Outcome::Pass(pass.await?))
            }
            Self::Step(params) => {
                let metrics = training.optim_step(params).await?.metrics;
                Ok(Outcome::json(&OptimStepResponse { metrics: Some(metrics) }))
            }
            Self::Save { name, overwrite, notes } => {
                let (_, path) = training.save(Kind::Training, &name, overwrite, notes).await?;
                // They may have been sampled under this name as they were before.
                open(server)?.samplers.forget(&path);
                Ok(Outcome::json(&SaveWeightsResponse { path, ..Default::default() }))
            }
            Self::SaveSampler { name, notes } => {
                let (sampler, path) = training.save(Kind::Sampler, &name, false, notes).await?;
                open(server)?.samplers.hold(&path, sampler);
                Ok(Outcome::json(&SaveWeightsForSamplerResponse { path: Some(path), ..Default::default() }))
            }
            Self::Export { sampler: id, session } => {
                let sampler = training.export().await?;
                let server = open(server)?;
                // Within the session: after its end there is nobody to end the sampler.
                let added = server
                    .sessions
                    .with(&session, |_| Ok(server.samplers.add_exported(&id, &session, sampler)?));
                added.map_err(|refusal| BackendError::Rejected(refusal.detail))?;
                let sampling_session_id = Some(id);
                Ok(Outcome::json(&SaveWeightsForSamplerResponse {
                    sampling_session_id,
                    ..Default::default()
                }))
            }
            Self::Unload(request) => Ok(Outcome::json(&request)),
            Self::Load { path, optimizer } => {
                training.load_state(&path, optimizer).await?;
                Ok(Outcome::json(&LoadWeightsResponse { path: Some(path), ..Default::default() }))
            }
        }
    }
}

fn open(server: &Weak<Server>) -> Result<Arc<Server>, BackendError> {
    server.upgrade().ok_or_else(|| BackendError::Lost("the server has stopped".into()))
}
