//! One training example: tokens, shifted targets and the tensors of its loss.
//!
//! Position `t` of every tensor describes the token predicted *from* `input[t]`, so `targets[t]` is `input[t + 1]`
//! wherever both exist. All tensors of a datum have one length; every number in it is finite.

use crate::ids::Token;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use thiserror::Error;

/// The tensors that a loss reads beside the tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum LossInputs {
    /// One weight per target, for [`Loss::CrossEntropy`](crate::loss::Loss::CrossEntropy).
    Weights(Vec<f32>),
    /// For the policy losses: logprobs at sampling time and advantages. An advantage of 0 leaves a position out.
    Policy {
        /// Logprob of each target when it was sampled; 0 where it was not sampled.
        logprobs: Vec<f32>,
        /// Advantage of each target; 0 where it was not sampled.
        advantages: Vec<f32>,
    },
}

/// A checked training example. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Datum {
    input: Arc<[Token]>,
    targets: Arc<[Token]>,
    inputs: Arc<LossInputs>,
}

/// Why tensors do not form a valid datum.
#[derive(Debug, Error, PartialEq)]
pub enum DatumError {
    /// There is no token to learn from.
    #[error("the datum is empty")]
    Empty,
    /// A tensor has another length than the input.
    #[error("`{tensor}` has {len} elements, the input has {expected} tokens")]
    Length {
        /// Name of the invalid tensor.
        tensor: &'static str,
        /// Number of elements it has.
        len: usize,
        /// Length of the input, in tokens.
        expected: usize,
    },
    /// A number is NaN or infinite.
    #[error("`{tensor}` is {value} at position {position}, it must be finite")]
    NotFinite {
        /// Name of the invalid tensor.
        tensor: &'static str,
        /// Position of the value, from 0.
        position: usize,
        /// The value that is not finite.
        value: f32,
    },
}

impl Datum {
    /// Joins tensors of one length.
    ///
    /// # Errors
    /// Empty input, a tensor of another length, or a value that is NaN or infinite.
    pub fn new(input: Vec<Token>, targets: Vec<Token>, inputs: LossInputs) -> Result<Self, DatumError> {
        let expected = input.len();
        if expected == 0 {
            return Err(DatumError::Empty);
        }
        if targets.len() != expected {
            return Err(DatumError::Length { tensor: "target_tokens", len: targets.len(), expected });
        }
        let tensors: Vec<(&'static str, &[f32])> = match &inputs {
            LossInputs::Weights(weights) => vec![("weights", weights)],
            LossInputs::Policy { logprobs, advantages } => {
                vec![("logprobs", logprobs), ("advantages", advantages)]
            }
        };
        for (tensor, values) in tensors {
            if values.len() != expected {
                return Err(DatumError::Length { tensor, len: values.len(), expected });
            }
            if let Some(position) = values.iter().position(|v| !v.is_finite()) {
                return Err(DatumError::NotFinite { tensor, position, value: values[position] });
            }
        }
        Ok(Self { input: input.into(), targets: targets.into(), inputs: Arc::new(inputs) })
    }

    /// A supervised example: weight 1 on each token of `answer`, 0 on the prompt.
    ///
    /// # Errors
    /// There is no token that another one predicts.
    pub fn supervised(prompt: &[Token], answer: &[Token]) -> Result<Self, DatumError> {
        let mut input = [prompt, answer].concat();
        if input.len() < 2 {
            return Err(DatumError::Empty);
        }
        let targets = input.split_off(1);
        input.extend_from_slice(&targets[..targets.len() - 1]);
        // Target `t` is token `t + 1` of the whole.
        let weights = (1..=targets.len()).map(|at| if at < prompt.len() { 0.0 } else { 1.0 }).collect();
        Self::new(input, targets, LossInputs::Weights(weights))
    }

    /// Tokens the model reads.
    #[must_use]
    pub fn input(&self) -> &[Token] {
        &self.input
    }

    /// Token to predict at each position.
    #[must_use]
    pub fn targets(&self) -> &[Token] {
        &self.targets
    }

    /// Weights, or logprobs and advantages, one per position.
    #[must_use]
    pub fn inputs(&self) -> &LossInputs {
        &self.inputs
    }

    /// Number of positions in every tensor.
    #[must_use]
    pub fn len(&self) -> usize {
        self.input.len()
    }

    /// Never true: an empty datum cannot be made.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.input.is_empty()
    }

    /// Positions whose weight or advantage is not zero.
    #[must_use]
    pub fn trained_tokens(&self) -> usize {
        let carriers = match &*self.inputs {
            LossInputs::Weights(weights) => weights,
            LossInputs::Policy { advantages, .. } => advantages,
        };
        carriers.iter().filter(|v| **v != 0.0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_is_trained_and_its_prompt_is_not() {
        let datum = Datum::supervised(&[1, 2, 3], &[4, 5]).unwrap();
        assert_eq!((datum.input(), datum.targets()), (&[1, 2, 3, 4][..], &[2, 3, 4, 5][..]));
        assert_eq!(*datum.inputs(), LossInputs::Weights(vec![0.0, 0.0, 1.0, 1.0]));
        // Nothing predicts the first token of a text without a prompt.
        assert_eq!(*Datum::supervised(&[], &[4, 5]).unwrap().inputs(), LossInputs::Weights(vec![1.0]));
        assert_eq!(Datum::supervised(&[1], &[]), Err(DatumError::Empty));
    }
}
