//! Requests as the service reports them to its observer.

use minds_core::datum::Datum;
use minds_core::ids::Token;
use minds_core::optim::AdamParams;
use minds_core::sampling::SampleRequest;

/// A request to the service.
#[derive(Clone, Copy, Debug)]
pub enum ServiceRequest<'a> {
    /// Samples of weights with this number of optimizer steps behind them.
    Sample(u64, &'a SampleRequest),
    /// Logprobs under weights with this number of optimizer steps behind them.
    Logprobs(u64, &'a [Token]),
    /// A request to the adapter of this number, in the order of their creation, counted from 0.
    Adapter(usize, &'a AdapterRequest),
}

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RequestProgress {
    /// It arrived, and nothing was done yet.
    Arrived,
    /// It was answered, after this number of seconds in which its adapter was busy with it; 0 for samples and logprobs.
    Answered(f64),
    /// A fault of the options made it fail.
    Failed,
    /// A fault of the options leaves it without an answer.
    Hung,
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
    /// Weights and optimizer are to be saved under this name.
    SaveState(String),
    /// The weights under a path are to be loaded, with the optimizer or without.
    LoadState(String, bool),
    /// A sampler is to be made, and kept if there is a name.
    Export(Option<String>),
    /// The adapter is no longer needed.
    Release,
}

impl ServiceRequest<'_> {
    /// Name of its kind.
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
            Self::Adapter(_, AdapterRequest::Release) => "release",
        }
    }
}
