//! How the service behaves: times, capacities, faults, and scripts for single requests.

use crate::latency::SimulatedLatency;
use crate::request::{RequestProgress, ServiceRequest};
use minds_core::sampling::{Completion, SampleRequest};
use minds_core::service::{BackendError, ForwardOutput, OptimStep, ServiceInfo};
use std::num::NonZeroUsize;
use std::time::Duration;

/// Time that the `n`-th request of a kind takes beyond the drawn time, counted from 0.
pub type Delay = Box<dyn Fn(usize) -> Duration + Send + Sync>;

/// Changes the answer to the `n`-th request of a kind, counted from 0, or refuses it.
pub type RequestHook<T> = Box<dyn Fn(usize, &mut T) -> Result<(), BackendError> + Send + Sync>;

/// Changes the samples of the `n`-th request for some, counted from 0, or refuses it.
pub type SampleHook =
    Box<dyn Fn(usize, &SampleRequest, &mut Vec<Completion>) -> Result<(), BackendError> + Send + Sync>;

/// Behavior of a [`SimulatedService`](crate::SimulatedService). By default everything takes no time and succeeds.
///
/// Hooks number the samples and queries of the whole service, and the requests of each adapter by their kind.
pub struct SimulationOptions {
    /// What the service reports about itself. Requests beyond its vocabulary and context are refused.
    pub info: ServiceInfo,
    /// Seed of all draws.
    pub seed: u64,
    /// Time that one sample takes, in seconds.
    pub sample: SimulatedLatency,
    /// Time that one logprob query takes.
    pub query: SimulatedLatency,
    /// Samples and queries that the service processes at a time.
    pub sampling_slots: Option<NonZeroUsize>,
    /// Time of a pass.
    pub forward_backward: SimulatedLatency,
    /// Data in a pass that takes all of its time; another pass takes its share. `None`: the size does not matter.
    pub whole_batch: Option<usize>,
    /// Time that an optimizer step takes.
    pub optim_step: SimulatedLatency,
    /// Time to make a sampler of new weights.
    pub export: SimulatedLatency,
    /// Time to save or load a checkpoint.
    pub save: SimulatedLatency,
    /// Tokens after which a completion ends, with the first stop token if the request names any.
    pub completion_tokens: usize,
    /// Share of the requests for samples and logprobs that fail and may be retried.
    pub failures: f64,
    /// Share of the requests for samples that never get a response.
    pub hangs: f64,
    /// Share of the samples with a logprob that is not finite.
    pub not_finite: f64,
    /// Time windows in which the service is faulty.
    pub faults: Vec<FaultWindow>,
    /// Whether passes are answered; [`SimulatedService::answer_passes`](crate::SimulatedService::answer_passes) changes
    /// it later.
    pub answers_passes: bool,
    /// Further time of a sample request.
    pub sample_delay: Delay,
    /// Further time of a logprob query.
    pub query_delay: Delay,
    /// Script of sample requests.
    pub on_sample: SampleHook,
    /// Script of logprob queries.
    pub on_query: RequestHook<Vec<Option<f32>>>,
    /// Script of passes with gradients; a refused one leaves none.
    pub on_pass: RequestHook<ForwardOutput>,
    /// Script of optimizer steps; a refused one changes no weights.
    pub on_step: RequestHook<OptimStep>,
    /// Script of exports; it may only refuse them.
    pub on_export: RequestHook<()>,
    /// Receives every request when it arrives, before anything else is done, and when it is answered.
    pub observer: Box<dyn Fn(ServiceRequest<'_>, RequestProgress) + Send + Sync>,
}

impl Default for SimulationOptions {
    fn default() -> Self {
        let none = SimulatedLatency::constant(0.0);
        Self {
            info: ServiceInfo {
                name: "simulated".into(),
                base_model: "simulated".into(),
                context: 32_768,
                vocab: 256,
                topk_prompt_logprobs: true,
            },
            seed: 0,
            sample: none,
            query: none,
            sampling_slots: None,
            forward_backward: none,
            whole_batch: None,
            optim_step: none,
            export: none,
            save: none,
            completion_tokens: 16,
            failures: 0.0,
            hangs: 0.0,
            not_finite: 0.0,
            faults: Vec::new(),
            answers_passes: true,
            sample_delay: Box::new(|_| Duration::ZERO),
            query_delay: Box::new(|_| Duration::ZERO),
            on_sample: Box::new(|_, _, _| Ok(())),
            on_query: Box::new(|_, _| Ok(())),
            on_pass: Box::new(|_, _| Ok(())),
            on_step: Box::new(|_, _| Ok(())),
            on_export: Box::new(|_, ()| Ok(())),
            observer: Box::new(|_, _| ()),
        }
    }
}

/// A stretch of time in which the service is faulty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultWindow {
    /// Start of the window, since the start of the service.
    pub at: Duration,
    /// End of the window, since the start of the service.
    pub until: Duration,
    /// The fault during the window.
    pub fault: SimulatedFault,
}

/// Kind of a fault of the service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SimulatedFault {
    /// No responses until the end of the window: a client retries until then.
    Away,
    /// Everything that begins in the window takes longer by this factor.
    Slow(f64),
}
