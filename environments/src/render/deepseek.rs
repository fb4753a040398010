//! DeepSeek V3.1 without thoughts: every answer follows the tag that ends a think block.
//!
//! System messages have no marker and always come first, one blank line between them, as the model's
//! template writes them.

use super::RenderError;
use super::marker_renderer::{ChatDialect, MarkerLookup, MarkerRenderer, PromptBuilder};
use super::think_tags::closing;
use minds_core::chat::{Message, Role, Tokenizer};
use minds_core::ids::Token;
use std::sync::Arc;

const NAME: &str = "deepseekv3";

pub(super) struct DeepSeek {
    bos: Token,
    user: Token,
    assistant: Token,
    end: Token,
    no_thoughts: Vec<Token>,
}

pub(super) fn renderer(tokenizer: Arc<dyn Tokenizer>) -> Result<MarkerRenderer<DeepSeek>, RenderError> {
    let lookup = MarkerLookup { renderer: NAME, family: "DeepSeek V3", tokenizer: &*tokenizer };
    let bos = lookup.token("<｜begin▁of▁sentence｜>")?;
    let user = lookup.token("<｜User｜>")?;
    let assistant = lookup.token("<｜Assistant｜>")?;
    let end = lookup.token("<｜end▁of▁sentence｜>")?;
    let no_thoughts = closing(&*tokenizer);
    let dialect = DeepSeek { bos, user, assistant, end, no_thoughts };
    Ok(MarkerRenderer::new(tokenizer, end, &[bos, user, assistant], dialect))
}

impl ChatDialect for DeepSeek {
    fn name(&self) -> &'static str {
        NAME
    }

    fn prompt(&self, messages: &[Message], builder: &mut PromptBuilder<'_>) {
        let system = messages.iter().filter(|message| message.role == Role::System);
        let system: Vec<&str> = system.map(|message| &*message.content).collect();
        builder.marker(self.bos).text(&system.join("\n\n"));
        for Message { role, content } in messages {
            match role {
                Role::System => {}
                Role::User => {
                    builder.marker(self.user).text(content);
                }
                Role::Assistant => {
                    builder.marker(self.assistant).markers(&self.no_thoughts).text(content).marker(self.end);
                }
            }
        }
        builder.marker(self.assistant).markers(&self.no_thoughts);
    }
}
