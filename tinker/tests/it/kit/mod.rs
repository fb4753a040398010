//! A small, honest Tinker server with a model that really learns, and a bad network to put in front of it.

pub mod http_message;
pub mod model;
pub mod passes;
pub mod proxy;
pub mod server;
pub mod world;

use minds_core::datum::{Datum, LossInputs};
use minds_core::ids::Token;
use minds_tinker::client::{ClientOptions, ClientTimeouts, ModelLimits};
use std::time::Duration;

/// What the tests' model is called.
pub const MODEL: &str = "toy";

/// Options for a server on this machine, with pauses that cost a test nothing.
pub fn options(url: &str) -> ClientOptions {
    let timeouts = ClientTimeouts {
        backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(20),
        poll_interval: Duration::from_millis(1),
        ..ClientTimeouts::default()
    };
    ClientOptions { timeouts, ..ClientOptions::new(url) }
}

/// What the toy model can take.
pub fn limits() -> ModelLimits {
    ModelLimits { vocab: Some(model::VOCAB), context: Some(model::CONTEXT) }
}

/// An example that weighs every token alike.
pub fn datum(tokens: &[Token]) -> Datum {
    let n = tokens.len() - 1;
    Datum::new(tokens[..n].to_vec(), tokens[1..].to_vec(), LossInputs::Weights(vec![1.0; n])).unwrap()
}
