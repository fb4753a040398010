//! Requests as the service reports them to its observer.

use minds_core::datum::Datum;
use minds_core::ids::{PolicyVersion, Token};
use minds_core::optim::AdamParams;
use minds_core::sampling::SampleRequest;

/// A request to the service.
#[derive(Clone, Copy, Debug)]
pub enum ServiceRequest<'a> {
    /// A sample request. The first value is the number of optimizer steps of the weights.
    Sample(u64, &'a SampleRequest),
    /// A logprob query. The first value is the number of optimizer steps of the weights.
    Logprobs(u64, &'a [Token]),
    /// A request to an adapter. Adapters are numbered from 0 in the order of their creation.
    Adapter(usize, &'a AdapterRequest),
}

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RequestProgress {
    /// The request arrived and is not processed yet.
    Arrived,
    /// Its adapter starts to work on the request.
    Begun,
    /// The request was answered. The value is the time that its adapter spent on it, in seconds; 0 for samples and
    /// logprobs.
    Answered(f64),
    /// The request failed because of [`SimulationOptions::failures`](crate::SimulationOptions::failures).
    Failed,
    /// The request gets no response because of [`SimulationOptions::hangs`](crate::SimulationOptions::hangs).
    Hung,
    /// This many samples of the response have a logprob that is not a number because of
    /// [`SimulationOptions::not_finite`](crate::SimulationOptions::not_finite). `Answered` follows.
    NotFinite(u64),
    /// The caller gave the request up before it was answered.
    Cancelled,
}

/// A request to an adapter in training.
#[derive(Clone, Debug, PartialEq)]
pub enum AdapterRequest {
    /// A pass without gradients.
    Forward(Vec<Datum>),
    /// A pass with gradients.
    ForwardBackward(Vec<Datum>),
    /// An optimizer step with these settings.
    OptimStep(AdamParams),
    /// Saves weights and optimizer under this name.
    SaveState(String),
    /// Loads the weights under this path; with the optimizer if the second value is true.
    LoadState(String, bool),
    /// Exports a sampler, and saves its weights if a name is given.
    Export(Option<String>),
    /// Puts the weights in the place of those of the in-flight samplers, under this name.
    PublishInFlight(PolicyVersion),
    /// Releases the adapter, which gets no further requests.
    Release,
}

impl AdapterRequest {
    /// The data of a pass; none for other requests.
    #[must_use]
    pub fn data(&self) -> &[Datum] {
        match self {
            Self::Forward(data) | Self::ForwardBackward(data) => data,
            _ => &[],
        }
    }
}

impl ServiceRequest<'_> {
    /// Name of the request's kind.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Sample(..) => "sample",
            Self::Logprobs(..) => "logprobs",
            Self::Adapter(_, AdapterRequest::Forward(_)) => "forward",
            Self::Adapter(_, AdapterRequest::ForwardBackward(_)) => "forward_backward",
            Self::Adapter(_, AdapterRequest::OptimStep(_)) => "optim_step",
            Self::Adapter(_, AdapterRequest::SaveState(_)) => "save_state",
            Self::Adapter(_, AdapterRequest::LoadState(..)) => "load_state",
            Self::Adapter(_, AdapterRequest::Export(_)) => "export",
            Self::Adapter(_, AdapterRequest::PublishInFlight(_)) => "publish_in_flight",
            Self::Adapter(_, AdapterRequest::Release) => "release",
        }
    }
}
