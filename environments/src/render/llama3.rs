//! Llama 3's headers, encoded separately from the content; every turn ends with `<|eot_id|>`.

use super::RenderError;
use super::marker_renderer::{ChatDialect, MarkerLookup, MarkerRenderer, PromptBuilder};
use minds_core::chat::{Message, Role, Tokenizer};
use minds_core::ids::Token;
use std::sync::Arc;

pub(super) struct Llama3 {
    bos: Token,
    open: Token,
    close: Token,
    end: Token,
}

pub(super) fn renderer(tokenizer: Arc<dyn Tokenizer>) -> Result<MarkerRenderer<Llama3>, RenderError> {
    let lookup = MarkerLookup { renderer: "llama3", family: "Llama 3", tokenizer: &*tokenizer };
    let bos = lookup.token("<|begin_of_text|>")?;
    let open = lookup.token("<|start_header_id|>")?;
    let close = lookup.token("<|end_header_id|>")?;
    let end = lookup.token("<|eot_id|>")?;
    Ok(MarkerRenderer::new(tokenizer, end, &[bos, open, close], Llama3 { bos, open, close, end }))
}

impl Llama3 {
    fn header(&self, role: Role, builder: &mut PromptBuilder<'_>) {
        builder.marker(self.open).text(role.name()).marker(self.close).text("\n\n");
    }
}

impl ChatDialect for Llama3 {
    fn name(&self) -> &'static str {
        "llama3"
    }

    fn prompt(&self, messages: &[Message], builder: &mut PromptBuilder<'_>) {
        builder.marker(self.bos);
        for message in messages {
            self.header(message.role, builder);
            builder.text(&message.content).marker(self.end);
        }
        self.header(Role::Assistant, builder);
    }
}
