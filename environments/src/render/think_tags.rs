//! Think blocks. Some tokenizers hold the tags as control tokens, others as ordinary text; both are read and written.

use minds_core::chat::Tokenizer;
use minds_core::ids::Token;

/// The tag that ends thoughts, alone.
pub(super) fn closing(tokenizer: &dyn Tokenizer) -> Vec<Token> {
    tokenizer.control("</think>").map_or_else(|| tokenizer.encode("</think>"), |close| vec![close])
}

/// The two tags of a tokenizer.
pub(super) struct ThinkTags {
    /// The tags as control tokens, if the tokenizer has both.
    tags: Option<[Token; 2]>,
}

impl ThinkTags {
    pub(super) fn new(tokenizer: &dyn Tokenizer) -> Self {
        let tags = tokenizer.control("<think>").zip(tokenizer.control("</think>"));
        Self { tags: tags.map(|(open, close)| [open, close]) }
    }

    /// Whether both tags are control tokens.
    pub(super) fn are_controls(&self) -> bool {
        self.tags.is_some()
    }

    /// The thoughts of a leading think block, and the text after it.
    pub(super) fn split(text: &str) -> Option<(&str, &str)> {
        let (thoughts, answer) = text.trim_start().strip_prefix("<think>")?.split_once("</think>")?;
        Some((thoughts.trim_matches('\n'), answer.trim_start_matches('\n')))
    }

    /// The text after the end of the think block that the prompt has opened; all of it where the block does not end.
    pub(super) fn skip_open(&self, tokenizer: &dyn Tokenizer, turn: &[Token]) -> String {
        let Some([_, close]) = self.tags else {
            let text = tokenizer.decode(turn);
            let rest = text.split_once("</think>").map(|(_, rest)| rest.trim_start_matches('\n').to_owned());
            return rest.unwrap_or(text);
        };
        let end = turn.iter().position(|token| *token == close).map_or(0, |at| at + 1);
        tokenizer.decode(&turn[end..]).trim_start_matches('\n').to_owned()
    }

    /// A think block without thoughts, `gap` between its tags and after it.
    pub(super) fn empty(&self, tokenizer: &dyn Tokenizer, gap: &str) -> Vec<Token> {
        let Some([open, close]) = self.tags else {
            return tokenizer.encode(&format!("<think>{gap}</think>{gap}"));
        };
        let gap = tokenizer.encode(gap);
        [&[open][..], &gap, &[close], &gap].concat()
    }

    /// The text after a leading think block; all of it where there is none, or none that ends.
    pub(super) fn skip(&self, tokenizer: &dyn Tokenizer, turn: &[Token]) -> String {
        let Some([open, close]) = self.tags else { return after(&tokenizer.decode(turn)).to_owned() };
        let start = turn.iter().position(|token| *token == open);
        let leads = start.filter(|start| tokenizer.decode(&turn[..*start]).trim().is_empty());
        let end =
            leads.and_then(|start| turn[start..].iter().position(|token| *token == close).map(|n| start + n));
        match end {
            Some(end) => tokenizer.decode(&turn[end + 1..]).trim_start_matches('\n').to_owned(),
            None => tokenizer.decode(turn),
        }
    }
}

fn after(text: &str) -> &str {
    let thoughts = text.trim_start().strip_prefix("<think>");
    thoughts.and_then(|t| t.split_once("</think>")).map_or(text, |(_, rest)| rest.trim_start_matches('\n'))
}

#[cfg(test)]
mod tests {
    use super::after;

    #[test]
    fn only_a_leading_closed_think_block_is_cut_off() {
        for (text, rest) in [
            ("<think>\nhm\n</think>\n\n[1]", "[1]"),
            ("\n<think></think>[1]", "[1]"),
            ("[1]", "[1]"),
            ("<think>hm [1]", "<think>hm [1]"),
            ("[1] <think>x</think>", "[1] <think>x</think>"),
        ] {
            assert_eq!(after(text), rest, "{text:?}");
        }
    }
}
