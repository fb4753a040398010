//! Comparing texts: as a whole, or one inside another.

use unicode_normalization::UnicodeNormalization as _;

/// A text as it is compared: NFC, each run of white space one space, none at the ends, lower case where case is ignored.
pub(super) fn normalized(text: &str, ignore_case: bool) -> String {
    let composed: String = text.nfc().collect();
    let words: Vec<&str> = composed.split_whitespace().collect();
    let joined = words.join(" ");
    if ignore_case { joined.to_lowercase() } else { joined }
}

/// Whether a text contains another as words of its own, and not only where it is negated. Both are normalized.
pub(super) fn contains(text: &str, wanted: &str) -> bool {
    !wanted.is_empty()
        && text.match_indices(wanted).any(|(at, _)| {
            let before = &text[..at];
            let after = &text[at + wanted.len()..];
            starts_word(before, wanted)
                && ends_word(wanted, after)
                && !is_negated(before)
                && !is_denied(after)
        })
}

/// Whether a match does not continue a word or number of the text before it.
fn starts_word(before: &str, wanted: &str) -> bool {
    let Some(first) = wanted.chars().next().filter(|c| c.is_alphanumeric()) else { return true };
    let mut back = before.chars().rev();
    match back.next() {
        Some(c) if c.is_alphanumeric() || c == '_' => false,
        Some(c) if first.is_numeric() && "-−–+$€£".contains(c) => {
            // A sign changes the number; a currency does not, but there may be a sign before it.
            "$€£".contains(c) && !back.next().is_some_and(|c| "-−".contains(c))
        }
        Some('.' | ',' | '/' | '^') if first.is_numeric() => {
            !back.next().is_some_and(|c| c.is_alphanumeric())
        }
        _ => true,
    }
}

/// Whether a match does not go on as a longer word or number.
fn ends_word(wanted: &str, after: &str) -> bool {
    let Some(last) = wanted.chars().next_back().filter(|c| c.is_alphanumeric()) else { return true };
    let mut rest = after.chars();
    match rest.next() {
        Some(c) if c.is_alphanumeric() || c == '_' => false,
        Some('.' | ',' | '/' | ':' | '^') if last.is_numeric() => !rest.next().is_some_and(char::is_numeric),
        Some('%') if last.is_numeric() => false,
        _ => true,
    }
}

/// Whether the text before a word negates it: one of the last three words of its sentence is a negation, and no `but`
/// follows that.
pub(super) fn is_negated(before: &str) -> bool {
    let sentence = before.rsplit(['.', '!', '?', ';', '\n', ',', ':']).next().unwrap_or_default();
    let words = sentence.split_whitespace().rev().take(3);
    let turns = |word: &&str| !matches!(*word, "but" | "rather" | "instead" | "so" | "then" | "yet");
    words.take_while(turns).any(|word| {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric() && !"≠!=\\'’".contains(c)).to_lowercase();
        let is_word =
            matches!(&*word, "not" | "never" | "cannot" | "neither" | "nor" | "non" | "isnt" | "arent");
        let is_sign = word.contains('≠') || word.contains("!=") || matches!(&*word, "\\ne" | "\\neq");
        is_word || is_sign || word.ends_with("n't") || word.ends_with("n’t")
    })
}

/// Whether the text after a value says that it is not right, such as `is wrong` or `is not the answer`.
pub(super) fn is_denied(after: &str) -> bool {
    let after = after.trim_start_matches([' ', ')', '*', '"', '\'', '’', '$']);
    let start: String = after.chars().take(16).collect::<String>().to_lowercase();
    let denials = [
        "is not ",
        "isn't ",
        "isn’t ",
        "is wrong",
        "is incorrect",
        "is false",
        "cannot be",
        "can't be",
        "can not be",
    ];
    denials.iter().any(|denial| start.starts_with(denial))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_inside_another_is_not_contained() {
        for (text, wanted, expected) in [
            ("it is 42.", "42", true),
            ("142", "42", false),
            ("42.5", "42", false),
            ("3.42", "42", false),
            ("-42", "42", false),
            ("$42", "42", true),
            ("-$42", "42", false),
            ("42%", "42", false),
            ("not 42", "42", false),
            ("not 41, but 42", "42", true),
            ("not 41 but 42", "42", true),
            ("42 is wrong", "42", false),
            ("42 isn't right", "42", false),
            ("42 is right", "42", true),
            ("cats", "cat", false),
            ("a+b", "a+b", true),
        ] {
            assert_eq!(contains(text, wanted), expected, "{text}");
        }
    }
}
