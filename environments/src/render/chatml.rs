//! ChatML as SmolLM2 and Qwen2.5 read it, token for token what the model's own chat template gives.
//!
//! A conversation without a system message gets the system line of that template, or none where there is no template.
//! The text between two control tokens is encoded in one piece, as the template's output is: a content that starts
//! with a line break may share a token with the line break of the header.

use super::RenderError;
use super::marker_renderer::{ChatDialect, MarkerLookup, MarkerRenderer, PromptBuilder};
use super::template::{TemplateEngine, TemplateInput};
use minds_core::chat::{ChatTemplate, Message, Role, Tokenizer};
use minds_core::ids::Token;
use serde_json::{Map, json};
use std::sync::Arc;

pub(super) struct ChatMl {
    start: Token,
    end: Token,
    default_system: Option<String>,
}

pub(super) fn renderer(tokenizer: Arc<dyn Tokenizer>) -> Result<MarkerRenderer<ChatMl>, RenderError> {
    let lookup = MarkerLookup { renderer: "chatml", family: "ChatML (SmolLM2)", tokenizer: &*tokenizer };
    let start = lookup.token("<|im_start|>")?;
    let end = lookup.token("<|im_end|>")?;
    let default_system = tokenizer.chat_template().and_then(default_system);
    Ok(MarkerRenderer::new(tokenizer, end, &[start], ChatMl { start, end, default_system }))
}

/// The system message that a template adds to a conversation without one.
fn default_system(template: &ChatTemplate) -> Option<String> {
    let messages = [json!({ "role": "user", "content": "Hi" })];
    let input = TemplateInput { messages: &messages, tools: &[], add_generation_prompt: true };
    let text = TemplateEngine::new(template, Map::new()).ok()?.render(input).ok()?;
    let (system, _) = text.strip_prefix("<|im_start|>system\n")?.split_once("<|im_end|>")?;
    Some(system.to_owned())
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
        if let Some(system) = &self.default_system
            && messages.first().is_some_and(|first| first.role != Role::System)
        {
            self.message(Role::System, system, builder);
        }
        for message in messages {
            self.message(message.role, &message.content, builder);
        }
        builder.marker(self.start).text("assistant\n");
    }
}
