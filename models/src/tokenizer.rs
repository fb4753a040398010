//! Text to tokens and back, over the `tokenizers` crate.
//!
//! Text never becomes a control token: the text `<|im_end|>` is encoded as ordinary tokens, and control tokens are
//! created by name only. Added tokens that are not control tokens (Qwen3's `<think>`) are recognized in text, as in the
//! training of the models. A rendered chat template is text of another kind: [`chat::Tokenizer::controls`] lists the spellings
//! that stand for control tokens there.

use crate::error::ModelError;
use crate::pretokenizer::{PreTokenization, pre_tokenization};
use crate::token_text::TokenTexts;
use minds_core::chat;
use minds_core::ids::Token;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{AddedToken, PaddingParams};

/// Tokenizer of a model, read from a `tokenizer.json` or a GGUF file.
#[derive(Debug)]
pub struct ModelTokenizer {
    inner: tokenizers::Tokenizer,
    /// Texts of the tokens, once one was asked for; `None` if they cannot simply be joined.
    texts: OnceLock<Option<TokenTexts>>,
    control: BTreeMap<String, Token>,
    vocab: usize,
    stop: Vec<Token>,
    bos: Option<Token>,
    spellings: Vec<chat::ControlToken>,
    splits_at_controls: bool,
    chat_template: Option<chat::ChatTemplate>,
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
        let (unmarked, added): (Vec<String>, Vec<String>) =
            parts.added.into_iter().partition(|text| reads_as_control(text));
        let control: Vec<String> = parts.control.into_iter().chain(unmarked).collect();
        let token = |special: bool| move |text: String| AddedToken::from(text, special).normalized(false);
        inner.add_special_tokens(control.into_iter().map(token(true))).map_err(damaged)?;
        inner.add_tokens(added.into_iter().map(token(false))).map_err(damaged)?;
        Ok(Self::finish(inner))
    }

    /// Builds a tokenizer from the content of a `tokenizer.json`.
    pub(crate) fn from_json(path: &Path, json: &[u8]) -> Result<Self, ModelError> {
        let damaged = |reason: String| ModelError::damaged(path, reason);
        let mut value: Value = serde_json::from_slice(json).map_err(|e| damaged(e.to_string()))?;
        // Some files leave `<|…|>` tokens unmarked, DeepSeek's `<｜User｜>` among them; a text could then spell them.
        for token in value["added_tokens"].as_array_mut().into_iter().flatten() {
            if token["content"].as_str().is_some_and(reads_as_control) {
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
        let mut control = BTreeMap::new();
        let mut spellings = Vec::new();
        for (id, token) in inner.get_added_tokens_decoder() {
            if token.special {
                spellings.push(chat::ControlToken {
                    name: token.content.clone(),
                    token: id,
                    takes_space_before: token.lstrip,
                    takes_space_after: token.rstrip,
                });
                control.insert(token.content, id);
            }
        }
        let splits_at_controls = splits_at_controls(&mut inner, &control);
        inner.set_encode_special_tokens(true);
        // Ids may have gaps and the embedding may be padded: one past the largest is what an id must stay below.
        let vocab = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        Self {
            inner,
            texts: OnceLock::new(),
            control,
            vocab,
            stop: Vec::new(),
            bos: None,
            spellings,
            splits_at_controls,
            chat_template: None,
        }
    }

    /// Adds the chat template that comes with the tokenizer.
    pub(crate) fn with_template(self, chat_template: Option<chat::ChatTemplate>) -> Self {
        Self { chat_template, ..self }
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
        match self.texts.get_or_init(|| TokenTexts::of(&self.inner, self.vocab)) {
            Some(texts) => texts.join(tokens),
            None => self.inner.decode(tokens, true).unwrap_or_default(),
        }
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

    fn controls(&self) -> Vec<chat::ControlToken> {
        self.spellings.clone()
    }

    fn splits_at_controls(&self) -> bool {
        self.splits_at_controls
    }

    fn chat_template(&self) -> Option<&chat::ChatTemplate> {
        self.chat_template.as_ref()
    }
}

/// Whether an added token is a control token by its spelling, whatever the file says.
fn reads_as_control(text: &str) -> bool {
    let brackets = [("<|", "|>"), ("<｜", "｜>")];
    brackets.iter().any(|(open, close)| text.starts_with(open) && text.ends_with(close))
}

/// Whether the text after a control token has the tokens that it has alone.
fn splits_at_controls(inner: &mut tokenizers::Tokenizer, control: &BTreeMap<String, Token>) -> bool {
    let Some((name, token)) = control.first_key_value() else { return true };
    inner.set_encode_special_tokens(false);
    let encode = |text: &str| inner.encode_fast(text, false).map(|found| found.get_ids().to_vec());
    match (encode("a"), encode(&format!("a{name}a"))) {
        (Ok(alone), Ok(whole)) => whole == [&alone[..], &[*token], &alone].concat(),
        _ => false,
    }
}
