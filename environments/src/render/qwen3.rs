//! Qwen3's dialect of ChatML, as Tinker's renderers of the same names write it.
//!
//! Header and content are encoded separately; there is no default system line. `qwen3` lets the model think: the
//! think block is cut off the parsed text, so that older turns come back without it, as the model's template does.

use super::RenderError;
use super::marked::{Ends, Lookup};
use minds_core::chat::{Message, Parsed, Renderer, Role, Termination, Tokenizer};
use minds_core::ids::Token;
use minds_core::sampling::{Sampled, Stop};
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

pub(super) struct Qwen3 {
    tokenizer: Arc<dyn Tokenizer>,
    mode: Mode,
    start: Token,
    ends: Ends,
    /// What the prompt ends with after the assistant's header.
    prefill: Vec<Token>,
}

impl Qwen3 {
    pub(super) fn new(tokenizer: Arc<dyn Tokenizer>, mode: Mode) -> Result<Self, RenderError> {
        let lookup = Lookup { renderer: mode.name(), family: "Qwen3", tokenizer: &*tokenizer };
        let (start, end) = (lookup.token("<|im_start|>")?, lookup.token("<|im_end|>")?);
        let prefill = match mode {
            Mode::DisableThinking => no_thoughts(&*tokenizer),
            Mode::Thinking | Mode::Instruct => Vec::new(),
        };
        let ends = Ends::new(end, &[start], &*tokenizer);
        Ok(Self { tokenizer, mode, start, ends, prefill })
    }

    fn header(&self, role: Role, tokens: &mut Vec<Token>) {
        if !tokens.is_empty() {
            tokens.extend(self.tokenizer.encode("\n"));
        }
        tokens.push(self.start);
        tokens.extend(self.tokenizer.encode(&format!("{}\n", role.name())));
    }
}

/// An empty think block. Some tokenizers hold the think tags as control tokens, Qwen3's own as ordinary tokens that
/// are recognised in text.
fn no_thoughts(tokenizer: &dyn Tokenizer) -> Vec<Token> {
    let (Some(open), Some(close)) = (tokenizer.control("<think>"), tokenizer.control("</think>")) else {
        return tokenizer.encode("<think>\n\n</think>\n\n");
    };
    let blank = tokenizer.encode("\n\n");
    [&[open][..], &blank, &[close], &blank].concat()
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

/// The text after a leading think block; all of it where there is none, or none that ends.
fn after_thoughts(text: &str) -> &str {
    let thoughts = text.trim_start().strip_prefix("<think>");
    thoughts.and_then(|t| t.split_once("</think>")).map_or(text, |(_, rest)| rest.trim_start_matches('\n'))
}

impl Renderer for Qwen3 {
    fn name(&self) -> &str {
        self.mode.name()
    }

    fn prompt(&self, messages: &[Message]) -> Vec<Token> {
        let mut tokens = Vec::new();
        for message in messages {
            self.header(message.role, &mut tokens);
            tokens.extend(self.tokenizer.encode(&message.content));
            tokens.push(self.ends.stop());
        }
        self.header(Role::Assistant, &mut tokens);
        tokens.extend_from_slice(&self.prefill);
        tokens
    }

    fn answer(&self, text: &str) -> Vec<Token> {
        self.tokenizer.encode(text)
    }

    fn stop(&self) -> Stop {
        Stop::Tokens(vec![self.ends.stop()])
    }

    fn parse(&self, sampled: &Sampled) -> Parsed {
        let mut parsed = self.ends.parse(&*self.tokenizer, sampled);
        if self.mode == Mode::Thinking && parsed.termination == Termination::Stop {
            parsed.text = after_thoughts(&parsed.text).to_owned();
        }
        parsed
    }
}

#[cfg(test)]
mod tests {
    use super::after_thoughts;

    #[test]
    fn only_a_leading_closed_think_block_is_cut_off() {
        for (text, rest) in [
            ("<think>\nhm\n</think>\n\n[1]", "[1]"),
            ("\n<think></think>[1]", "[1]"),
            ("[1]", "[1]"),
            ("<think>hm [1]", "<think>hm [1]"),
            ("[1] <think>x</think>", "[1] <think>x</think>"),
        ] {
            assert_eq!(after_thoughts(text), rest, "{text:?}");
        }
    }
}
