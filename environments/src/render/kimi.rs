//! Kimi K2 Thinking. Older turns have an empty think block; the model opens its own answer with one.

use super::RenderError;
use super::marker_renderer::{ChatDialect, MarkerLookup, MarkerRenderer, PromptBuilder};
use super::think_tags::ThinkTags;
use minds_core::chat::{Message, Role, Tokenizer};
use minds_core::ids::Token;
use std::sync::Arc;

const NAME: &str = "kimi_k2";

/// The template's system line for a conversation without one.
const DEFAULT_SYSTEM: &str = "You are Kimi, an AI assistant created by Moonshot AI.";

pub(super) struct Kimi {
    system: Token,
    user: Token,
    assistant: Token,
    middle: Token,
    end: Token,
    thoughts: ThinkTags,
    no_thoughts: Vec<Token>,
}

pub(super) fn renderer(tokenizer: Arc<dyn Tokenizer>) -> Result<MarkerRenderer<Kimi>, RenderError> {
    let lookup = MarkerLookup { renderer: NAME, family: "Kimi K2", tokenizer: &*tokenizer };
    let system = lookup.token("<|im_system|>")?;
    let user = lookup.token("<|im_user|>")?;
    let assistant = lookup.token("<|im_assistant|>")?;
    let middle = lookup.token("<|im_middle|>")?;
    let end = lookup.token("<|im_end|>")?;
    let thoughts = ThinkTags::new(&*tokenizer);
    let no_thoughts = thoughts.empty(&*tokenizer, "");
    let dialect = Kimi { system, user, assistant, middle, end, thoughts, no_thoughts };
    Ok(MarkerRenderer::new(tokenizer, end, &[system, user, assistant, middle], dialect))
}

impl Kimi {
    fn header(&self, role: Role, builder: &mut PromptBuilder<'_>) {
        let marker = match role {
            Role::System => self.system,
            Role::User => self.user,
            Role::Assistant => self.assistant,
        };
        builder.marker(marker).text(role.name()).marker(self.middle);
    }
}

impl ChatDialect for Kimi {
    fn name(&self) -> &'static str {
        NAME
    }

    fn prompt(&self, messages: &[Message], builder: &mut PromptBuilder<'_>) {
        if messages.first().is_some_and(|first| first.role != Role::System) {
            self.header(Role::System, builder);
            builder.text(DEFAULT_SYSTEM).marker(self.end);
        }
        for Message { role, content } in messages {
            self.header(*role, builder);
            if *role == Role::Assistant {
                builder.markers(&self.no_thoughts);
            }
            builder.text(content).marker(self.end);
        }
        self.header(Role::Assistant, builder);
    }

    fn opening(&self) -> &[Token] {
        &self.no_thoughts
    }

    fn read(&self, tokenizer: &dyn Tokenizer, turn: &[Token]) -> Option<String> {
        Some(self.thoughts.skip(tokenizer, turn))
    }
}
