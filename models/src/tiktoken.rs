//! Tokenizers that ship as a `tiktoken.model` and no tokenizer.json: those of Kimi.
//!
//! The file lists tokens as Base64 with their ranks. How text is split before that is in a Python file of the model, so only a
//! tokenizer class whose split is known is read; another one is refused by its name.

use crate::byte_letters::spell;
use crate::error::ModelError;
use crate::tokenizer::ByteLevelParts;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use minds_core::ids::Token;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Class that tokenizer_config.json of Kimi K2 names.
const KIMI_CLASS: &str = "TikTokenTokenizer";

/// Ids that Kimi reserves after its ranks.
const RESERVED: usize = 256;

/// Reads the parts of a byte-level BPE from the content of a `tiktoken.model`. `config` is tokenizer_config.json.
pub(crate) fn parts(path: &Path, model: &[u8], config: &Value) -> Result<ByteLevelParts, ModelError> {
    let class = config["tokenizer_class"].as_str().unwrap_or("(none named)");
    if class != KIMI_CLASS {
        let reason = format!(
            "its tokenizer class is `{class}`, and how text is split is known for `{KIMI_CLASS}` (Kimi) alone; save a \
             tokenizer.json with transformers"
        );
        return Err(ModelError::unsupported(path, reason));
    }
    let ranks = ranks(path, model)?;
    let special = added_tokens(path, config)?;
    let size = ranks.len() + RESERVED;
    let mut tokens: Vec<String> = ranks.iter().map(|bytes| spell(bytes)).collect();
    tokens.extend((ranks.len()..size).map(|id| format!("<|reserved_token_{id}|>")));
    let mut control = Vec::new();
    let mut added = Vec::new();
    for (id, AddedText { text, is_special }) in special {
        let place = tokens.get_mut(id as usize).filter(|_| id as usize >= ranks.len());
        let Some(place) = place else {
            let reason =
                format!("the added token `{text}` has the id {id}, which is none of those after the ranks");
            return Err(ModelError::damaged(&path.with_file_name("tokenizer_config.json"), reason));
        };
        place.clone_from(&text);
        let kind = if is_special { &mut control } else { &mut added };
        kind.push(text);
    }
    Ok(ByteLevelParts { pre: "kimi-k2".into(), merges: merges(&ranks), tokens, control, added })
}

/// The tokens in the order of their ranks, which have no gaps.
fn ranks(path: &Path, model: &[u8]) -> Result<Vec<Vec<u8>>, ModelError> {
    let text = std::str::from_utf8(model).map_err(|e| ModelError::damaged(path, e.to_string()))?;
    let mut ranks = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let wrong = || ModelError::damaged(path, format!("line {} is not a token and its rank", number + 1));
        let (token, rank) = line.split_once(' ').ok_or_else(wrong)?;
        let token = BASE64_STANDARD.decode(token).map_err(|_| wrong())?;
        if rank.trim().parse() != Ok(ranks.len()) || token.is_empty() {
            return Err(wrong());
        }
        ranks.push(token);
    }
    Ok(ranks)
}

/// An added token as tokenizer_config.json describes it.
struct AddedText {
    text: String,
    is_special: bool,
}

fn added_tokens(path: &Path, config: &Value) -> Result<BTreeMap<Token, AddedText>, ModelError> {
    let fields = config["added_tokens_decoder"].as_object().into_iter().flatten();
    let read = |(id, token): (&String, &Value)| {
        let text = token["content"].as_str().map(str::to_owned);
        let is_special = token["special"] != false;
        let parsed = id.parse().ok().zip(text.map(|text| AddedText { text, is_special }));
        let reason = || format!("added_tokens_decoder: `{id}` is not a token");
        parsed.ok_or_else(|| ModelError::damaged(&path.with_file_name("tokenizer_config.json"), reason()))
    };
    fields.map(read).collect()
}

/// The merges that give the same tokens as merging the pair of the lowest rank first: all ways to make each token from
/// two others, in the order of the tokens' ranks.
fn merges(ranks: &[Vec<u8>]) -> Vec<(String, String)> {
    let by_bytes: HashMap<&[u8], usize> =
        ranks.iter().enumerate().map(|(rank, token)| (&token[..], rank)).collect();
    let mut merges = Vec::new();
    for token in ranks.iter().filter(|token| token.len() > 1) {
        let splits = (1..token.len()).map(|at| token.split_at(at));
        let mut pairs: Vec<(usize, usize)> =
            splits.filter_map(|(left, right)| Some((*by_bytes.get(left)?, *by_bytes.get(right)?))).collect();
        pairs.sort_unstable();
        merges.extend(pairs.into_iter().map(|(left, right)| (spell(&ranks[left]), spell(&ranks[right]))));
    }
    merges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::ModelTokenizer;
    use minds_core::chat::Tokenizer;
    use serde_json::json;

    fn config() -> Value {
        json!({
            "tokenizer_class": "TikTokenTokenizer",
            "added_tokens_decoder": {"262": {"content": "[BOS]"}, "263": {"content": "<|im_end|>", "special": false},
                                     "264": {"content": "<think>", "special": false}}
        })
    }

    /// All bytes, then some tokens of several bytes.
    fn model() -> Vec<u8> {
        let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        tokens.extend(
            ["ab", "bc", "abc", "  ", "\u{4f60}", "\u{4f60}\u{597d}"].map(|text| text.as_bytes().to_vec()),
        );
        let lines = tokens.iter().enumerate();
        let lines = lines.map(|(rank, token)| format!("{} {rank}\n", BASE64_STANDARD.encode(token)));
        lines.collect::<String>().into_bytes()
    }

    /// The ids are those of OpenAI's tiktoken 0.14 for the same ranks and the pattern of Kimi.
    #[test]
    fn texts_have_the_tokens_that_tiktoken_gives() {
        let path = Path::new("tiktoken.model");
        let parts = parts(path, &model(), &config()).unwrap();
        let tokenizer = ModelTokenizer::from_parts(path, parts).unwrap();
        for (text, tokens) in EXPECTED {
            assert_eq!(tokenizer.encode(text), *tokens, "{text:?}");
        }
        assert_eq!(tokenizer.control("[BOS]"), Some(262));
        assert_eq!(tokenizer.control("<|im_end|>"), Some(263));
        assert_eq!(tokenizer.control("<think>"), None);
        assert_eq!(tokenizer.encode("a<think>"), [97, 264]);
        assert_eq!(tokenizer.vocab(), 262 + 256);
        assert_eq!(tokenizer.decode(&[258, 261]), "abc\u{4f60}\u{597d}");
    }

    #[test]
    fn a_tokenizer_whose_split_is_not_known_is_refused_by_name() {
        let path = Path::new("x/tiktoken.model");
        let refused =
            parts(path, &model(), &json!({"tokenizer_class": "QWenTokenizer"})).unwrap_err().to_string();
        assert!(refused.contains("`QWenTokenizer`") && refused.contains("tokenizer.json"), "{refused}");
        let damaged = parts(path, b"YQ== 1\n", &config()).unwrap_err().to_string();
        assert!(damaged.contains("line 1 is not a token and its rank"), "{damaged}");
    }

    const EXPECTED: &[(&str, &[Token])] = &[
        ("abc", &[258]),
        ("abcbc", &[258, 257]),
        ("   x", &[259, 32, 120]),
        ("\u{4f60}\u{597d}abc", &[261, 258]),
        ("\u{4f60}\u{597d}\u{4f60}", &[228, 189, 160, 229, 165, 189, 228, 189, 160]),
        ("12345", &[49, 50, 51, 52, 53]),
        ("don't", &[100, 111, 110, 39, 116]),
        ("a<|im_end|>", &[97, 60, 124, 105, 109, 95, 101, 110, 100, 124, 62]),
        ("\u{e9}", &[195, 169]),
    ];
}
