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
        *self = Self::default();
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_models::ByteTokenizer;
    use proptest::prelude::*;

    #[test]
    fn a_character_over_several_tokens_appears_once_and_whole() {
        let tokenizer = ByteTokenizer;
        let mut stream = TextStream::default();
        let shown: Vec<String> =
            tokenizer.encode("aé😀b").into_iter().map(|token| stream.push(&tokenizer, token)).collect();
        assert_eq!(shown, ["a", "", "é", "", "", "", "😀", "b"]);
        assert_eq!(stream.finish(&tokenizer), "");
        assert_eq!(stream.push(&tokenizer, 0xF0), "");
        assert_eq!(stream.finish(&tokenizer), "\u{FFFD}");
    }

    proptest! {
        #[test]
        fn any_tokens_decode_piecewise_to_the_same_characters(tokens in prop::collection::vec(0u32..300, 0..40)) {
            let tokenizer = ByteTokenizer;
            let mut stream = TextStream::default();
            let mut text: String = tokens.iter().map(|t| stream.push(&tokenizer, *t)).collect();
            text += &stream.finish(&tokenizer);
            let valid = |s: &str| s.chars().filter(|c| *c != '\u{FFFD}').collect::<String>();
            prop_assert_eq!(valid(&text), valid(&tokenizer.decode(&tokens)));
        }

        #[test]
        fn valid_text_streams_exactly(text in any::<String>()) {
            let tokenizer = ByteTokenizer;
            let mut stream = TextStream::default();
            let mut shown: String = tokenizer.encode(&text).iter().map(|t| stream.push(&tokenizer, *t)).collect();
            shown += &stream.finish(&tokenizer);
            prop_assert_eq!(shown, text);
        }
    }
}
