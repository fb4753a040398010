//! Chat messages, and how they become tokens.

use crate::ids::Token;
use crate::sampling::{Completion, Stop};
use serde::{Deserialize, Serialize};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions.
    System,
    /// The environment.
    User,
    /// The policy.
    Assistant,
}

impl Role {
    /// The lower-case name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One turn of a conversation. The content is text only: it can never become a control token.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A system message.
    pub fn system(content: impl Into<String>) -> Self {
        Self { role: Role::System, content: content.into() }
    }

    /// A user message.
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: Role::User, content: content.into() }
    }

    /// An assistant message.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self { role: Role::Assistant, content: content.into() }
    }
}

/// Text to tokens and back. Control tokens are only ever made by name.
pub trait Tokenizer: Send + Sync {
    /// Tokens of plain text. Text that spells a control token becomes ordinary tokens.
    fn encode(&self, text: &str) -> Vec<Token>;

    /// The control token of this exact name, for example `<|im_end|>`.
    fn control(&self, name: &str) -> Option<Token>;

    /// The text of tokens, control tokens left out. Bytes that are not UTF-8 become U+FFFD.
    fn decode(&self, tokens: &[Token]) -> String;

    /// Tokens in the vocabulary.
    fn vocab(&self) -> usize;

    /// Tokens that end the model's turn.
    fn stop_tokens(&self) -> Vec<Token>;

    /// Token that starts every sequence, where the model wants one.
    fn bos(&self) -> Option<Token>;
}

/// How a sampled turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Termination {
    /// Exactly one stop, at the end.
    Stop,
    /// No stop: it was cut off.
    Truncated,
    /// A stop elsewhere than at the end, or several.
    Malformed,
}

/// A sampled turn as text.
#[derive(Clone, Debug, PartialEq)]
pub struct ParsedCompletion {
    /// Text without the stop.
    pub text: String,
    /// How it ended.
    pub termination: Termination,
}

/// Turns conversations into tokens the way one family of models was trained to read them.
pub trait Renderer: Send + Sync {
    /// The renderer's name, as configs say it.
    fn name(&self) -> &str;

    /// Tokens up to where the assistant's next turn begins.
    fn prompt(&self, messages: &[Message]) -> Vec<Token>;

    /// Tokens of an assistant's turn without its stop: what follows [`Renderer::prompt`] when `text` is the answer.
    fn answer(&self, text: &str) -> Vec<Token>;

    /// What ends the assistant's turn.
    fn stop(&self) -> Stop;

    /// Reads a sampled turn.
    fn parse(&self, sampled: &Completion) -> ParsedCompletion;
}
