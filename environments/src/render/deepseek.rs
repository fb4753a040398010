//! DeepSeek V3.1 without thoughts: every answer follows the tag that ends a think block.
//!
//! System messages have no marker; wherever they stand they come first, one blank line between them, as the model's
//! template writes them.

use super::RenderError;
use super::marked::{Dialect, Lookup, Marked, Page};
use super::thoughts::closing;
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

pub(super) fn renderer(tokenizer: Arc<dyn Tokenizer>) -> Result<Marked<DeepSeek>, RenderError> {
    let lookup = Lookup { renderer: NAME, family: "DeepSeek V3", tokenizer: &*tokenizer };
    let bos = lookup.token("<｜begin▁of▁sentence｜>")?;
    let user = lookup.token("<｜User｜>")?;
    let assistant = lookup.token("<｜Assistant｜>")?;
    let end = lookup.token("<｜end▁of▁sentence｜>")?;
    let no_thoughts = closing(&*tokenizer);
    let dialect = DeepSeek { bos, user, assistant, end, no_thoughts };
    Ok(Marked::new(tokenizer, end, &[bos, user, assistant], dialect))
}

impl Dialect for DeepSeek {
    fn name(&self) -> &'static str {
        NAME
    }

    fn prompt(&self, messages: &[Message], page: &mut Page<'_>) {
        let system = messages.iter().filter(|message| message.role == Role::System);
        let system: Vec<&str> = system.map(|message| &*message.content).collect();
        page.marker(self.bos).text(&system.join("\n\n"));
        for Message { role, content } in messages {
            match role {
                Role::System => {}
                Role::User => {
                    page.marker(self.user).text(content);
                }
                Role::Assistant => {
                    page.marker(self.assistant).markers(&self.no_thoughts).text(content).marker(self.end);
                }
            }
        }
        page.marker(self.assistant).markers(&self.no_thoughts);
    }
}
