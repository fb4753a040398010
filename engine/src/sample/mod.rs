//! From a row of logits to a token.
//!
//! A sample depends on its logits, its parameters, its seed and its index, and on nothing else: not on the batch it
//! runs in, nor on when other rows end. The reported logprob is always that of the untempered, uncut
//! distribution, computed as the trainer computes it, so that the ratio of a fresh sample is exactly 1.

mod choose;
mod normalized_logits;
mod rng;
mod stop;

pub use choose::choose;
pub use normalized_logits::{NonFiniteLogits, NormalizedLogits};
pub use rng::{RequestSeeds, SampleRng};
pub use stop::{StopError, StopRule, StopScanner, StopStatus};
