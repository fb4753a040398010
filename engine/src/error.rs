//! What can go wrong in the engine, by what the caller can do about it.

use std::error::Error;
use thiserror::Error as ThisError;

/// Failures of loading, running and training.
#[derive(Debug, ThisError)]
pub enum EngineError {
    /// The shape of the model is invalid: use another model.
    #[error("the architecture is unusable: {0}")]
    Architecture(String),
    /// The source of the weights failed.
    #[error("failed to read the tensor `{name}`")]
    Tensor {
        /// Name of the tensor.
        name: String,
        /// Error of the source of the weights.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The size of a tensor differs from what the architecture requires.
    #[error("the tensor `{name}` has {len} elements, the architecture needs {expected}")]
    TensorLength {
        /// Name of the tensor.
        name: String,
        /// Number of elements found.
        len: usize,
        /// Number of elements that the architecture requires.
        expected: usize,
    },
    /// The request names a token that does not exist: never retry it.
    #[error("token {token} is outside of the vocabulary of {vocab}")]
    Token {
        /// Id of the unknown token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The request does not fit the context: shorten it.
    #[error("a sequence of {len} tokens exceeds the context of {context}")]
    TooLong {
        /// Length of the sequence, in tokens.
        len: usize,
        /// Longest sequence that the model supports, in tokens.
        context: usize,
    },
    /// The tensors of the datum are not those that the loss reads: never retry it.
    #[error("datum {datum} does not carry the tensors of the loss `{loss}`")]
    LossInputs {
        /// Index of the datum.
        datum: usize,
        /// Wire name of the loss.
        loss: &'static str,
    },
    /// The formula of the loss is not public: use another loss, or the service that has it.
    #[error(
        "the loss `{loss}` is computed by Tinker's hosted service alone, its formula is not public: use `cispo` or `gspo` \
         here"
    )]
    UnknownFormula {
        /// Wire name of the loss.
        loss: &'static str,
    },
    /// The adapter was made for a model of another shape, or by an impossible spec.
    #[error("the adapter does not fit: {0}")]
    Adapter(String),
    /// Weights and data produced an infinite or NaN value; the call changed nothing.
    #[error("the {what} is not finite")]
    NotFinite {
        /// What overflowed: `loss`, `gradient` or `update`.
        what: &'static str,
    },
}
