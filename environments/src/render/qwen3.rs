//! Qwen3's dialect of ChatML, as Tinker's renderers of the same names write it.
//!
//! Header and content are encoded separately; there is no default system line. `qwen3` lets the model think: the
//! think block is cut off the parsed text, so that older turns come back without it, as the model's template does.

use super::RenderError;
use super::marked::{Dialect, Lookup, Marked, Page};
use super::thoughts::Thoughts;
use minds_core::chat::{Message, Role, Tokenizer};
use minds_core::ids::Token;
use std::sync::Arc;

/// What the model does before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// It may think. Log-probs of a fixed answer are better asked with [`Mode::DisableThinking`]: here the model
    /// expects a think block first.
    Thinking,
    /// The prompt ends with an empty think block.
    DisableThinking,
    /// The model knows no think block.
    Instruct,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Thinking => "qwen3",
            Self::DisableThinking => "qwen3_disable_thinking",
            Self::Instruct => "qwen3_instruct",
        }
    }
}

pub(super) struct Qwen3 {
    mode: Mode,
    start: Token,
    end: Token,
    thoughts: Thoughts,
    /// What the prompt ends with after the assistant's header.
    prefill: Vec<Token>,
}

pub(super) fn renderer(tokenizer: Arc<dyn Tokenizer>, mode: Mode) -> Result<Marked<Qwen3>, RenderError> {
    let lookup = Lookup { renderer: mode.name(), family: "Qwen3", tokenizer: &*tokenizer };
    let (start, end) = (lookup.token("<|im_start|>")?, lookup.token("<|im_end|>")?);
    let thoughts = Thoughts::new(&*tokenizer);
    let prefill = match mode {
        Mode::DisableThinking => thoughts.empty(&*tokenizer, "\n\n"),
        Mode::Thinking | Mode::Instruct => Vec::new(),
    };
    Ok(Marked::new(tokenizer, end, &[start], Qwen3 { mode, start, end, thoughts, prefill }))
}

impl Qwen3 {
    fn header(&self, role: Role, page: &mut Page<'_>) {
        if !page.is_blank() {
            page.text("\n");
        }
        page.marker(self.start).text(&format!("{}\n", role.name()));
    }
}

impl Dialect for Qwen3 {
    fn name(&self) -> &'static str {
        self.mode.name()
    }

    fn prompt(&self, messages: &[Message], page: &mut Page<'_>) {
        for message in messages {
            self.header(message.role, page);
            page.text(&message.content).marker(self.end);
        }
        self.header(Role::Assistant, page);
        page.markers(&self.prefill);
    }

    fn read(&self, tokenizer: &dyn Tokenizer, turn: &[Token]) -> Option<String> {
        Some(match self.mode {
            Mode::Thinking => self.thoughts.skip(tokenizer, turn),
            Mode::DisableThinking | Mode::Instruct => tokenizer.decode(turn),
        })
    }
}
