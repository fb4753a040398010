//! ChatML as SmolLM2 reads it, token for token what the model's own chat template gives.
//!
//! The text between two control tokens is encoded in one piece, as the template's output is: a content that starts
//! with a line break may share a token with the line break of the header.

use super::RenderError;
use super::marker_renderer::{ChatDialect, MarkerLookup, MarkerRenderer, PromptBuilder};
use minds_core::chat::{Message, Role, Tokenizer};
use minds_core::ids::Token;
use std::sync::Arc;

/// The template's system line for a conversation without one.
const DEFAULT_SYSTEM: &str = "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

pub(super) struct ChatMl {
    start: Token,
    end: Token,
}

pub(super) fn renderer(tokenizer: Arc<dyn Tokenizer>) -> Result<MarkerRenderer<ChatMl>, RenderError> {
    let lookup = MarkerLookup { renderer: "chatml", family: "ChatML (SmolLM2)", tokenizer: &*tokenizer };
    let start = lookup.token("<|im_start|>")?;
    let end = lookup.token("<|im_end|>")?;
    Ok(MarkerRenderer::new(tokenizer, end, &[start], ChatMl { start, end }))
}

impl ChatMl {
    fn message(&self, role: Role, content: &str, builder: &mut PromptBuilder<'_>) {
        builder.marker(self.start).text(&format!("{}\n{content}", role.name())).marker(self.end).text("\n");
    }
}

impl ChatDialect for ChatMl {
    fn name(&self) -> &'static str {
        "chatml"
    }

    fn prompt(&self, messages: &[Message], builder: &mut PromptBuilder<'_>) {
        if messages.first().is_some_and(|first| first.role != Role::System) {
            self.message(Role::System, DEFAULT_SYSTEM, builder);
        }
        for message in messages {
            self.message(message.role, &message.content, builder);
        }
        builder.marker(self.start).text("assistant\n");
    }
}
