//! `User: …` and `Assistant: …` as plain text, for base models and for vocabularies without control tokens.
//!
//! Nothing but the sequence's start is a control token, so a message that spells a role line is read as one: use it
//! only with content that the environment wrote itself.

use minds_core::chat::{Message, ParsedCompletion, PromptError, Renderer, Role, Termination, Tokenizer};
use minds_core::ids::Token;
use minds_core::sampling::{Completion, Stop};
use std::sync::Arc;

/// The text that ends an answer. It is the start of the next turn, so the history stays a prefix of the next prompt.
const STOP: &str = "\n\nUser:";

pub(super) struct RoleColon {
    tokenizer: Arc<dyn Tokenizer>,
}

impl RoleColon {
    pub(super) fn new(tokenizer: Arc<dyn Tokenizer>) -> Self {
        Self { tokenizer }
    }
}

fn label(role: Role) -> &'static str {
    match role {
        Role::System => "System:",
        Role::User => "User:",
        Role::Assistant => "Assistant:",
    }
}

impl Renderer for RoleColon {
    fn name(&self) -> &str {
        "role_colon"
    }

    fn prompt(&self, messages: &[Message]) -> Result<Vec<Token>, PromptError> {
        let mut tokens: Vec<Token> = self.tokenizer.bos().into_iter().collect();
        for message in messages {
            tokens.extend(self.tokenizer.encode(label(message.role)));
            tokens.extend(self.tokenizer.encode(&format!(" {}\n\n", message.content)));
        }
        tokens.extend(self.tokenizer.encode(label(Role::Assistant)));
        Ok(tokens)
    }

    fn answer(&self, text: &str) -> Vec<Token> {
        self.tokenizer.encode(&format!(" {text}"))
    }

    fn stop(&self) -> Stop {
        Stop::Strings(vec![STOP.into()])
    }

    fn text(&self, tokens: &[Token]) -> String {
        self.tokenizer.decode(tokens)
    }

    /// The stop is either the text `\n\nUser:`, complete only with the last token, or one stop token of the model.
    fn parse(&self, sampled: &Completion) -> ParsedCompletion {
        let tokens = &sampled.tokens[..];
        let stops = self.tokenizer.stop_tokens();
        let Some((last, body)) = tokens.split_last() else {
            return ParsedCompletion { text: String::new(), termination: Termination::Truncated };
        };
        let whole = self.tokenizer.decode(tokens);
        let before = self.tokenizer.decode(body);
        let (text, termination) = if body.iter().any(|t| stops.contains(t)) || before.contains(STOP) {
            (&whole[..], Termination::Malformed)
        } else if stops.contains(last) {
            (&before[..], Termination::Stop)
        } else if let Some((text, _)) = whole.split_once(STOP) {
            (text, Termination::Stop)
        } else {
            (&whole[..], Termination::Truncated)
        };
        ParsedCompletion { text: text.strip_prefix(' ').unwrap_or(text).to_owned(), termination }
    }
}
