//! The tokenizer of the file-less test model: one token per byte, and three control tokens.

use minds_core::chat::Tokenizer;
use minds_core::ids::Token;

/// Names of the tokens from 256 on.
const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// Bytes 0 to 255 are themselves; 256 is `<|endoftext|>`, 257 `<|im_start|>`, 258 `<|im_end|>`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByteTokenizer;

impl Tokenizer for ByteTokenizer {
    fn encode(&self, text: &str) -> Vec<Token> {
        text.bytes().map(Token::from).collect()
    }

    fn control(&self, name: &str) -> Option<Token> {
        (256..).zip(CONTROL).find(|(_, known)| *known == name).map(|(id, _)| id)
    }

    fn decode(&self, tokens: &[Token]) -> String {
        let bytes: Vec<u8> = tokens.iter().filter_map(|t| u8::try_from(*t).ok()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn vocab(&self) -> usize {
        256 + CONTROL.len()
    }

    fn stop_tokens(&self) -> Vec<Token> {
        vec![258, 256]
    }

    fn bos(&self) -> Option<Token> {
        None
    }
}
