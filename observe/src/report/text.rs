//! Text from models and environments, made safe to display.
//!
//! The text cannot hide or move other text: characters that are invisible or change the text direction become marks.
//! Very long text loses its middle, with a note of how much. Escaping is left to the template.

use super::numbers::count;
use serde::Serialize;

/// A piece of displayed text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TextPiece {
    /// Text of the piece, not escaped.
    pub text: String,
    /// Kind of the piece, for its style.
    pub kind: PieceKind,
}

/// Kind of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PieceKind {
    /// Unchanged from the source.
    Plain,
    /// Stands for an invisible character.
    Mark,
    /// States how much was left out.
    Cut,
}

/// The whole text, with marks.
pub fn visible(text: &str) -> Vec<TextPiece> {
    let mut pieces: Vec<TextPiece> = Vec::new();
    for c in text.chars() {
        let (shown, kind) =
            mark(c).map_or_else(|| (c.into(), PieceKind::Plain), |mark| (mark, PieceKind::Mark));
        match pieces.last_mut() {
            Some(last) if last.kind == PieceKind::Plain && kind == PieceKind::Plain => last.text.push(c),
            _ => pieces.push(TextPiece { text: shown, kind }),
        }
    }
    pieces
}

/// The text, with marks. Beyond `most` characters, only the first three quarters and the last quarter of `most` remain.
pub fn cut(text: &str, most: usize) -> Vec<TextPiece> {
    let length = text.chars().count();
    if length <= most {
        return visible(text);
    }
    let place = |chars: usize| text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at);
    let tail = most / 4;
    let mut pieces = visible(&text[..place(most - tail)]);
    pieces.push(omission(length - most, "characters"));
    pieces.extend(visible(&text[place(length - tail)..]));
    pieces
}

/// A piece that states how much was left out.
pub fn omission(number: usize, what: &str) -> TextPiece {
    TextPiece { text: format!(" … {} {what} left out … ", count(number as u64)), kind: PieceKind::Cut }
}

/// The mark for an invisible character. Joiners within words and emoji are kept.
fn mark(c: char) -> Option<String> {
    match c {
        '\n' | '\t' => None,
        '\0'..='\u{1f}' => char::from_u32(0x2400 + c as u32).map(String::from),
        '\u{7f}' => Some("␡".into()),
        '\u{80}'..='\u{9f}'
        | '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180e}'
        | '\u{200b}'
        | '\u{200e}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}' => Some(format!("U+{:04X}", c as u32)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(pieces: &[TextPiece]) -> String {
        pieces
            .iter()
            .map(|p| if p.kind == PieceKind::Plain { p.text.clone() } else { format!("[{}]", p.text) })
            .collect()
    }

    #[test]
    fn invisible_characters_become_marks_and_the_rest_stays() {
        assert_eq!(flat(&visible("a\tb\nc")), "a\tb\nc");
        assert_eq!(flat(&visible("a\0b\u{1b}[31m\r\u{7f}")), "a[␀]b[␛][31m[␍][␡]");
        assert_eq!(flat(&visible("\u{202e}evil\u{202c}\u{e0041}")), "[U+202E]evil[U+202C][U+E0041]");
        assert_eq!(flat(&visible("👩\u{200d}🚀 é שלום")), "👩\u{200d}🚀 é שלום");
    }

    #[test]
    fn long_text_loses_its_middle_at_whole_characters() {
        let text = "ä".repeat(200_000);
        let pieces = cut(&text, 4000);
        assert_eq!(pieces.len(), 3);
        assert_eq!(
            pieces[1],
            TextPiece { text: " … 196,000 characters left out … ".into(), kind: PieceKind::Cut }
        );
        assert_eq!(pieces[0].text.chars().count() + pieces[2].text.chars().count(), 4000);
        assert_eq!(cut("short", 5), visible("short"));
    }
}
