//! Conversations to imitate, and the training data made of them.

use crate::chat::{PromptError, Renderer};
use crate::datum::{Datum, DatumError, LossInputs};
use crate::ids::Token;
use crate::item::Item;
use thiserror::Error;

/// An environment whose items are conversations to imitate. Nothing is sampled: an item is its training data.
pub trait Demonstrations: Send + Sync {
    /// The turns of an item that are to be imitated, in the tokens of a model that reads `context` tokens.
    ///
    /// # Errors
    /// The conversation has no tokens under this renderer, or too many.
    fn turns(
        &self,
        item: &Item,
        renderer: &dyn Renderer,
        context: usize,
    ) -> Result<Vec<ImitatedTurn>, DemonstrationError>;
}

/// Why a conversation cannot be imitated.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum DemonstrationError {
    /// The renderer refuses it.
    #[error("{place}: {source}")]
    Prompt {
        /// Where the conversation is from, such as a file and a line.
        place: String,
        /// The error of the renderer.
        source: PromptError,
    },
    /// The renderer cannot write it in a form that the model would sample.
    #[error("{place}: {why}")]
    Form {
        /// Where the conversation is from.
        place: String,
        /// What is wrong with it.
        why: String,
    },
    /// It is longer than the context of the model.
    #[error("{place} has {tokens} tokens, and the model reads {context}: leave the row out, or shorten it")]
    Length {
        /// Where the conversation is from.
        place: String,
        /// Tokens of the conversation.
        tokens: usize,
        /// Longest sequence, in tokens.
        context: usize,
    },
}

/// A turn of the assistant in a conversation, as the model would have sampled it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImitatedTurn {
    /// All tokens before the turn.
    pub prompt: Vec<Token>,
    /// The tokens of the turn, its stop included.
    pub completion: Vec<Token>,
}

/// Training data with weight 1 on every token of the completions. Turns share a datum as long as each prompt extends
/// everything before it, as in [`Rollout::data`](crate::rollout::Rollout::data).
///
/// ```
/// use minds_core::demonstration::{ImitatedTurn, supervised_data};
///
/// let turn = |prompt: &[u32], completion: &[u32]| ImitatedTurn { prompt: prompt.into(), completion: completion.into() };
/// let data = supervised_data(&[turn(&[1], &[2, 3]), turn(&[1, 2, 3, 4], &[5])]).unwrap();
/// assert_eq!(data.len(), 1);
/// assert_eq!(data[0].targets(), [2, 3, 4, 5]);
/// assert_eq!(data[0].trained_tokens(), 3);
/// ```
///
/// # Errors
/// A turn has a single token, which nothing predicts.
pub fn supervised_data(turns: &[ImitatedTurn]) -> Result<Vec<Datum>, DatumError> {
    let mut data = Vec::new();
    let mut open = WeightedTokens::default();
    for turn in turns {
        if !turn.prompt.starts_with(&open.tokens) {
            data.push(std::mem::take(&mut open).close()?);
        }
        open.add(&turn.prompt[open.tokens.len()..], 0.0);
        open.add(&turn.completion, 1.0);
    }
    if !open.tokens.is_empty() {
        data.push(open.close()?);
    }
    Ok(data)
}

/// Tokens so far, with the weight of each.
#[derive(Default)]
struct WeightedTokens {
    tokens: Vec<Token>,
    weights: Vec<f32>,
}

impl WeightedTokens {
    fn add(&mut self, tokens: &[Token], weight: f32) {
        self.tokens.extend_from_slice(tokens);
        self.weights.resize(self.tokens.len(), weight);
    }

    /// Shifts by one: the input drops the last token, targets and weights drop the first.
    fn close(mut self) -> Result<Datum, DatumError> {
        if self.tokens.len() < 2 {
            return Err(DatumError::Empty);
        }
        let targets = self.tokens.split_off(1);
        let mut input = self.tokens;
        input.extend_from_slice(&targets[..targets.len() - 1]);
        Datum::new(input, targets, LossInputs::Weights(self.weights.split_off(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(prompt: &[Token], completion: &[Token]) -> ImitatedTurn {
        ImitatedTurn { prompt: prompt.into(), completion: completion.into() }
    }

    #[test]
    fn a_turn_whose_prompt_rewrites_the_history_starts_a_new_datum() {
        let data = supervised_data(&[turn(&[1, 2], &[3]), turn(&[1, 9, 3], &[4, 5])]).unwrap();
        let weights = |datum: &Datum| match datum.inputs() {
            LossInputs::Weights(weights) => weights.clone(),
            LossInputs::Policy { .. } => panic!("a policy loss has nothing to learn from"),
        };
        assert_eq!(data.len(), 2);
        assert_eq!((data[0].input(), data[0].targets()), (&[1, 2][..], &[2, 3][..]));
        assert_eq!(weights(&data[0]), [0.0, 1.0]);
        assert_eq!((data[1].input(), data[1].targets()), (&[1, 9, 3, 4][..], &[9, 3, 4, 5][..]));
        assert_eq!(weights(&data[1]), [0.0, 0.0, 1.0, 1.0]);
        assert_eq!(supervised_data(&[]), Ok(vec![]));
        assert_eq!(supervised_data(&[turn(&[], &[7])]), Err(DatumError::Empty));
    }
}
