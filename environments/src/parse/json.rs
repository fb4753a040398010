//! Answers that are a JSON array.
//!
//! They are JSON and nothing more:
//!
//! | written | taken as |
//! |---|---|
//! | `[0.5]`, ` [ 0.5 ]\n`: JSON white space around the array and around its elements | valid |
//! | `[-0.5]`, `[2]`, `[-0]`, `[5e-1]`, `[5E+1]` | valid |
//! | `[+0.5]`, `[−0.5]` (U+2212), `[.5]`, `[5.]`, `[007]`, `[0x1]`, `[1,200]`, `[1_000]` | invalid |
//! | `[50%]`, `[0.5 nats]`, `["0.5"]`, `[null]`, `[[0.5]]`, `{"a": 0.5}`, `0.5` | invalid |
//! | `[NaN]`, `[Infinity]`, `[1e999]`, and sizes above [`LARGEST`] | invalid |
//! | text before or after, a code fence, a second array, a trailing comma, other Unicode white space | invalid |

use super::SPACE;

/// The largest number that is an answer. It keeps every error finite and every valid reward above 0 as an `f32`.
pub const LARGEST: f64 = 1e6;

/// The number of a text that is a JSON array of exactly one number.
#[must_use]
pub fn lone_number(text: &str) -> Option<f64> {
    let [number]: [f64; 1] = serde_json::from_str(text).ok()?;
    bounded(number)
}

/// The order of a text that is a JSON array of the whole numbers from 1 to `n`, each exactly once.
///
/// `2.0`, `02` and `+2` are not whole numbers here, and nothing is completed or left out.
#[must_use]
pub fn permutation(text: &str, n: usize) -> Option<Vec<usize>> {
    let order: Vec<usize> = serde_json::from_str(text).ok()?;
    let mut sorted = order.clone();
    sorted.sort_unstable();
    sorted.into_iter().eq(1..=n).then_some(order)
}

/// A number by JSON's grammar, at most [`LARGEST`] in size.
#[must_use]
pub fn number(text: &str) -> Option<f64> {
    let is_padded = text.starts_with(SPACE) || text.ends_with(SPACE);
    serde_json::from_str(text).ok().filter(|_| !is_padded).and_then(bounded)
}

fn bounded(number: f64) -> Option<f64> {
    (number.abs() <= LARGEST).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_row_of_the_table_is_kept() {
        for (text, number) in [
            ("[0.5]", 0.5),
            (" [ 0.5 ]\n", 0.5),
            ("\t[\r\n0.5]", 0.5),
            ("[-0.5]", -0.5),
            ("[2]", 2.0),
            ("[-0]", 0.0),
            ("[5e-1]", 0.5),
            ("[5E+1]", 50.0),
            ("[1e6]", 1e6),
            ("[1e-400]", 0.0),
        ] {
            assert_eq!(lone_number(text), Some(number), "{text:?}");
        }
        for text in [
            "",
            " ",
            "[]",
            "[ ]",
            "[",
            "]",
            "][",
            "[+0.5]",
            "[\u{2212}0.5]",
            "[--1]",
            "[-]",
            "[.5]",
            "[5.]",
            "[007]",
            "[-01]",
            "[0x1]",
            "[1,200]",
            "[1_000]",
            "[1,]",
            "[,1]",
            "[1 2]",
            "[50%]",
            "[0.5 nats]",
            "[\"0.5\"]",
            "[null]",
            "[[0.5]]",
            "{\"a\": 0.5}",
            "0.5",
            "[NaN]",
            "[nan]",
            "[Infinity]",
            "[-inf]",
            "[1e999]",
            "[1e]",
            "[1e+]",
            "[e5]",
            "[1e5.0]",
            "[1000001]",
            "[-1e7]",
            "the answer is [1]",
            "[1].",
            "[1] [2]",
            "[3]3]3[3]",
            "```json\n[1]\n```",
            "`[1]`",
            "\u{a0}[1]",
            "[\u{663}]",
            "[1]\0",
        ] {
            assert_eq!(lone_number(text), None, "{text:?}");
        }
    }

    #[test]
    fn only_a_permutation_is_an_order() {
        assert_eq!(permutation("[2, 1, 3]", 3), Some(vec![2, 1, 3]));
        assert_eq!(permutation(" [2,1]\n", 2), Some(vec![2, 1]));
        for text in [
            "[1, 2]",
            "[1, 2, 3, 4]",
            "[1, 1, 2]",
            "[0, 1, 2]",
            "[1, 2, 4]",
            "[2.9, 1, 3]",
            "[2.0, 1, 3]",
            "[02, 1, 3]",
            "[+2, 1, 3]",
            "[-1, 2, 3]",
            "[\"2\", 1, 3]",
            "[2, 1, 3,]",
            "[]",
            "2, 1, 3",
            "2 1 3",
            "[2, 1, 3] because",
            "[[2, 1, 3]]",
            "[2, 1, 99999999999999999999999]",
        ] {
            assert_eq!(permutation(text, 3), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic(text in "\\PC*", n in 0_usize..8) {
            let number = lone_number(&text);
            prop_assert!(number.is_none_or(f64::is_finite));
            prop_assert!(permutation(&text, n).is_none_or(|order| order.len() == n));
        }

        #[test]
        fn nor_does_text_that_is_nearly_right(text in "[ \\[\\]0-9.,eE+\\-\\n]{0,16}", n in 0_usize..8) {
            if let Some(number) = lone_number(&text) {
                let json: Vec<f64> = serde_json::from_str(&text).expect("what is accepted is JSON");
                prop_assert_eq!(json.len(), 1);
                prop_assert!((json[0] - number).abs() <= 1e-9 * number.abs());
            }
            if let Some(order) = permutation(&text, n) {
                prop_assert_eq!(serde_json::from_str::<Vec<usize>>(&text).expect("JSON"), order);
            }
        }

        #[test]
        fn numbers_round_trip(number in -LARGEST..=LARGEST) {
            prop_assert_eq!(lone_number(&format!("[{number}]")), Some(number));
            prop_assert_eq!(lone_number(&format!("[{number:e}]")), Some(number));
        }

        #[test]
        fn orders_round_trip(order in Just((1..=6).collect::<Vec<usize>>()).prop_shuffle()) {
            prop_assert_eq!(permutation(&format!("{order:?}"), 6), Some(order));
        }
    }
}
