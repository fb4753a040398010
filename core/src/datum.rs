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

/// What a run of consecutive positions repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpanSource {
    /// Tokens of the prompt that a sample continued.
    Prompt,
    /// Tokens of the sample.
    Sample,
}

/// A run of consecutive positions, and the tokens that it repeats.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvenanceSpan {
    /// Whether they are tokens of a prompt or of a sample.
    pub source: SpanSource,
    /// Name of the sample, as the service gave it.
    pub sequence_id: Arc<str>,
    /// Position of the first token in the prompt, or in the sample.
    pub offset: usize,
    /// Number of tokens in the run.
    pub length: usize,
}

/// Which samples the tokens of a datum come from: spans whose lengths sum to the length of the datum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Spans of the input, in order.
    pub input: Vec<ProvenanceSpan>,
    /// Spans of the targets, in order.
    pub targets: Vec<ProvenanceSpan>,
}

/// A checked training example. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Datum {
    input: Arc<[Token]>,
    targets: Arc<[Token]>,
    inputs: Arc<LossInputs>,
    /// Which targets the model sampled; `None` if that is not known.
    #[serde(default)]
    sampled: Option<Arc<[bool]>>,
    #[serde(default)]
    provenance: Option<Arc<Provenance>>,
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
    /// Spans of provenance do not tile what they describe.
    #[error(
        "the spans of `{tensor}` cover {len} positions, the datum has {expected}: they must tile it exactly"
    )]
    Spans {
        /// Name of the list of spans.
        tensor: &'static str,
        /// Sum of the lengths of the spans.
        len: usize,
        /// Number of positions in the datum.
        expected: usize,
    },
    /// A number is NaN or infinite.
    #[error("`{tensor}` is {value} at position {position}; it must be finite")]
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
        Ok(Self {
            input: input.into(),
            targets: targets.into(),
            inputs: Arc::new(inputs),
            sampled: None,
            provenance: None,
        })
    }

    /// The same datum, with the targets that the model sampled.
    ///
    /// # Errors
    /// A mask of another length than the datum.
    pub fn with_sampled(mut self, sampled: Vec<bool>) -> Result<Self, DatumError> {
        let tensor = "sequence_ratio_mask";
        if sampled.len() != self.len() {
            return Err(DatumError::Length { tensor, len: sampled.len(), expected: self.len() });
        }
        self.sampled = Some(sampled.into());
        Ok(self)
    }

    /// The same datum, with the samples that its tokens come from.
    ///
    /// # Errors
    /// Spans whose lengths do not sum to the length of the datum.
    pub fn with_provenance(mut self, provenance: Provenance) -> Result<Self, DatumError> {
        let expected = self.len();
        for (tensor, spans) in
            [("model_input_spans", &provenance.input), ("loss_fn_input_spans", &provenance.targets)]
        {
            let len = spans.iter().fold(0, |sum: usize, span| sum.saturating_add(span.length));
            if len != expected {
                return Err(DatumError::Spans { tensor, len, expected });
            }
        }
        self.provenance = Some(Arc::new(provenance));
        Ok(self)
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

    /// Which samples the tokens come from, if the sender said so.
    #[must_use]
    pub fn provenance(&self) -> Option<&Provenance> {
        self.provenance.as_deref()
    }

    /// Whether the model sampled the target at `position`. If the sender did not say so, a target with a logprob or an
    /// advantage was sampled.
    #[must_use]
    pub fn is_sampled(&self, position: usize) -> bool {
        match (&self.sampled, self.inputs()) {
            (_, LossInputs::Weights(_)) => false,
            (Some(sampled), _) => sampled[position],
            (None, LossInputs::Policy { logprobs, advantages }) => {
                logprobs[position] != 0.0 || advantages[position] != 0.0
            }
        }
    }

    /// Logprob at sampling time and advantage of the target at `position`. For weighted data: 0 and the target's weight.
    #[must_use]
    pub fn loss_inputs_at(&self, position: usize) -> (f32, f32) {
        match self.inputs() {
            LossInputs::Weights(weights) => (0.0, weights[position]),
            LossInputs::Policy { logprobs, advantages } => (logprobs[position], advantages[position]),
        }
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

    #[test]
    fn masks_and_spans_must_fit_the_datum() {
        let datum = Datum::supervised(&[1, 2], &[3]).unwrap();
        let span = |length| ProvenanceSpan {
            source: SpanSource::Prompt,
            sequence_id: "s".into(),
            offset: 0,
            length,
        };
        let short = DatumError::Length { tensor: "sequence_ratio_mask", len: 1, expected: 2 };
        assert_eq!(datum.clone().with_sampled(vec![true]), Err(short));
        let provenance = Provenance { input: vec![span(2)], targets: vec![span(1), span(2)] };
        let long = DatumError::Spans { tensor: "loss_fn_input_spans", len: 3, expected: 2 };
        assert_eq!(datum.with_provenance(provenance), Err(long));
    }
}
