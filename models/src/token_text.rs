//! The text of every token of a byte-level BPE, so that tokens become text by copying.
//!
//! The `tokenizers` crate looks each token up in two maps, copies its spelling and translates it letter by letter. For
//! completions of thousands of tokens that is most of what a client computes.

use crate::byte_letters::LetterBytes;
use minds_core::ids::Token;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::{Model as _, Tokenizer};

/// Bytes of all tokens, in one piece.
#[derive(Debug)]
pub(crate) struct TokenTexts {
    bytes: Vec<u8>,
    /// Where the bytes of each token begin, and where those of the last one end.
    starts: Vec<u32>,
}

impl TokenTexts {
    /// The texts of all tokens below `vocab`; control tokens and unused ids have none. `None` if the tokenizer does more
    /// than to join bytes.
    pub(crate) fn of(tokenizer: &Tokenizer, vocab: usize) -> Option<Self> {
        let Some(DecoderWrapper::ByteLevel(_)) = tokenizer.get_decoder() else { return None };
        let added = tokenizer.get_added_vocabulary();
        let letters = LetterBytes::new();
        let mut bytes = Vec::new();
        let mut starts = vec![0];
        for token in 0..Token::try_from(vocab).ok()? {
            let spelled =
                added.simple_id_to_token(token).or_else(|| tokenizer.get_model().id_to_token(token));
            if let Some(spelled) = spelled.filter(|spelled| !added.is_special_token(spelled)) {
                letters.append(&spelled, &mut bytes);
            }
            starts.push(u32::try_from(bytes.len()).ok()?);
        }
        Some(Self { bytes, starts })
    }

    /// The text of tokens; bytes that are not UTF-8 become U+FFFD.
    pub(crate) fn join(&self, tokens: &[Token]) -> String {
        let length = tokens.iter().map(|token| self.bytes_of(*token).len()).sum();
        let mut text = Vec::with_capacity(length);
        for token in tokens {
            text.extend_from_slice(self.bytes_of(*token));
        }
        String::from_utf8(text).unwrap_or_else(|error| {
            let mut text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            // Rollouts keep their texts for long, and this one grew step by step.
            text.shrink_to_fit();
            text
        })
    }

    fn bytes_of(&self, token: Token) -> &[u8] {
        let at = token as usize;
        match (self.starts.get(at), self.starts.get(at + 1)) {
            (Some(start), Some(end)) => &self.bytes[*start as usize..*end as usize],
            _ => &[],
        }
    }
}
