//! Behavior of the service: latencies, capacities, faults, and hooks for single requests.

use crate::latency::SimulatedLatency;
use crate::numbered::TrainedData;
use crate::request::{RequestProgress, ServiceRequest};
use minds_core::ids::Token;
use minds_core::sampling::{Completion, SampleRequest};
use minds_core::service::{BackendError, ForwardOutput, OptimStep, ServiceInfo};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::time::{Duration, SystemTime};

/// Additional latency of the `n`-th request of a kind, counted from 0.
pub type Delay = Box<dyn Fn(usize) -> Duration + Send + Sync>;

/// Changes the response to the `n`-th request of a kind, counted from 0, or rejects the request.
pub type RequestHook<T> = Box<dyn Fn(usize, &mut T) -> Result<(), BackendError> + Send + Sync>;

/// Changes the samples of the `n`-th sample request, counted from 0, or rejects the request.
pub type SampleHook =
    Box<dyn Fn(usize, &SampleRequest, &mut Vec<Completion>) -> Result<(), BackendError> + Send + Sync>;

/// Behavior of a [`SimulatedService`](crate::SimulatedService). By default, all requests succeed without latency.
///
/// Hooks count sample requests and queries per service, and adapter requests per adapter and kind.
pub struct SimulationOptions {
    /// Description of the service. Requests beyond its vocabulary or context are rejected.
    pub info: ServiceInfo,
    /// Seed of all random draws.
    pub seed: u64,
    /// Latency of one sample, in seconds.
    pub sample: SimulatedLatency,
    /// Latency of one logprob query, in seconds.
    pub query: SimulatedLatency,
    /// Most samples and queries that the service processes at a time; `None` for no limit.
    pub sampling_slots: Option<NonZeroUsize>,
    /// Time of a pass, with or without gradients, in seconds.
    pub forward_backward: SimulatedLatency,
    /// How the time of a pass depends on its data.
    pub pass_time: PassTime,
    /// Adapters start to work only at multiples of this time since the start of the service. The requests that are queued
    /// then follow each other without a further wait. 0: at any time.
    pub cycle: Duration,
    /// Whether only one adapter works at a time.
    pub one_queue: bool,
    /// Time of an optimizer step, in seconds.
    pub optim_step: SimulatedLatency,
    /// Time to export a sampler of new weights, in seconds.
    pub export: SimulatedLatency,
    /// Time to save or load a checkpoint, in seconds.
    pub save: SimulatedLatency,
    /// Length in tokens at which a completion ends. Its last token is the request's first stop token, if there is one.
    pub completion_tokens: usize,
    /// Tokens drawn per second of a sample's latency, which then decide the length in the place of `completion_tokens`.
    pub tokens_per_second: Option<f64>,
    /// The tokens that samples consist of.
    pub alphabet: Range<Token>,
    /// Whether each sample begins with its number, by which it is recognized in training data. Latencies then depend on
    /// the prompt and on how many samples of it were requested before, not on the seed of a request: they are the same
    /// however a client divides samples into requests.
    pub numbered: bool,
    /// Share of the sample requests and logprob queries that fail with a retryable error, from 0 to 1. For sample requests,
    /// at most what [`hangs`](Self::hangs) leaves of 1.
    pub failures: f64,
    /// Share of the sample requests that never get a response, from 0 to 1.
    pub hangs: f64,
    /// Share of the samples whose first logprob is NaN, from 0 to 1.
    pub not_finite: f64,
    /// Time windows in which the service is faulty.
    pub faults: Vec<FaultWindow>,
    /// Whether passes with gradients get a response. [`SimulatedService::answer_passes`] changes this later.
    ///
    /// [`SimulatedService::answer_passes`]: crate::SimulatedService::answer_passes
    pub answers_passes: bool,
    /// Additional latency of a sample request.
    pub sample_delay: Delay,
    /// Additional latency of a logprob query.
    pub query_delay: Delay,
    /// Hook for sample requests.
    pub on_sample: SampleHook,
    /// Hook for logprob queries.
    pub on_query: RequestHook<Vec<Option<f32>>>,
    /// Hook for passes with gradients. A rejected pass leaves no gradients.
    pub on_pass: RequestHook<ForwardOutput>,
    /// Hook for optimizer steps. A rejected step changes no weights.
    pub on_step: RequestHook<OptimStep>,
    /// Hook for exports, which can only reject them.
    pub on_export: RequestHook<()>,
    /// Hook for saved states, which can only reject them.
    pub on_save: RequestHook<()>,
    /// Called for every request when it arrives, before any processing, and with its further progress.
    pub observer: Box<dyn Fn(ServiceRequest<'_>, RequestProgress) + Send + Sync>,
    /// Called after each pass with gradients, with the [`numbered`](Self::numbered) samples that it trained.
    pub on_trained: Box<dyn Fn(&TrainedData) + Send + Sync>,
    /// Clock for the times at which checkpoints were saved.
    pub wall_clock: fn() -> SystemTime,
}

/// How the time of a pass depends on its data.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum PassTime {
    /// Every pass takes [`SimulationOptions::forward_backward`].
    #[default]
    Constant,
    /// A pass over this number of data takes [`SimulationOptions::forward_backward`], others in proportion.
    PerBatch(usize),
    /// The first pass since the last optimizer step takes [`SimulationOptions::forward_backward`], and each pass takes
    /// further time for each datum and token. So it does not matter into how many passes a batch is divided.
    PerDatum {
        /// Time of each datum, in seconds.
        datum: f64,
        /// Time of each token, prompts included, in seconds.
        token: f64,
    },
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
            pass_time: PassTime::Constant,
            cycle: Duration::ZERO,
            one_queue: false,
            optim_step: none,
            export: none,
            save: none,
            completion_tokens: 16,
            tokens_per_second: None,
            alphabet: b'a'.into()..Token::from(b'z') + 1,
            numbered: false,
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
            on_save: Box::new(|_, ()| Ok(())),
            observer: Box::new(|_, _| ()),
            on_trained: Box::new(|_| ()),
            wall_clock: || SystemTime::UNIX_EPOCH,
        }
    }
}

/// A time window in which the service has a fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultWindow {
    /// Start of the window, since the start of the service.
    pub at: Duration,
    /// End of the window, since the start of the service.
    pub until: Duration,
    /// The fault during the window.
    pub fault: SimulatedFault,
}

/// Kind of fault of the service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SimulatedFault {
    /// The service does not respond until the end of the window.
    Away,
    /// Requests that start in the window take longer by this factor.
    Slow(f64),
}
