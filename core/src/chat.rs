//! Chat messages, and how they become tokens.

use crate::ids::Token;
use crate::sampling::{Completion, Stop};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions to the model, ahead of the conversation.
    System,
    /// Messages of the environment to the policy.
    User,
    /// Turns of the policy.
    Assistant,
}

impl Role {
    /// The lower-case name, as serialized.
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
    /// Author of this message.
    pub role: Role,
    /// Plain text without control tokens.
    pub content: String,
}

impl Message {
    /// A message that gives instructions.
    pub fn system(content: impl Into<String>) -> Self {
        Self { role: Role::System, content: content.into() }
    }

    /// A message of the environment.
    pub fn user(content: impl Into<String>) -> Self {
        Self { role: Role::User, content: content.into() }
    }

    /// A message of the policy.
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

    /// All control tokens; their spelling in a rendered chat template becomes their token. None for tokenizers that
    /// cannot list them.
    fn controls(&self) -> Vec<ControlToken> {
        Vec::new()
    }

    /// Whether a text around control tokens has the tokens of its parts, each encoded alone. Some SentencePiece
    /// tokenizers begin every text with a space, and have to be given the whole.
    fn splits_at_controls(&self) -> bool {
        true
    }

    /// The chat template that comes with the tokenizer.
    fn chat_template(&self) -> Option<&ChatTemplate> {
        None
    }
}

/// A control token as a chat template spells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlToken {
    /// The spelling, for example `<|im_end|>`.
    pub name: String,
    /// The id that the spelling stands for.
    pub token: Token,
    /// Whether whitespace before the spelling is part of it.
    pub takes_space_before: bool,
    /// Whether whitespace after the spelling is part of it.
    pub takes_space_after: bool,
}

/// The Jinja template that turns a conversation into the text that a model was trained on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    /// The template in Jinja.
    pub source: String,
    /// Texts of the tokens that the template reads as variables, for example `bos_token`.
    pub special_tokens: BTreeMap<String, String>,
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
    /// How the sampled turn ended.
    pub termination: Termination,
}

/// A conversation that has no tokens: the model's chat template refuses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptError(pub String);

impl std::fmt::Display for PromptError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "failed to render the conversation: {}", self.0)
    }
}

impl std::error::Error for PromptError {}

/// Turns conversations into tokens the way one family of models was trained to read them.
pub trait Renderer: Send + Sync {
    /// The renderer's name, as used in configs.
    fn name(&self) -> &str;

    /// Tokens up to where the assistant's next turn begins.
    ///
    /// # Errors
    /// The model's chat template refuses the conversation, for example one without a user message.
    fn prompt(&self, messages: &[Message]) -> Result<Vec<Token>, PromptError>;

    /// Tokens of an assistant's turn without its stop: what follows [`Renderer::prompt`] when `text` is the completion.
    fn answer(&self, text: &str) -> Vec<Token>;

    /// What ends the assistant's turn during sampling.
    fn stop(&self) -> Stop;

    /// The text of tokens, control tokens left out.
    fn text(&self, tokens: &[Token]) -> String;

    /// Decodes a sampled turn and classifies how it ended.
    fn parse(&self, sampled: &Completion) -> ParsedCompletion;

    /// Tools in the form that the model was trained with; `None` where they have to be described in ordinary messages.
    fn tools(&self) -> Option<&dyn ToolRenderer> {
        None
    }
}

/// A tool call as a model wrote it. Neither the name nor the arguments need be valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedCall {
    /// Name of the tool; empty if none could be read.
    pub name: String,
    /// Arguments, as a JSON text if they could be read.
    pub arguments: String,
}

impl RequestedCall {
    /// A call of a tool by its name.
    pub fn new(name: impl Into<String>, arguments: impl Into<String>) -> Self {
        Self { name: name.into(), arguments: arguments.into() }
    }
}

/// A sampled turn of a conversation with tools.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolTurn {
    /// The turn without its stop, control tokens spelled out.
    pub text: String,
    /// The answer, without thoughts and calls.
    pub content: String,
    /// The thoughts, if there are any.
    pub reasoning: Option<String>,
    /// The calls, in their order.
    pub calls: Vec<RequestedCall>,
    /// How the turn ended.
    pub termination: Termination,
}

/// Tools in the form of one family of models. Messages and tools have the form that chat templates read: JSON with `role`,
/// `content`, `reasoning_content`, `tool_calls` (arguments as objects), `tool_call_id` and `name`.
pub trait ToolRenderer: Send + Sync {
    /// Tokens up to where the assistant's next turn begins.
    ///
    /// # Errors
    /// The chat template refuses the conversation.
    fn prompt(&self, messages: &[Value], tools: &[Value]) -> Result<Vec<Token>, PromptError>;

    /// Tokens of the same prompt from the token on that ends the assistant's message `at`. `None` if that token cannot be
    /// told.
    fn after_turn(&self, messages: &[Value], tools: &[Value], at: usize) -> Option<Vec<Token>>;

    /// Reads a sampled turn. `tools` are those that were offered.
    fn parse(&self, sampled: &Completion, tools: &[Value]) -> ToolTurn;
}
