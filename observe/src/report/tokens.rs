//! Token probabilities: the text of a completion, shaded token by token if the model's tokenizer is available, or else
//! a strip with a cell for each token.

use super::numbers::show;
use super::text::{PieceKind, TextPiece, omission, visible};
use crate::text_stream::TextStream;
use minds_core::chat::Tokenizer;
use minds_core::ids::Token;
use serde::Serialize;
use std::ops::Range;

/// A token, or several that make up one character.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenSpan {
    /// Text of the span; empty in a strip.
    pub pieces: Vec<TextPiece>,
    /// How unlikely it was, from 0 (all but certain) to 4.
    pub shade: u8,
    /// Tooltip with the probability and the logprob.
    pub title: String,
}

/// Number of tokens shown from the start and from the end of a long completion.
const HEAD: usize = 500;
const TAIL: usize = 100;

/// The shaded completion; `None` if this tokenizer does not decode the tokens to its text.
pub fn shaded(
    tokenizer: &dyn Tokenizer,
    text: &str,
    tokens: &[Token],
    logprobs: &[f32],
) -> Option<Vec<TokenSpan>> {
    let fits = !tokens.is_empty()
        && tokens.len() == logprobs.len()
        && tokenizer.decode(tokens).contains(text.trim());
    if !fits {
        return None;
    }
    Some(cut(tokens.len(), |part| spans(tokenizer, &tokens[part.clone()], &logprobs[part])))
}

/// A cell for each token.
pub fn strip(logprobs: &[f32]) -> Vec<TokenSpan> {
    let cell = |logprob: &f32| span(Vec::new(), *logprob, 1);
    cut(logprobs.len(), |part| logprobs[part].iter().map(cell).collect())
}

/// Spans of `count` tokens: of all, or of the first and the last ones, with a note between them.
fn cut(count: usize, spans: impl Fn(Range<usize>) -> Vec<TokenSpan>) -> Vec<TokenSpan> {
    if count <= HEAD + TAIL {
        return spans(0..count);
    }
    let end = count - TAIL;
    let note = vec![omission(end - HEAD, "tokens")];
    let mut all = spans(0..HEAD);
    all.push(TokenSpan { pieces: note, shade: 0, title: String::new() });
    all.extend(spans(end..count));
    all
}

fn spans(tokenizer: &dyn Tokenizer, tokens: &[Token], logprobs: &[f32]) -> Vec<TokenSpan> {
    let mut stream = TextStream::default();
    let mut all = Vec::new();
    // Tokens of a character that is still incomplete.
    let mut sum = 0.0;
    let mut count = 0;
    for (token, logprob) in tokens.iter().zip(logprobs) {
        let text = stream.push(tokenizer, *token);
        (sum, count) = (sum + logprob, count + 1);
        let control = text.is_empty() && tokenizer.decode(&[*token]).is_empty();
        if control {
            let sign = TextPiece { text: format!("⟨{token}⟩"), kind: PieceKind::Mark };
            all.push(span(vec![sign], sum, count));
        } else if text.is_empty() {
            continue;
        } else {
            all.push(span(visible(&text), sum, count));
        }
        (sum, count) = (0.0, 0);
    }
    let rest = stream.finish(tokenizer);
    if count > 0 || !rest.is_empty() {
        all.push(span(visible(&rest), sum, count.max(1)));
    }
    all
}

fn span(pieces: Vec<TextPiece>, logprob: f32, tokens: usize) -> TokenSpan {
    let chance = logprob.exp();
    let shade = [0.9, 0.5, 0.1, 0.01].iter().filter(|limit| chance < **limit).count() as u8;
    let several = if tokens > 1 { format!(", {tokens} tokens") } else { String::new() };
    let title = format!("p = {}, logprob {}{several}", show(f64::from(chance)), show(f64::from(logprob)));
    TokenSpan { pieces, shade, title }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_models::ByteTokenizer;

    fn text(spans: &[TokenSpan]) -> String {
        spans.iter().flat_map(|s| &s.pieces).map(|p| p.text.as_str()).collect()
    }

    /// "ä" is two bytes, so two tokens: their logprobs add up. e^-3 = 0.0498.
    #[test]
    fn tokens_that_make_one_character_are_one_span() {
        let tokens = ByteTokenizer.encode("aä!");
        let spans = shaded(&ByteTokenizer, "aä!", &tokens, &[0.0, -1.0, -2.0, -0.2]).unwrap();
        assert_eq!(text(&spans), "aä!");
        assert_eq!(spans.iter().map(|s| s.shade).collect::<Vec<_>>(), [0, 3, 1]);
        assert_eq!(spans[1].title, "p = 0.0498, logprob −3, 2 tokens");
    }

    #[test]
    fn the_text_of_another_tokenizer_is_not_shaded() {
        let tokens = ByteTokenizer.encode("abc");
        assert_eq!(shaded(&ByteTokenizer, "xyz", &tokens, &[0.0; 3]), None);
        assert_eq!(shaded(&ByteTokenizer, "abc", &tokens, &[0.0; 2]), None);
        assert_eq!(shaded(&ByteTokenizer, "", &[], &[]), None);
    }

    #[test]
    fn a_long_answer_loses_its_middle() {
        let tokens = ByteTokenizer.encode(&"x".repeat(10_000));
        let spans = shaded(&ByteTokenizer, "xx", &tokens, &vec![-0.5; 10_000]).unwrap();
        assert_eq!(spans.len(), HEAD + 1 + TAIL);
        assert!(text(&spans).contains("9,400 tokens left out"));
        assert_eq!(strip(&vec![-9.0; 10_000]).len(), HEAD + 1 + TAIL);
        assert_eq!(strip(&[-9.0])[0].shade, 4);
    }
}
