//! Whole numbers of any size, compared digit by digit.
//!
//! | written | taken as |
//! |---|---|
//! | `12`, `-12`, `+12`, `−12` (U+2212), `-0` (= `0`), a number of a thousand digits | valid |
//! | `1,234,567`: thousands separators, complete and in groups of three | valid |
//! | `12,34`, `1234,567`, `1,23`, `,123`, `1 234`, `1_234`, `1.234` | invalid |
//! | `007`, `--1`, `- 1`, `12.0`, `1e3`, `0x1`, `50%`, `twelve`, `12.` , `**12**`, `12 + 5 = 17`, other scripts' digits | invalid |
//!
//! A list is `1, 2, 3`: digits without sign or separator, a comma, and any number of spaces after it.

use super::{SPACE, lines};
use std::fmt;
use std::ops::RangeInclusive;

/// A whole number in its one canonical form: no leading zero, no separator, `-` only before what is not 0.
///
/// Equal numbers are equal as values however they were written, and different ones never: nothing is rounded, so
/// neither a lost sign nor a size beyond 2^53 can make a wrong answer right.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Integer(String);

impl Integer {
    /// The number that the whole text is, by the grammar of this module.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (is_negative, unsigned) = match text.strip_prefix(['-', '\u{2212}']) {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let plain = without_separators(unsigned)?;
        if !is_whole(&plain) {
            return None;
        }
        Some(Self(if is_negative && plain != "0" { format!("-{plain}") } else { plain }))
    }

    /// As a machine number, where it fits.
    #[must_use]
    pub fn get(&self) -> Option<i64> {
        self.0.parse().ok()
    }
}

impl From<i128> for Integer {
    fn from(number: i128) -> Self {
        Self(number.to_string())
    }
}

impl fmt::Display for Integer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn without_separators(unsigned: &str) -> Option<String> {
    let (first, rest) =
        unsigned.split_once(',').map_or((unsigned, None), |(first, rest)| (first, Some(rest)));
    let Some(rest) = rest else { return Some(unsigned.to_owned()) };
    let is_right = (1..=3).contains(&first.len()) && digits(first);
    let groups = rest.split(',').all(|group| group.len() == 3 && digits(group));
    (is_right && groups).then(|| unsigned.replace(',', ""))
}

fn digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn is_whole(text: &str) -> bool {
    digits(text) && (text == "0" || !text.starts_with('0'))
}

/// Exactly `N` whole numbers of `range`, separated by commas; the whole text.
#[must_use]
pub fn whole_numbers<const N: usize>(text: &str, range: RangeInclusive<u32>) -> Option<[u32; N]> {
    let mut parts = text.trim_matches(SPACE).split(',');
    let mut numbers = [0; N];
    for (i, number) in numbers.iter_mut().enumerate() {
        let part = parts.next()?;
        let part = if i == 0 { part } else { part.trim_start_matches(lines::BLANK) };
        *number = if is_whole(part) { part.parse().ok()? } else { return None };
        if !range.contains(number) {
            return None;
        }
    }
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_row_of_the_table_is_kept() {
        let huge = "9".repeat(1000);
        for (text, canonical) in [
            ("12", "12"),
            ("-12", "-12"),
            ("+12", "12"),
            ("\u{2212}12", "-12"),
            ("-0", "0"),
            ("+0", "0"),
            ("1,234,567", "1234567"),
            ("-1,000", "-1000"),
            (&huge, &huge),
        ] {
            assert_eq!(Integer::parse(text).map(|n| n.to_string()).as_deref(), Some(canonical), "{text}");
        }
        for text in [
            "",
            "-",
            "+",
            "12,34",
            "1234,567",
            "1,23",
            ",123",
            "123,",
            "0,123",
            "01,234",
            "1 234",
            "1_234",
            "1.234",
            "007",
            "-01",
            "--1",
            "+-1",
            "- 1",
            " 1",
            "1\n",
            "12.0",
            "12.",
            "1e3",
            "0x1",
            "50%",
            "twelve",
            "**12**",
            "12 + 5 = 17",
            "NaN",
            "inf",
            "\u{663}",
            "\u{ff11}",
            "1,,234",
            "1,2345",
        ] {
            assert_eq!(Integer::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_list_has_its_exact_length_and_every_number_in_range() {
        let five = |text| whole_numbers::<5>(text, 0..=999);
        for text in ["310, 4, 778, 100, 52", "310,4,778,100,52", " 310,  4, 778, 100, 52\n"] {
            assert_eq!(five(text), Some([310, 4, 778, 100, 52]), "{text:?}");
        }
        for text in [
            "",
            "1, 2, 3, 4",
            "1, 2, 3, 4, 5, 6",
            "1, 2, 3, 4, 1000",
            "1, 2, 3, 4, -5",
            "1, 2, 3, 4, 5.0",
            "1, 2, 3, 4, 05",
            "1 2 3 4 5",
            "1; 2; 3; 4; 5",
            "[1, 2, 3, 4, 5]",
            "1, 2, 3, 4, 5.",
            "1, 2, 3, 4, 5 apple",
            "1 , 2, 3, 4, 5",
            "1,\n2, 3, 4, 5",
            "1, 2, 3, 4, 5,",
            "1, 2, 3, 4, 99999999999999",
            "1e1, 2, 3, 4, 5",
            "1, 2, 3, 4, +5",
            "It is an apple 1",
            "one, two, three, four, five",
        ] {
            assert_eq!(five(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic(text in "\\PC*", near in "[-+,0-9 \u{2212}]{0,12}") {
            for text in [text, near] {
                // What is accepted is accepted again in its canonical form, as the same number.
                if let Some(number) = Integer::parse(&text) {
                    prop_assert_eq!(Integer::parse(&number.to_string()), Some(number));
                }
                if let Some(list) = whole_numbers::<2>(&text, 0..=999) {
                    let canonical = format!("{}, {}", list[0], list[1]);
                    prop_assert_eq!(whole_numbers(&canonical, 0..=999), Some(list));
                }
            }
        }

        #[test]
        fn numbers_round_trip_and_equal_only_themselves(a: i128, b: i128) {
            let number = Integer::parse(&a.to_string()).expect("digits");
            prop_assert_eq!(&number, &Integer::from(a));
            prop_assert_eq!(number.get(), i64::try_from(a).ok());
            prop_assert_eq!(Integer::from(a) == Integer::from(b), a == b);
        }

        #[test]
        fn separators_change_nothing(number in 0_u64..) {
            let plain = number.to_string();
            let mut grouped = String::new();
            for (i, digit) in plain.chars().enumerate() {
                if i > 0 && (plain.len() - i) % 3 == 0 {
                    grouped.push(',');
                }
                grouped.push(digit);
            }
            prop_assert_eq!(Integer::parse(&grouped), Integer::parse(&plain));
        }

        #[test]
        fn lists_round_trip(list: [u32; 4]) {
            let text = list.map(|n| n.to_string()).join(", ");
            prop_assert_eq!(whole_numbers(&text, 0..=u32::MAX), Some(list));
        }
    }
}
