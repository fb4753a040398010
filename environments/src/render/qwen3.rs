//! Qwen3's dialect of ChatML, as Tinker's renderers of the same names write it.
//!
//! Header and content are encoded separately; there is no default system line. `qwen3` lets the model think: the
//! think block is cut off the parsed text, so that older turns come back without it, as the model's template does.

use super::RenderError;
use super::marker_renderer::{ChatDialect, MarkerLookup, MarkerRenderer, PromptBuilder};
use super::think_tags::ThinkTags;
use minds_core::chat::{Message, Role, Tokenizer};
use minds_core::ids::Token;
use std::sync::Arc;

/// What the model does before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThinkingMode {
    /// It may think. Prefer [`ThinkingMode::DisableThinking`] for logprobs of a fixed answer: here the model
    /// expects a think block first.
    Thinking,
    /// The prompt ends with an empty think block.
    DisableThinking,
    /// The model knows no think block.
    Instruct,
}

impl ThinkingMode {
    fn name(self) -> &'static str {
        match self {
            Self::Thinking => "qwen3",
            Self::DisableThinking => "qwen3_disable_thinking",
            Self::Instruct => "qwen3_instruct",
        }
    }
}

pub(super) struct Qwen3 {
    mode: ThinkingMode,
    start: Token,
    end: Token,
    thoughts: ThinkTags,
    /// What the prompt ends with after the assistant's header.
    prefill: Vec<Token>,
}

pub(super) fn renderer(
    tokenizer: Arc<dyn Tokenizer>,
    mode: ThinkingMode,
) -> Result<MarkerRenderer<Qwen3>, RenderError> {
    let lookup = MarkerLookup { renderer: mode.name(), family: "Qwen3", tokenizer: &*tokenizer };
    let start = lookup.token("<|im_start|>")?;
    let end = lookup.token("<|im_end|>")?;
    let thoughts = ThinkTags::new(&*tokenizer);
    let prefill = match mode {
        ThinkingMode::DisableThinking => thoughts.empty(&*tokenizer, "\n\n"),
        ThinkingMode::Thinking | ThinkingMode::Instruct => Vec::new(),
    };
    Ok(MarkerRenderer::new(tokenizer, end, &[start], Qwen3 { mode, start, end, thoughts, prefill }))
}

impl Qwen3 {
    fn header(&self, role: Role, builder: &mut PromptBuilder<'_>) {
        if !builder.is_blank() {
            builder.text("\n");
        }
        builder.marker(self.start).text(&format!("{}\n", role.name()));
    }
}

impl ChatDialect for Qwen3 {
    fn name(&self) -> &'static str {
        self.mode.name()
    }

    fn prompt(&self, messages: &[Message], builder: &mut PromptBuilder<'_>) {
        for message in messages {
            self.header(message.role, builder);
            builder.text(&message.content).marker(self.end);
        }
        self.header(Role::Assistant, builder);
        builder.markers(&self.prefill);
    }

    fn read(&self, tokenizer: &dyn Tokenizer, turn: &[Token]) -> Option<String> {
        Some(match self.mode {
            ThinkingMode::Thinking => self.thoughts.skip(tokenizer, turn),
            ThinkingMode::DisableThinking | ThinkingMode::Instruct => tokenizer.decode(turn),
        })
    }
}
