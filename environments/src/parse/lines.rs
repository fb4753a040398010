//! Answers that are a fixed sequence of labelled lines, `LABEL: value`.
//!
//! | written | taken as |
//! |---|---|
//! | every label once, in order, each on its own line; blanks around a value; white space around the answer | valid |
//! | `label:`, `LABEL :`, `LABEL=`, `**LABEL:** 1`, `- LABEL: 1`, an indented label | invalid |
//! | a label twice, a label missing, lines in another order, an empty line or any other line among them | invalid |
//! | a value on the next line, an empty value | invalid |
//!
//! A share is a number from 0 to 1 by JSON's grammar: `0.9`, `1`, `0`, `9e-1`. `90%`, `.9`, `1.`, `-0.1`, `1.2` and
//! `NaN` are not shares.

use super::SPACE;
use super::json::number;

/// White space that may stand around a value.
pub(super) const BLANK: [char; 2] = [' ', '\t'];

/// The most characters that name a feeling.
const FEELING: usize = 40;

/// The values of a text whose lines are exactly these labels in this order.
#[must_use]
pub fn labelled<'a, const N: usize>(text: &'a str, labels: [&str; N]) -> Option<[&'a str; N]> {
    let mut lines = text.trim_matches(SPACE).split('\n');
    let mut values = [""; N];
    for (value, label) in values.iter_mut().zip(labels) {
        let line = lines.next()?;
        let line = line.strip_suffix('\r').unwrap_or(line);
        *value = line.strip_prefix(label)?.strip_prefix(':')?.trim_matches(BLANK);
        if value.is_empty() {
            return None;
        }
    }
    lines.next().is_none().then_some(values)
}

/// The value of a first line `LABEL: value`, and everything after the label `rest` that opens the second line.
///
/// Both labels stand where they are looked for and nowhere else, so a text that repeats its prompt is not taken for an
/// answer. What follows may have any number of lines, but is not empty.
#[must_use]
pub fn headed<'a>(text: &'a str, label: &str, rest: &str) -> Option<(&'a str, &'a str)> {
    let (first, second) = text.trim_matches(SPACE).split_once('\n')?;
    let value = first.strip_prefix(label)?.strip_prefix(':')?.trim_matches(SPACE);
    let body = second.strip_prefix(rest)?.strip_prefix(':')?.trim_matches(SPACE);
    (!value.is_empty() && !body.is_empty()).then_some((value, body))
}

/// A number from 0 to 1.
#[must_use]
pub fn share(text: &str) -> Option<f64> {
    number(text).filter(|share| (0.0..=1.0).contains(share))
}

/// The words that name a feeling: letters, hyphens, apostrophes and single spaces, at most 40 characters.
#[must_use]
pub fn feeling(text: &str) -> Option<&str> {
    let is_word = |word: &str| {
        word.chars().any(char::is_alphabetic) && word.chars().all(|c| c.is_alphabetic() || "-'".contains(c))
    };
    (text.chars().count() <= FEELING && text.split(' ').all(is_word)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LABELS: [&str; 2] = ["FINAL ANSWER", "CONFIDENCE"];

    #[test]
    fn every_row_of_the_table_is_kept() {
        for text in [
            "FINAL ANSWER: 11\nCONFIDENCE: 0.9",
            "FINAL ANSWER:11\nCONFIDENCE:\t0.9",
            "\n FINAL ANSWER: 11 \r\nCONFIDENCE: 0.9 \n\n",
        ] {
            assert_eq!(labelled(text, LABELS), Some(["11", "0.9"]), "{text:?}");
        }
        for text in [
            "",
            "FINAL ANSWER: 11",
            "CONFIDENCE: 0.9\nFINAL ANSWER: 11",
            "FINAL ANSWER:\nCONFIDENCE: 0.9",
            "FINAL ANSWER:\n11\nCONFIDENCE: 0.9",
            "FINAL ANSWER: 11\n\nCONFIDENCE: 0.9",
            "FINAL ANSWER: 11\nCONFIDENCE: 0.9\nCONFIDENCE: 0.9",
            "FINAL ANSWER: 11\nFINAL ANSWER: 12\nCONFIDENCE: 0.9",
            "FINAL ANSWER: 11\nCONFIDENCE: 0.9\nSure.",
            "Well.\nFINAL ANSWER: 11\nCONFIDENCE: 0.9",
            "final answer: 11\nCONFIDENCE: 0.9",
            "FINAL ANSWER : 11\nCONFIDENCE: 0.9",
            "FINAL ANSWER= 11\nCONFIDENCE: 0.9",
            "**FINAL ANSWER:** 11\n**CONFIDENCE:** 0.9",
            "- FINAL ANSWER: 11\n- CONFIDENCE: 0.9",
            "FINAL ANSWER: 11\n CONFIDENCE: 0.9",
            "FINAL ANSWER: 11 CONFIDENCE: 0.9",
            "```\nFINAL ANSWER: 11\nCONFIDENCE: 0.9\n```",
        ] {
            assert_eq!(labelled(text, LABELS), None, "{text:?}");
        }
    }

    #[test]
    fn a_headed_answer_has_its_two_labels_in_place() {
        let headed = |text| headed(text, "PREDICTION", "ANSWER");
        assert_eq!(headed("PREDICTION: -0.5\nANSWER: 12"), Some(("-0.5", "12")));
        assert_eq!(headed(" PREDICTION: 1\r\nANSWER:\nA: 1\nANSWER: 2\n"), Some(("1", "A: 1\nANSWER: 2")));
        for text in [
            "",
            "PREDICTION: 1",
            "PREDICTION: 1 ANSWER: 2",
            "PREDICTION:\nANSWER: 2",
            "PREDICTION: 1\nANSWER:",
            "PREDICTION: 1\n\nANSWER: 2",
            "ANSWER: 2\nPREDICTION: 1",
            "Probe target answer: 3\nPREDICTION: 1\nANSWER: 2",
            "PREDICTION - 1\nANSWER: 2",
        ] {
            assert_eq!(headed(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_share_is_a_json_number_from_0_to_1() {
        for (text, value) in [("0.9", 0.9), ("1", 1.0), ("0", 0.0), ("9e-1", 0.9), ("1.0", 1.0), ("-0", 0.0)]
        {
            assert_eq!(share(text), Some(value), "{text}");
        }
        for text in [
            "90%",
            ".9",
            "1.",
            "-0.1",
            "1.0001",
            "2",
            "NaN",
            "inf",
            "1e999",
            "0,9",
            "0.9 or so",
            "",
            "+0.9",
            "00.9",
        ] {
            assert_eq!(share(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_feeling_is_a_few_words() {
        for text in ["relaxed", "a bit torn", "self-assured", "müde"] {
            assert_eq!(feeling(text), Some(text));
        }
        for text in ["", "5", "calm!", "calm  now", "calm, certain", "-", "ENTROPY: 1", &"very ".repeat(20)] {
            assert_eq!(feeling(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic(text in "(\\PC|\n|FINAL ANSWER|CONFIDENCE|: ){0,12}") {
            if let Some([answer, confidence]) = labelled(&text, LABELS) {
                // What is accepted is accepted again as it would be written here.
                let canonical = format!("FINAL ANSWER: {answer}\nCONFIDENCE: {confidence}");
                prop_assert_eq!(labelled(&canonical, LABELS), Some([answer, confidence]));
            }
            if let Some((value, body)) = headed(&text, "FINAL ANSWER", "CONFIDENCE") {
                let canonical = format!("FINAL ANSWER: {value}\nCONFIDENCE: {body}");
                prop_assert_eq!(headed(&canonical, "FINAL ANSWER", "CONFIDENCE"), Some((value, body)));
            }
            prop_assert!(share(&text).is_none_or(|x| (0.0..=1.0).contains(&x)));
            prop_assert!(feeling(&text).is_none_or(|f| !f.is_empty()));
        }

        #[test]
        fn values_round_trip(a in "[a-z0-9.%]{1,8}", b in "[a-z0-9.%]{1,8}", x in 0.0..=1.0_f64) {
            let text = format!("FINAL ANSWER: {a}\nCONFIDENCE: {b}");
            prop_assert_eq!(labelled(&text, LABELS), Some([&*a, &*b]));
            prop_assert_eq!(share(&x.to_string()), Some(x));
        }
    }
}
