//! The pre-tokenizers of GGUF files by their `tokenizer.ggml.pre` name, which serve files of tiktoken as well.
//!
//! Only those whose splits are known to equal the model's own tokenizer are built; another name is an error, since
//! a wrong split gives ids that look right and are not.

use crate::error::ModelError;
use std::path::Path;
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

/// Qwen2 and Qwen3, from their tokenizer.json.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Llama 3, from its tokenizer.json.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Kimi K2, from its tokenization_kimi.py: runs of Han characters are pieces of their own.
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How text is normalized and split before BPE.
pub(crate) struct PreTokenization {
    pub(crate) normalizer: Option<NormalizerWrapper>,
    pub(crate) pre_tokenizer: PreTokenizerWrapper,
    /// Whether a piece that is a token as a whole needs no merges.
    pub(crate) ignore_merges: bool,
}

/// Pre-tokenization of this name; an error if it is not supported.
pub(crate) fn pre_tokenization(path: &Path, pre: &str) -> Result<PreTokenization, ModelError> {
    let plain = |pre_tokenizer: PreTokenizerWrapper| PreTokenization {
        normalizer: None,
        pre_tokenizer,
        ignore_merges: false,
    };
    // GPT-2's own regex lives in ByteLevel. Never a prefix space: that changes the first token of every text.
    let gpt2 = || PreTokenizerWrapper::from(ByteLevel::new(false, true, true));
    match pre {
        "smollm" => {
            let digits = PreTokenizerWrapper::from(Digits::new(true));
            Ok(plain(PreTokenizerWrapper::from(Sequence::new(vec![digits, gpt2()]))))
        }
        "gpt-2" => Ok(plain(gpt2())),
        "qwen2" => Ok(PreTokenization { normalizer: Some(NFC.into()), ..plain(split(path, QWEN2)?) }),
        "llama-bpe" | "llama3" | "llama-v3" => {
            Ok(PreTokenization { ignore_merges: true, ..plain(split(path, LLAMA3)?) })
        }
        "kimi-k2" => Ok(PreTokenization { ignore_merges: true, ..plain(split(path, KIMI_K2)?) }),
        other => {
            let reason = format!(
                "its pre-tokenizer is `{other}`; built are smollm, gpt-2, qwen2, llama-bpe and kimi-k2; use the model's \
                 Hugging Face folder with tokenizer.json"
            );
            Err(ModelError::unsupported(path, reason))
        }
    }
}

fn split(path: &Path, regex: &str) -> Result<PreTokenizerWrapper, ModelError> {
    let split = Split::new(SplitPattern::Regex(regex.into()), SplitDelimiterBehavior::Isolated, false)
        .map_err(|e| ModelError::unsupported(path, format!("its pre-tokenizer does not compile: {e}")))?;
    let bytes = ByteLevel::new(false, true, false);
    Ok(PreTokenizerWrapper::from(Sequence::new(vec![split.into(), bytes.into()])))
}
