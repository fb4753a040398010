//! A scripted service for tests and simulations: it samples concurrently, executes the requests of an adapter one after
//! the other, and injects faults.
//!
//! The service uses the clock of its tokio runtime, which may be paused. Tokens, logprobs, latencies and faults are
//! functions of the seed and of each request, so they do not depend on timing. A token's logprob depends only on the
//! number of optimizer steps of the weights: -1 at the start, -1/2 after one step, -1/3 after two. The tokens of a sample
//! are drawn at equal intervals of its latency, so that a sampler whose weights are replaced draws each from the weights
//! of its moment.
//!
//! ```
//! use minds_core::sampling::{SampleRequest, SamplingParams};
//! use minds_core::service::{SamplingBackend, Service};
//! use minds_simulation::{SimulatedLatency, SimulatedService, SimulationOptions};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), minds_core::service::BackendError> {
//! let sample = SimulatedLatency::exponential(10.0).with_tail(0.01, 6.0);
//! let service = SimulatedService::new(SimulationOptions { sample, ..SimulationOptions::default() });
//! let sampler = service.base_sampler().await?;
//! let response = sampler.sample(SampleRequest::new([1, 2, 3].into(), 4, SamplingParams::plain(16))).await?;
//! assert_eq!(response.sequences.len(), 4);
//! assert_eq!(service.counts().borrow().samples, 4);
//! # Ok(())
//! # }
//! ```

mod hosting;
mod latency;
mod numbered;
mod options;
mod recognition;
mod request;
mod sampler;
mod saved;
mod service;
mod state;
mod training;
mod weights;

pub use latency::SimulatedLatency;
pub use numbered::{TrainedData, TrainedSample, fewest_tokens};
pub use options::{Delay, FaultWindow, PassTime, RequestHook, SampleHook, SimulatedFault, SimulationOptions};
pub use request::{AdapterRequest, RequestProgress, ServiceRequest};
pub use service::SimulatedService;
pub use state::ServiceCounts;
