//! ChatML as SmolLM2 reads it, token for token what the model's own chat template gives.
//!
//! The text between two control tokens is encoded in one piece, as the template's output is: a content that starts
//! with a line break may share a token with the line break of the header.

use super::RenderError;
use super::marked::{Ends, Lookup};
use minds_core::chat::{Message, Parsed, Renderer, Role, Tokenizer};
use minds_core::ids::Token;
use minds_core::sampling::{Sampled, Stop};
use std::sync::Arc;

/// The template's system line where a conversation brings none.
const DEFAULT_SYSTEM: &str = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

pub(super) struct ChatMl {
    tokenizer: Arc<dyn Tokenizer>,
    start: Token,
    ends: Ends,
}

impl ChatMl {
    pub(super) fn new(tokenizer: Arc<dyn Tokenizer>) -> Result<Self, RenderError> {
        let lookup = Lookup { renderer: "chatml", family: "ChatML (SmolLM2)", tokenizer: &*tokenizer };
        let (start, end) = (lookup.token("<|im_start|>")?, lookup.token("<|im_end|>")?);
        let ends = Ends::new(end, &[start], &*tokenizer);
        Ok(Self { tokenizer, start, ends })
    }

    fn message(&self, role: Role, content: &str, tokens: &mut Vec<Token>) {
        tokens.push(self.start);
        tokens.extend(self.tokenizer.encode(&format!("{}\n{content}", role.name())));
        tokens.push(self.ends.stop());
        tokens.extend(self.tokenizer.encode("\n"));
    }
}

impl Renderer for ChatMl {
    fn name(&self) -> &str {
        "chatml"
    }

    fn prompt(&self, messages: &[Message]) -> Vec<Token> {
        let mut tokens = Vec::new();
        if messages.first().is_some_and(|first| first.role != Role::System) {
            self.message(Role::System, DEFAULT_SYSTEM, &mut tokens);
        }
        for message in messages {
            self.message(message.role, &message.content, &mut tokens);
        }
        tokens.push(self.start);
        tokens.extend(self.tokenizer.encode("assistant\n"));
        tokens
    }

    fn answer(&self, text: &str) -> Vec<Token> {
        self.tokenizer.encode(text)
    }

    fn stop(&self) -> Stop {
        Stop::Tokens(vec![self.ends.stop()])
    }

    fn parse(&self, sampled: &Sampled) -> Parsed {
        self.ends.parse(&*self.tokenizer, sampled)
    }
}
