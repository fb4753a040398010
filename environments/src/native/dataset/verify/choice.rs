//! Which of several choices an answer names, by its letter or by its text. An answer that names two names none.

use super::text::{contains, is_denied, is_negated, normalized};

/// The choices of a row, in order; the first is A. Empty where the row only has letters.
pub(super) type Choices = Vec<String>;

/// Letter of the choice at an index.
pub(super) fn letter(index: usize) -> char {
    char::from(b'A'.saturating_add(u8::try_from(index).unwrap_or(u8::MAX)))
}

/// The letter that a reference names: a letter, or the text of one of the choices.
pub(super) fn reference(text: &str, choices: &Choices) -> Option<char> {
    if let Some(letter) = bare_letter(text) {
        return is_possible(letter, choices).then_some(letter);
    }
    by_text(text, choices)
}

/// The letter that an answer names, if it names exactly one choice.
pub(super) fn chosen(answer: &str, choices: &Choices) -> Option<char> {
    let answer = answer.replace(['*', '`', '$'], "");
    let answer = unwrap_text(answer.trim());
    let answer = answer.trim();
    if let Some(letter) = bare_letter(answer) {
        return is_possible(letter, choices).then_some(letter);
    }
    if let Some(letter) = by_text(answer, choices) {
        return Some(letter);
    }
    if let Some((letter, text)) = labelled(answer, choices) {
        let named = by_text(text, choices);
        let is_plain = choices.is_empty() || named.is_some();
        let mentions_other = others(text, letter, choices);
        return (is_plain && !mentions_other && named.is_none_or(|named| named == letter)).then_some(letter);
    }
    let statements = statements(answer);
    let mut letters: Vec<char> = match statements.is_empty() {
        true => standing_letters(answer, choices)?,
        false => {
            let mut found = Vec::new();
            for statement in statements {
                found.extend(standing_letters(statement, choices)?);
            }
            found
        }
    };
    letters.sort_unstable();
    letters.dedup();
    let texts = texts_in(answer, choices)?;
    match (&letters[..], &texts[..]) {
        ([letter], []) => Some(*letter),
        ([letter], [text]) => (letter == text).then_some(*letter),
        ([], [text]) => Some(*text),
        _ => None,
    }
}

fn is_possible(letter: char, choices: &Choices) -> bool {
    letter.is_ascii_uppercase() && (choices.is_empty() || letter < self::letter(choices.len()))
}

/// Removes `\text{…}` and quotes around the whole text.
fn unwrap_text(text: &str) -> String {
    let text = ["\\text{", "\\textbf{", "\\mathrm{", "\\boxed{"]
        .into_iter()
        .find_map(|open| text.strip_prefix(open)?.strip_suffix('}'))
        .unwrap_or(text);
    text.trim_matches(['"', '\'', '“', '”']).to_owned()
}

/// A text that is a letter and nothing else: `B`, `b`, `(B)`, `B.`, `[B]`, `option B`.
fn bare_letter(text: &str) -> Option<char> {
    let lower = text.trim().to_lowercase();
    let word = ["option ", "choice ", "answer ", "the answer is ", "answer: ", "answer is "]
        .into_iter()
        .find_map(|start| lower.strip_prefix(start))
        .unwrap_or(&lower);
    let inner =
        word.trim().trim_start_matches(['(', '[', '{']).trim_end_matches([')', ']', '}', '.', ':', ',']);
    let mut chars = inner.chars();
    let letter = chars.next()?.to_ascii_uppercase();
    (chars.next().is_none() && letter.is_ascii_uppercase()).then_some(letter)
}

/// The letter of the one choice that has this text.
fn by_text(text: &str, choices: &Choices) -> Option<char> {
    let text = normalized(text.trim().trim_end_matches('.'), true);
    let same = |choice: &String| normalized(choice.trim_end_matches('.'), true) == text;
    let mut found = choices.iter().enumerate().filter(|(_, choice)| same(choice));
    let (index, _) = found.next()?;
    found.next().is_none().then(|| letter(index))
}

/// An answer of the form `B) text`, `B. text`, `B: text` or `(B) text`, in one line.
fn labelled<'a>(answer: &'a str, choices: &Choices) -> Option<(char, &'a str)> {
    if answer.contains('\n') {
        return None;
    }
    let answer = ["Answer: ", "answer: ", "The answer is ", "the answer is "]
        .into_iter()
        .find_map(|start| answer.strip_prefix(start))
        .unwrap_or(answer);
    let inner = answer.strip_prefix('(').unwrap_or(answer);
    let letter = inner.chars().next().filter(|c| is_possible(*c, choices))?;
    let rest = inner[letter.len_utf8()..].strip_prefix([')', '.', ':'])?;
    let text = rest.strip_prefix(' ')?.trim();
    (!text.is_empty()).then_some((letter, text))
}

/// Whether a text also names another choice, by letter or by text.
fn others(text: &str, letter: char, choices: &Choices) -> bool {
    let by_letter =
        standing_letters(text, choices).is_none_or(|letters| letters.iter().any(|other| *other != letter));
    let by_text = texts_in(text, choices).is_none_or(|letters| letters.iter().any(|other| *other != letter));
    by_letter || by_text
}

/// What follows a statement of the answer, each to the end of its line.
fn statements(answer: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in answer.lines() {
        let lower = line.to_ascii_lowercase();
        let starts = ["answer is", "answer:", "option is", "choice is", "answer ="];
        if let Some((at, start)) = starts.iter().filter_map(|s| lower.find(s).map(|at| (at, s))).min() {
            found.push(&line[at + start.len()..]);
        }
    }
    found
}

/// Letters of choices that stand for themselves; `None` where one of them is negated.
fn standing_letters(text: &str, choices: &Choices) -> Option<Vec<char>> {
    let chars: Vec<(usize, char)> = text.char_indices().collect();
    let mut letters = Vec::new();
    for (i, (at, c)) in chars.iter().enumerate() {
        let before = i.checked_sub(1).map(|i| chars[i].1);
        let after = chars.get(i + 1).map(|(_, c)| *c);
        let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || "_'’-+".contains(c));
        if !is_possible(*c, choices) || joins(before) || joins(after) {
            continue;
        }
        // The article and the pronoun are words, unless a bracket or the end follows.
        let rest = text[at + c.len_utf8()..].trim_start();
        let goes_on = after == Some(' ') && rest.starts_with(char::is_lowercase);
        let is_word = matches!(c, 'A' | 'I') && goes_on && !is_list_word(rest);
        if is_word {
            continue;
        }
        if is_negated(&text[..*at]) || is_denied(rest) {
            return None;
        }
        letters.push(*c);
    }
    Some(letters)
}

/// Whether a letter is followed by a word that joins choices or ends a statement about it.
fn is_list_word(rest: &str) -> bool {
    let word = rest.split_whitespace().next().unwrap_or_default();
    ["or", "and", "is", "because", "since", "as", "but"].contains(&word)
}

/// Letters of the choices whose texts stand in the answer; `None` where one of them is negated. A text inside a longer
/// one that stands there does not count.
fn texts_in(answer: &str, choices: &Choices) -> Option<Vec<char>> {
    let mut rest = normalized(answer, true);
    let mut by_length: Vec<(usize, String)> =
        choices.iter().map(|choice| normalized(choice, true)).enumerate().collect();
    by_length.sort_by_key(|(_, text)| std::cmp::Reverse(text.len()));
    let mut found = Vec::new();
    for (index, text) in by_length {
        // A choice of one letter or digit is too short to be told from other words.
        if text.chars().count() < 2 || !rest.contains(&text) {
            continue;
        }
        if contains(&rest, &text) {
            found.push(letter(index));
            rest = rest.replace(&text, "\u{1}");
        } else if rest
            .match_indices(&text)
            .any(|(at, _)| is_negated(&rest[..at]) || is_denied(&rest[at + text.len()..]))
        {
            return None;
        }
    }
    Some(found)
}
