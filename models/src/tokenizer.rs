//! Text to tokens and back, over the `tokenizers` crate.
//!
//! Text never becomes a control token: the text `<|im_end|>` is encoded as ordinary tokens, and control tokens are
//! created by name only. Added tokens that are not control tokens (Qwen3's `<think>`) are recognized in text, as in the
//! training of the models.

use crate::error::ModelError;
use crate::pretokenizer::{PreTokenization, pre_tokenization};
use minds_core::chat;
use minds_core::ids::Token;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{AddedToken, PaddingParams};

/// Tokenizer of a model, read from a `tokenizer.json` or a GGUF file.
#[derive(Debug)]
pub struct ModelTokenizer {
    inner: tokenizers::Tokenizer,
    control: BTreeMap<String, Token>,
    vocab: usize,
    stop: Vec<Token>,
    bos: Option<Token>,
}

/// A byte-level BPE as a GGUF file carries it.
#[derive(Debug)]
pub(crate) struct ByteLevelParts {
    pub(crate) pre: String,
    pub(crate) tokens: Vec<String>,
    pub(crate) merges: Vec<(String, String)>,
    pub(crate) control: Vec<String>,
    pub(crate) added: Vec<String>,
}

/// Texts that end a turn in the model families at hand, whatever else the files declare; llama.cpp keeps the same
/// list. SmolLM2 declares only `<|im_end|>` but ends some texts with `<|endoftext|>`.
const END_OF_TURN: [&str; 6] =
    ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<end_of_turn>"];

impl ModelTokenizer {
    /// Builds a tokenizer from the parts of a GGUF file.
    pub(crate) fn from_parts(path: &Path, parts: ByteLevelParts) -> Result<Self, ModelError> {
        let damaged = |e: tokenizers::Error| ModelError::damaged(path, format!("its tokenizer: {e}"));
        let PreTokenization { normalizer, pre_tokenizer, ignore_merges } =
            pre_tokenization(path, &parts.pre)?;
        let mut vocab = Vocab::default();
        for (id, token) in parts.tokens.into_iter().enumerate() {
            let id = Token::try_from(id).map_err(|e| damaged(e.into()))?;
            vocab.insert(token, id);
        }
        let bpe = BPE::builder()
            .vocab_and_merges(vocab, parts.merges)
            .ignore_merges(ignore_merges)
            .build()
            .map_err(damaged)?;
        let mut inner = tokenizers::Tokenizer::new(bpe);
        inner.with_normalizer(normalizer).map_err(damaged)?;
        inner.with_pre_tokenizer(Some(pre_tokenizer));
        inner.with_decoder(Some(ByteLevel::default()));
        let token = |special: bool| move |text: String| AddedToken::from(text, special).normalized(false);
        inner.add_special_tokens(parts.control.into_iter().map(token(true))).map_err(damaged)?;
        inner.add_tokens(parts.added.into_iter().map(token(false))).map_err(damaged)?;
        Ok(Self::finish(inner))
    }

    /// Builds a tokenizer from the content of a `tokenizer.json`.
    pub(crate) fn from_json(path: &Path, json: &[u8]) -> Result<Self, ModelError> {
        let damaged = |reason: String| ModelError::damaged(path, reason);
        let mut value: Value = serde_json::from_slice(json).map_err(|e| damaged(e.to_string()))?;
        // Some files leave `<|…|>` tokens unmarked; a text could then spell them.
        for token in value["added_tokens"].as_array_mut().into_iter().flatten() {
            let is_control =
                token["content"].as_str().is_some_and(|s| s.starts_with("<|") && s.ends_with("|>"));
            if is_control {
                token["special"] = Value::Bool(true);
            }
        }
        let json = serde_json::to_vec(&value).map_err(|e| damaged(e.to_string()))?;
        drop(value);
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(|e| damaged(e.to_string()))?;
        inner.with_padding(None::<PaddingParams>);
        inner.with_truncation(None).map_err(|e| damaged(e.to_string()))?;
        Ok(Self::finish(inner))
    }

    fn finish(mut inner: tokenizers::Tokenizer) -> Self {
        inner.set_encode_special_tokens(true);
        let mut control = BTreeMap::new();
        for (id, token) in inner.get_added_tokens_decoder() {
            if token.special {
                control.insert(token.content, id);
            }
        }
        // Ids may have gaps and the embedding may be padded: one past the largest is what an id must stay below.
        let vocab = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        Self { inner, control, vocab, stop: Vec::new(), bos: None }
    }

    /// Adds the ids that the model's files declare.
    pub(crate) fn with_ids(mut self, declared_stops: Vec<Token>, bos: Option<Token>) -> Self {
        let by_text = END_OF_TURN.iter().filter_map(|text| self.control.get(*text).copied());
        for token in declared_stops.into_iter().chain(by_text) {
            if (token as usize) < self.vocab && !self.stop.contains(&token) {
                self.stop.push(token);
            }
        }
        self.bos = bos;
        self
    }

    /// What the file's own post-processor puts before every text.
    pub(crate) fn declared_bos(&self) -> Option<Token> {
        self.inner.encode("", true).ok()?.get_ids().first().copied()
    }

    /// The text of tokens, control tokens spelled out.
    #[must_use]
    pub fn decode_with_control(&self, tokens: &[Token]) -> String {
        self.inner.decode(tokens, false).unwrap_or_default()
    }

    /// Names and ids of all control tokens.
    pub fn control_tokens(&self) -> impl Iterator<Item = (&str, Token)> {
        self.control.iter().map(|(name, id)| (name.as_str(), *id))
    }
}

impl chat::Tokenizer for ModelTokenizer {
    fn encode(&self, text: &str) -> Vec<Token> {
        match self.inner.encode_fast(text, false) {
            Ok(encoding) => encoding.get_ids().to_vec(),
            Err(error) => {
                // Byte-level BPE encodes every byte; only a tokenizer.json with a broken normalizer can fail.
                tracing::error!(%error, "text could not be encoded");
                Vec::new()
            }
        }
    }

    fn control(&self, name: &str) -> Option<Token> {
        self.control.get(name).copied()
    }

    fn decode(&self, tokens: &[Token]) -> String {
        self.inner.decode(tokens, true).unwrap_or_default()
    }

    fn vocab(&self) -> usize {
        self.vocab
    }

    fn stop_tokens(&self) -> Vec<Token> {
        self.stop.clone()
    }

    fn bos(&self) -> Option<Token> {
        self.bos
    }
}
