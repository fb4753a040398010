//! The prompt after a sampled turn, with the turn's tokens as they were sampled.
//!
//! A text has several tokenizations, and a policy samples others than a tokenizer writes. Tokens are never made from the text of
//! a completion again unless the renderer writes that text otherwise, as those do that drop thoughts: the prompt is then the
//! renderer's, and the rollout becomes more than one datum.

use crate::chat::{Message, PromptError, Renderer};
use crate::ids::Token;
use crate::rollout::Turn;

/// The prompt for `messages`, of which the first `answered` end with the completion of `before`.
///
/// # Errors
/// The renderer refuses the conversation.
pub fn next_prompt(
    renderer: &dyn Renderer,
    before: &Turn,
    answered: usize,
    messages: &[Message],
) -> Result<Vec<Token>, PromptError> {
    let written = renderer.prompt(messages)?;
    Ok(continued(renderer, before, answered, messages, &written).unwrap_or(written))
}

/// The same prompt as a continuation of the completion, token for token; `None` if its text would not be `written`.
fn continued(
    renderer: &dyn Renderer,
    before: &Turn,
    answered: usize,
    messages: &[Message],
    written: &[Token],
) -> Option<Vec<Token>> {
    let tail = after_answer(renderer, messages, answered.checked_sub(1)?).ok()?;
    let sampled = &before.completion.tokens;
    // The completion ends with its stop, which is also the start of what follows.
    let overlap = (0..=tail.len().min(sampled.len())).rev().find(|n| sampled.ends_with(&tail[..*n]))?;
    let tokens = [&before.prompt[..], sampled, &tail[overlap..]].concat();
    let is_same = tokens == written || renderer.text(&tokens) == renderer.text(written);
    is_same.then_some(tokens)
}

/// What a renderer writes after the content of message `at`: the part that does not change with that content.
fn after_answer(renderer: &dyn Renderer, messages: &[Message], at: usize) -> Result<Vec<Token>, PromptError> {
    let with = |content: &str| {
        let mut changed = messages.to_vec();
        changed[at].content = content.into();
        renderer.prompt(&changed)
    };
    let one = with("a")?;
    let other = with("b")?;
    let common = one.iter().rev().zip(other.iter().rev()).take_while(|(a, b)| a == b).count();
    Ok(one[one.len() - common..].to_vec())
}
