//! Llama 3's headers, encoded separately from the content; every turn ends with `<|eot_id|>`.

use super::RenderError;
use super::marked::{Ends, Lookup};
use minds_core::chat::{Message, Parsed, Renderer, Role, Tokenizer};
use minds_core::ids::Token;
use minds_core::sampling::{Sampled, Stop};
use std::sync::Arc;

pub(super) struct Llama3 {
    tokenizer: Arc<dyn Tokenizer>,
    bos: Token,
    open: Token,
    close: Token,
    ends: Ends,
}

impl Llama3 {
    pub(super) fn new(tokenizer: Arc<dyn Tokenizer>) -> Result<Self, RenderError> {
        let lookup = Lookup { renderer: "llama3", family: "Llama 3", tokenizer: &*tokenizer };
        let bos = lookup.token("<|begin_of_text|>")?;
        let open = lookup.token("<|start_header_id|>")?;
        let close = lookup.token("<|end_header_id|>")?;
        let ends = Ends::new(lookup.token("<|eot_id|>")?, &[bos, open, close], &*tokenizer);
        Ok(Self { tokenizer, bos, open, close, ends })
    }

    fn header(&self, role: Role, tokens: &mut Vec<Token>) {
        tokens.push(self.open);
        tokens.extend(self.tokenizer.encode(role.name()));
        tokens.push(self.close);
        tokens.extend(self.tokenizer.encode("\n\n"));
    }
}

impl Renderer for Llama3 {
    fn name(&self) -> &str {
        "llama3"
    }

    fn prompt(&self, messages: &[Message]) -> Vec<Token> {
        let mut tokens = vec![self.bos];
        for message in messages {
            self.header(message.role, &mut tokens);
            tokens.extend(self.tokenizer.encode(&message.content));
            tokens.push(self.ends.stop());
        }
        self.header(Role::Assistant, &mut tokens);
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
