//! What can go wrong in the engine, by what the caller can do about it.

use std::error::Error;
use thiserror::Error as ThisError;

/// Failures of loading, running and training.
#[derive(Debug, ThisError)]
pub enum EngineError {
    /// The shape of the model makes no sense: use another model.
    #[error("the architecture is unusable: {0}")]
    Architecture(String),
    /// The source of the weights failed.
    #[error("failed to read the tensor `{name}`")]
    Tensor {
        /// Which tensor.
        name: String,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A tensor has another size than the architecture asks for.
    #[error("the tensor `{name}` has {len} elements, the architecture needs {expected}")]
    TensorLength {
        /// Which tensor.
        name: String,
        /// Elements found.
        len: usize,
        /// Elements needed.
        expected: usize,
    },
    /// The request names a token that does not exist: never retry it.
    #[error("token {token} is outside of the vocabulary of {vocab}")]
    Token {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The request does not fit the context: shorten it.
    #[error("a sequence of {len} tokens exceeds the context of {context}")]
    TooLong {
        /// Tokens asked for.
        len: usize,
        /// Tokens possible.
        context: usize,
    },
    /// The datum carries other tensors than the loss reads: never retry it.
    #[error("datum {datum} does not carry the tensors of the loss `{loss}`")]
    LossInputs {
        /// Index of the datum.
        datum: usize,
        /// Wire name of the loss.
        loss: &'static str,
    },
    /// The adapter was made for a model of another shape, or by an impossible spec.
    #[error("the adapter does not fit: {0}")]
    Adapter(String),
    /// Weights and data produced a number that is not finite; nothing was changed by the call.
    #[error("the {what} is not finite")]
    NotFinite {
        /// What overflowed: `loss`, `gradient` or `update`.
        what: &'static str,
    },
}
