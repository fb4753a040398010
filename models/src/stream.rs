//! Decodes tokens to text as they arrive.
//!
//! A character whose bytes are spread over several tokens appears once, when its last token arrives; bytes that never
//! form a character appear as U+FFFD. The concatenation of all pieces is the text of all tokens.

use minds_core::chat::Tokenizer;
use minds_core::ids::Token;

/// Decodes one sequence, token by token.
#[derive(Clone, Debug, Default)]
pub struct TextStream {
    // The tokens of the last finished piece, then those since: some decoders treat the first token apart.
    window: Vec<Token>,
    finished: usize,
    // Bytes of the window's text that have been returned.
    shown: usize,
}

impl TextStream {
    /// Creates a stream that has decoded no tokens yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The text that `token` completes; empty while a character is unfinished.
    pub fn push(&mut self, tokenizer: &dyn Tokenizer, token: Token) -> String {
        self.window.push(token);
        let text = tokenizer.decode(&self.window);
        // Only the last U+FFFD can still become a character.
        let settled = text.strip_suffix('\u{FFFD}').unwrap_or(&text);
        let new = settled.get(self.shown..).unwrap_or_default().to_owned();
        self.shown = self.shown.max(settled.len());
        if settled.len() == text.len() {
            self.window.drain(..self.finished);
            self.finished = self.window.len();
            self.shown = tokenizer.decode(&self.window).len();
        }
        new
    }

    /// Returns the remaining text after the last token, and resets the stream.
    pub fn finish(&mut self, tokenizer: &dyn Tokenizer) -> String {
        let text = tokenizer.decode(&self.window);
        let rest = text.get(self.shown..).unwrap_or_default().to_owned();
        *self = Self::new();
        rest
    }
}
