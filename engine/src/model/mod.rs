//! The frozen decoder: loading, and running new tokens through it.

mod decoder;

pub use decoder::{Extend, Hidden, extend, log_sum_exp, logits};

use crate::error::EngineError;
use crate::real::Real;
use minds_core::architecture::Architecture;

/// A frozen model. Share it with an `Arc`.
#[derive(Debug)]
pub struct Model<T> {
    arch: Architecture,
    embedding: Vec<T>,
}

impl<T: Real> Model<T> {
    /// Reads all weights through `tensor`, which gives the values of a tensor of Hugging Face's name in Hugging
    /// Face's layout (linear layers `[out, in]`).
    ///
    /// # Errors
    /// An unusable architecture, a failing source, or a tensor of another size.
    pub fn load<E>(
        arch: Architecture,
        tensor: &mut dyn FnMut(&str) -> Result<Vec<f32>, E>,
    ) -> Result<Self, EngineError>
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let _ = (arch, tensor);
        todo!()
    }

    /// A model of seeded random weights, for tests.
    ///
    /// # Errors
    /// An unusable architecture.
    pub fn random(arch: Architecture, seed: u64) -> Result<Self, EngineError> {
        let _ = seed;
        Ok(Self { arch, embedding: vec![] })
    }

    /// The shape of the model.
    #[must_use]
    pub fn architecture(&self) -> &Architecture {
        &self.arch
    }

    /// Bytes of all weights.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.embedding.len()
    }
}
