//! The last number of a text, as an exact rational.
//!
//! Only a number that stands for itself is read. One that is part of an expression, a range, a list, a negation or a
//! word, or whose separators fit no way of writing numbers, makes the text unreadable: guessing would reward answers
//! that say nothing.

use super::text::{is_denied, is_negated};
use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{Signed as _, Zero as _, pow};

/// Most digits of one number, and most digits that an exponent may add.
const DIGITS: usize = 1000;

/// Characters that group the digits of large numbers, beside the comma.
const GROUPING: [char; 6] = ['_', '\'', '’', '\u{a0}', '\u{202f}', '\u{2009}'];

/// Fractions that are one character.
const VULGAR: [(char, &str); 15] = [
    ('½', "1/2"),
    ('⅓', "1/3"),
    ('⅔', "2/3"),
    ('¼', "1/4"),
    ('¾', "3/4"),
    ('⅕', "1/5"),
    ('⅖', "2/5"),
    ('⅗', "3/5"),
    ('⅘', "4/5"),
    ('⅙', "1/6"),
    ('⅚', "5/6"),
    ('⅛', "1/8"),
    ('⅜', "3/8"),
    ('⅝', "5/8"),
    ('⅞', "7/8"),
];

/// Zeros of scripts whose ten digits follow each other.
const ZEROS: [u32; 8] = [0xff10, 0x0660, 0x06f0, 0x0966, 0x09e6, 0x0e50, 0x1d7ce, 0x1d7d8];

const SUPERSCRIPTS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];

/// What a percent sign means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum PercentMeaning {
    /// `50%` is read as 0.5.
    Value,
    /// `50%` is read as 50.
    Ignore,
}

/// The last number of a text; `None` if there is none, or if it does not stand for itself.
pub(super) fn last_number(text: &str, percent: PercentMeaning) -> Option<BigRational> {
    let chars: Vec<char> = plain(text).chars().collect();
    let scan = NumberScan { chars: &chars, percent };
    let mut last = None;
    let mut at = 0;
    while at < chars.len() {
        if !scan.begins_number(at) {
            at += 1;
            continue;
        }
        let (number, end) = scan.number(at);
        if !scan.is_inside_word(at) {
            last = number;
        }
        at = end.max(at + 1);
    }
    last
}

/// Writes digits, signs and fractions of other scripts and of LaTeX in ASCII.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if let Some((_, fraction)) = VULGAR.iter().find(|(vulgar, _)| *vulgar == c) {
            if plain.ends_with(|c: char| c.is_ascii_digit()) {
                plain.push(' ');
            }
            plain.push_str(fraction);
            continue;
        }
        plain.push(match c {
            '−' | '－' | '﹣' => '-',
            '⁄' | '∕' => '/',
            '．' | '٫' => '.',
            '٬' => ',',
            '％' | '﹪' => '%',
            _ => digit(c).unwrap_or(c),
        });
    }
    if !plain.contains('\\') {
        return plain;
    }
    let plain = plain.replace("{,}", ",").replace("\\,", ",").replace("\\%", "%").replace("\\$", "$");
    let plain = plain.replace("\\times", "×").replace("\\cdot", "·").replace("\\approx", "≈");
    fractions_in_a_line(&plain)
}

fn digit(c: char) -> Option<char> {
    let value = ZEROS.iter().find_map(|zero| u32::from(c).checked_sub(*zero).filter(|value| *value < 10))?;
    char::from_digit(value, 10)
}

/// Writes `\frac{1}{2}` as `1/2` where both parts are numbers.
fn fractions_in_a_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\\") {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let name = ["\\frac{", "\\dfrac{", "\\tfrac{"].into_iter().find(|name| rest.starts_with(name));
        let parts = name.and_then(|name| {
            let (above, after) = rest[name.len()..].split_once('}')?;
            let (below, after) = after.strip_prefix('{')?.split_once('}')?;
            let is_number = |part: &str| {
                let part = part.trim().strip_prefix('-').unwrap_or(part.trim());
                part.starts_with(|c: char| c.is_ascii_digit())
                    && part.chars().all(|c| c.is_ascii_digit() || c == '.' || c == ',')
            };
            (is_number(above) && is_number(below)).then(|| (above.trim(), below.trim(), after))
        });
        match parts {
            Some((above, below, after)) => {
                if out.ends_with(|c: char| c.is_ascii_digit()) {
                    out.push(' ');
                }
                out.push_str(above);
                out.push('/');
                out.push_str(below);
                rest = after;
            }
            None => {
                out.push('\\');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// Reads numbers from characters in ASCII form.
struct NumberScan<'a> {
    chars: &'a [char],
    percent: PercentMeaning,
}

impl NumberScan<'_> {
    fn get(&self, at: usize) -> Option<char> {
        self.chars.get(at).copied()
    }

    fn is_digit(&self, at: usize) -> bool {
        self.get(at).is_some_and(|c| c.is_ascii_digit())
    }

    /// The character before a position, and before it.
    fn before(&self, at: usize) -> Option<char> {
        at.checked_sub(1).and_then(|at| self.get(at))
    }

    fn begins_number(&self, at: usize) -> bool {
        let is_point = self.get(at) == Some('.')
            && self.is_digit(at + 1)
            && !self.before(at).is_some_and(|c| c.is_alphanumeric() || c == '.');
        self.is_digit(at) || is_point
    }

    /// Whether the digits at a position belong to a word such as `x1`, `H2O` or `covid-19`, or are an exponent.
    fn is_inside_word(&self, at: usize) -> bool {
        match self.before(at) {
            Some('_' | '^') => true,
            Some('{') => self.before(at - 1) == Some('^') || self.before(at - 1) == Some('_'),
            Some('-') if at >= 2 => {
                // A single letter before a dash is a variable, and what follows it an expression.
                let is_letter = |at: usize| self.get(at).is_some_and(char::is_alphabetic);
                is_letter(at - 2) && at >= 3 && is_letter(at - 3)
            }
            Some(c) => c.is_alphabetic(),
            None => false,
        }
    }

    /// The number whose digits begin at a position, unless it is unreadable, and where it ends.
    fn number(&self, start: usize) -> (Option<BigRational>, usize) {
        let (value, mut end) = self.digits(start);
        let mut value = value;
        let is_whole = value.as_ref().is_some_and(BigRational::is_integer) && end - start <= DIGITS;
        if let Some((exponent, after)) = self.exponent(end) {
            value = value.and_then(|value| shift(value, exponent));
            end = after;
        } else if let Some((below, after)) = self.divisor(end) {
            value = value.zip(below).and_then(
                |(above, below)| {
                    if below.is_zero() { None } else { Some(above / below) }
                },
            );
            end = after;
        } else if let Some((part, after)) = self.mixed(end).filter(|_| is_whole) {
            value = value.map(|value| value + part);
            end = after;
        }
        let (scale, after) = self.scale(end);
        value = value.map(|value| value * scale);
        end = after;
        let (is_percent, after) = self.percent_sign(end);
        if is_percent && self.percent == PercentMeaning::Value {
            value = value.map(|value| value / BigRational::from_integer(100.into()));
        }
        end = after;
        let value = value.filter(|_| self.stands_alone_until(end));
        (value.and_then(|value| self.signed(value, start)), end)
    }

    /// Digits with their separators, as far as they reach, and the value if they are one way of writing a number.
    fn digits(&self, start: usize) -> (Option<BigRational>, usize) {
        let mut end = start;
        while let Some(c) = self.get(end) {
            let joins = ".,:".contains(c) || GROUPING.contains(&c);
            let goes_on = c.is_ascii_digit() || joins && self.is_digit(end + 1);
            if !goes_on {
                break;
            }
            end += 1;
        }
        let text: String = self.chars[start..end].iter().collect();
        // Three digits after a space may be a group of the number or a number of their own.
        let may_go_on = text.len() <= 3
            && self.get(end) == Some(' ')
            && (end + 1..end + 4).all(|at| self.is_digit(at))
            && !self.is_digit(end + 4)
            && self.get(end + 4) != Some('/');
        if may_go_on { (None, end + 4) } else { (decimal(&text), end) }
    }

    /// A power of ten after the digits: `e5`, `×10^5`, `* 10^{-5}` or `×10⁵`.
    fn exponent(&self, end: usize) -> Option<(i64, usize)> {
        if matches!(self.get(end), Some('e' | 'E')) {
            let signed = matches!(self.get(end + 1), Some('+' | '-'));
            let first = end + 1 + usize::from(signed);
            let last = self.end_of_digits(first);
            if last > first && !self.get(last).is_some_and(char::is_alphanumeric) {
                return Some((self.whole(first, last, self.get(end + 1) == Some('-')), last));
            }
            return None;
        }
        let sign = self.skip_spaces(end);
        if !matches!(self.get(sign), Some('×' | '*' | '·' | 'x')) {
            return None;
        }
        let ten = self.skip_spaces(sign + 1);
        if self.get(ten) != Some('1') || self.get(ten + 1) != Some('0') {
            return None;
        }
        let after = ten + 2;
        if self.get(after) == Some('^') {
            let is_braced = self.get(after + 1) == Some('{');
            let from = after + 1 + usize::from(is_braced);
            let is_negative = self.get(from) == Some('-');
            let first = from + usize::from(is_negative);
            let last = self.end_of_digits(first);
            let is_closed = !is_braced || self.get(last) == Some('}');
            return (last > first && is_closed)
                .then(|| (self.whole(first, last, is_negative), last + usize::from(is_braced)));
        }
        let is_negative = self.get(after) == Some('⁻');
        let first = after + usize::from(is_negative);
        let power = |at: usize| self.get(at).and_then(|c| SUPERSCRIPTS.iter().position(|s| *s == c));
        let mut exponent = 0_i64;
        let mut at = first;
        while let Some(value) = power(at) {
            exponent = exponent.saturating_mul(10).saturating_add(i64::try_from(value).unwrap_or_default());
            at += 1;
        }
        (at > first).then_some((if is_negative { -exponent } else { exponent }, at))
    }

    /// The divisor of a fraction after the digits, and where it ends.
    fn divisor(&self, end: usize) -> Option<(Option<BigRational>, usize)> {
        let slash = self.skip_spaces(end);
        if self.get(slash) != Some('/') {
            return None;
        }
        let start = self.skip_spaces(slash + 1);
        if !self.is_digit(start) {
            return None;
        }
        let (value, end) = self.digits(start);
        // `1/2/3` is a date or an expression.
        let goes_on =
            self.get(self.skip_spaces(end)) == Some('/') && self.is_digit(self.skip_spaces(end) + 1);
        Some((value.filter(|_| !goes_on), end))
    }

    /// The fraction of a mixed number such as `1 1/2`: one space, and less than 1.
    fn mixed(&self, end: usize) -> Option<(BigRational, usize)> {
        if self.get(end) != Some(' ') {
            return None;
        }
        let first = end + 1;
        let last = self.end_of_digits(first);
        if last == first || self.get(last) != Some('/') || !self.is_digit(last + 1) {
            return None;
        }
        let below_end = self.end_of_digits(last + 1);
        let text = |from: usize, to: usize| self.chars[from..to].iter().collect::<String>();
        let above = decimal(&text(first, last))?;
        let below = decimal(&text(last + 1, below_end))?;
        (above < below && !below.is_zero()).then(|| (above / below, below_end))
    }

    /// A word such as `million` after a number, as a factor.
    fn scale(&self, end: usize) -> (BigRational, usize) {
        let start = self.skip_spaces(end);
        let rest: String = self.chars[start..].iter().take(9).collect::<String>().to_lowercase();
        let words = [("hundred", 2), ("thousand", 3), ("million", 6), ("billion", 9), ("trillion", 12)];
        for (word, zeros) in words {
            let after = start + word.len();
            if rest.starts_with(word) && !self.get(after).is_some_and(char::is_alphanumeric) {
                return (BigRational::from_integer(pow(BigInt::from(10), zeros)), after);
            }
        }
        (BigRational::from_integer(1.into()), end)
    }

    fn percent_sign(&self, end: usize) -> (bool, usize) {
        let start = self.skip_spaces(end);
        if self.get(start) == Some('%') {
            return (true, start + 1);
        }
        let rest: String = self.chars[start..].iter().take(8).collect::<String>().to_lowercase();
        for word in ["percent", "per cent"] {
            let after = start + word.len();
            // Percentage points are a difference of percentages.
            if rest.starts_with(word) && !self.get(after).is_some_and(char::is_alphanumeric) {
                return (true, after);
            }
        }
        (false, end)
    }

    /// Whether nothing after a number makes it a part of something else.
    fn stands_alone_until(&self, end: usize) -> bool {
        let next = self.get(end);
        if next.is_some_and(|c| "^√π‰\u{fe0f}\u{20e3}".contains(c) || SUPERSCRIPTS.contains(&c)) {
            return false;
        }
        // `2x` and `3i` are terms; `0x2A` is written in another base; `5k` may be thousands.
        if let Some(letter) = next.filter(|c| c.is_alphabetic()) {
            let is_single = !self.get(end + 1).is_some_and(char::is_alphabetic);
            let is_base =
                "xXbBoO".contains(letter) && self.get(end + 1).is_some_and(|c| c.is_ascii_alphanumeric());
            if is_base && self.before(end) == Some('0') || is_single && "xyzniekKMB".contains(letter) {
                return false;
            }
        }
        let after: String = self.chars[end..].iter().take(40).collect();
        if is_denied(&after) {
            return false;
        }
        let after = self.skip_spaces(end);
        match self.get(after) {
            // Two asterisks end bold text.
            Some('*') if self.get(after + 1) == Some('*') => {
                !self.get(after + 2).is_some_and(char::is_alphanumeric)
            }
            Some('+' | '×' | '÷' | '*' | '·' | '√') => {
                let operand = self.get(self.skip_spaces(after + 1));
                !operand.is_some_and(|c| c.is_alphanumeric() || "(\\$√".contains(c))
            }
            Some('/') => !self.get(self.skip_spaces(after + 1)).is_some_and(|c| "(\\".contains(c)),
            _ => true,
        }
    }

    /// The value with its sign, if what stands before the number lets it stand for itself.
    fn signed(&self, value: BigRational, start: usize) -> Option<BigRational> {
        let mut at = start;
        if self.before(at).is_some_and(|c| "$€£¥₹".contains(c)) {
            at -= 1;
        }
        let mut is_negative = false;
        match self.before(at) {
            Some('+') if self.is_operand(at - 1) => return None,
            Some('+') => at -= 1,
            Some('-') if self.before(at - 1).is_some_and(|c| c.is_alphanumeric() || ")-.]}|".contains(c)) => {
                return None;
            }
            Some('-') => {
                is_negative = true;
                at -= 1;
            }
            Some('±' | '∓' | '√' | '–' | '/' | ':' | '.') if self.joins_before(at) => return None,
            _ => {}
        }
        if self.before(at).is_some_and(|c| "$€£¥₹".contains(c)) {
            at -= 1;
        }
        let before: String = self.chars[at.saturating_sub(200)..at].iter().collect();
        if !stands_alone_after(&before) {
            return None;
        }
        let word = before.split_whitespace().next_back().unwrap_or_default().to_lowercase();
        if matches!(&*word, "minus" | "negative") {
            is_negative = !is_negative;
        }
        Some(if is_negative { -value } else { value })
    }

    /// Whether what ends before a sign is an operand, so that the sign is an operator.
    fn is_operand(&self, sign: usize) -> bool {
        let mut at = sign;
        while self.before(at) == Some(' ') {
            at -= 1;
        }
        self.before(at).is_some_and(|c| c.is_alphanumeric() || c == ')')
    }

    /// Whether the sign right before a position joins the number to one before it, or changes its value.
    fn joins_before(&self, at: usize) -> bool {
        match self.before(at) {
            Some('±' | '∓' | '√') => true,
            // `1..42` is a range, and `so...42` is not.
            Some('.') => {
                at >= 3 && (self.is_digit(at - 2) || self.get(at - 2) == Some('.') && self.is_digit(at - 3))
            }
            _ => at >= 2 && self.get(at - 2).is_some_and(char::is_alphanumeric),
        }
    }

    fn skip_spaces(&self, mut at: usize) -> usize {
        while self.get(at) == Some(' ') {
            at += 1;
        }
        at
    }

    fn end_of_digits(&self, mut at: usize) -> usize {
        while self.is_digit(at) {
            at += 1;
        }
        at
    }

    fn whole(&self, first: usize, last: usize, is_negative: bool) -> i64 {
        let digits: String = self.chars[first..last].iter().collect();
        let value: i64 = digits.parse().unwrap_or(i64::MAX);
        if is_negative { -value } else { value }
    }
}

/// The value of digits with separators: groups of three by one separator, or a decimal point alone.
fn decimal(text: &str) -> Option<BigRational> {
    let (whole, fraction) = match text.rsplit_once('.') {
        Some((whole, fraction)) => (whole, fraction),
        None => (text, ""),
    };
    let is_digits = |part: &str| part.chars().all(|c| c.is_ascii_digit());
    let separator = whole.chars().find(|c| !c.is_ascii_digit());
    let digits = match separator {
        None => whole.to_owned(),
        Some(separator) if separator == ',' || GROUPING.contains(&separator) => {
            let groups: Vec<&str> = whole.split(separator).collect();
            let (first, rest) = groups.split_first()?;
            let is_grouped = (1..=3).contains(&first.len())
                && !first.starts_with('0')
                && rest.iter().all(|group| group.len() == 3 && is_digits(group));
            if !is_grouped || !is_digits(first) {
                return None;
            }
            groups.concat()
        }
        Some(_) => return None,
    };
    if !is_digits(&digits) || !is_digits(fraction) || digits.len() + fraction.len() > DIGITS {
        return None;
    }
    let all: BigInt = format!("{digits}{fraction}").parse().ok()?;
    Some(BigRational::new(all, pow(BigInt::from(10), fraction.len())))
}

fn shift(value: BigRational, exponent: i64) -> Option<BigRational> {
    let zeros = usize::try_from(exponent.unsigned_abs()).ok().filter(|zeros| *zeros <= DIGITS)?;
    let factor = BigRational::from_integer(pow(BigInt::from(10), zeros));
    Some(if exponent < 0 { value / factor } else { value * factor })
}

/// Whether nothing before a number makes it part of an expression, a comparison, a list or a negation.
fn stands_alone_after(before: &str) -> bool {
    if is_negated(before) {
        return false;
    }
    let line = before.rsplit('\n').next().unwrap_or_default();
    let compact = line.trim_end_matches(' ');
    // Opening brackets and markup do not separate a number from the operator before them.
    let open = compact.trim_end_matches(['(', '[', '{']).trim_end_matches(' ');
    let bold = open.strip_suffix("**");
    if bold.is_some_and(|rest| rest.ends_with(char::is_alphanumeric)) {
        return false;
    }
    let open = bold.map_or(open, |rest| rest.trim_end_matches(' '));
    let function = ["\\frac", "\\dfrac", "\\tfrac", "\\sqrt", "\\binom", "\\log", "\\ln", "√"];
    let word = compact.split(' ').next_back().unwrap_or_default();
    if function.iter().any(|name| word.contains(name)) {
        return false;
    }
    let mut back = open.chars().rev();
    let last = back.next();
    let rest: String = back.rev().collect();
    let rest = rest.trim_end_matches(' ');
    let follows_operand = rest.ends_with(|c: char| c.is_alphanumeric() || ")]}".contains(c));
    let follows_number = rest.ends_with(|c: char| c.is_ascii_digit() || c == '%');
    let is_continuation = match last {
        Some('+' | '×' | '·' | '÷' | '^' | '/' | '*') => follows_operand,
        Some('-' | '–' | '−') => {
            let variable = rest.split(' ').next_back().is_some_and(|word| word.chars().count() == 1);
            follows_operand && (follows_number || variable || rest.ends_with(')')) || rest.ends_with('=')
        }
        Some('<' | '≤' | '≥' | '≠' | '√') => true,
        Some('>') => compact.ends_with(" >") && !rest.is_empty() && line.ends_with(' '),
        Some(',' | ';') => follows_number,
        _ => false,
    };
    // `-(-42)` is an expression.
    if open.len() < compact.len() && open.ends_with('-') {
        return false;
    }
    let mut words = open.split_whitespace().rev();
    let joins_numbers = words.next().is_some_and(|word| matches!(word, "and" | "to"))
        && words.next().is_some_and(|word| word.ends_with(|c: char| c.is_ascii_digit()));
    if joins_numbers {
        return false;
    }
    let last_word = open.split_whitespace().next_back().unwrap_or_default().to_lowercase();
    !is_continuation && !matches!(&*last_word, "or" | "and/or" | "versus" | "vs" | "vs." | "times" | "plus")
}

/// Whether two numbers are equal, or differ by at most `tolerance`.
pub(super) fn is_close(a: &BigRational, b: &BigRational, tolerance: &BigRational) -> bool {
    (a - b).abs() <= *tolerance
}

/// A tolerance as it is written, such as 0.01, and not as the binary number nearest to it.
pub(super) fn exact(tolerance: f64) -> Option<BigRational> {
    let written = format!("{tolerance}");
    decimal(&written)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        last_number(text, PercentMeaning::Value).map_or_else(|| "-".into(), |number| number.to_string())
    }

    #[test]
    fn a_number_is_read_in_each_way_of_writing_it() {
        for (text, value) in [
            ("42", "42"),
            ("The answer is 42.", "42"),
            ("1,234,567.5", "2469135/2"),
            ("1_000 or so", "1000"),
            ("1\u{202f}000", "1000"),
            ("−3", "-3"),
            ("x = -5", "-5"),
            ("-$5", "-5"),
            ("$-5", "-5"),
            ("minus 5", "-5"),
            ("3/4", "3/4"),
            ("3 / 4", "3/4"),
            (r"-\frac{3}{4}", "-3/4"),
            (r"2\frac{1}{3}", "7/3"),
            ("1 1/2", "3/2"),
            ("1½", "3/2"),
            ("50%", "1/2"),
            ("12.5 percent", "1/8"),
            ("1e3", "1000"),
            ("1.5×10^-2", "3/200"),
            (r"1.5 \times 10^{2}", "150"),
            ("2×10⁵", "200000"),
            (".5", "1/2"),
            ("5 km", "5"),
            ("42 m^2", "42"),
            ("42 m²", "42"),
            ("**42**", "42"),
            (r"\boxed{1{,}234}", "1234"),
            ("2 million", "2000000"),
            ("４２", "42"),
            ("٤٢", "42"),
            ("٤٢٫٥", "85/2"),
            ("so...42", "42"),
            ("42 is right", "42"),
            ("5 and 7 make 12", "12"),
            ("5 + 3 = 8", "8"),
            ("- 8", "8"),
            ("4 apples; H2O", "4"),
            ("#### 42", "42"),
            ("<answer>42</answer>", "42"),
        ] {
            assert_eq!(read(text), value, "{text}");
        }
    }

    #[test]
    fn what_does_not_stand_for_itself_is_unreadable() {
        for text in [
            "",
            "none",
            "NaN",
            "inf",
            "1.2.3",
            "1,23",
            "3:30",
            "10-20",
            "5*8",
            "5 + 3",
            "41 or 42",
            "40, 41, 42",
            "not 42",
            "is not equal to 42",
            "isn't 42",
            "x ≠ 42",
            "x > 42",
            "≤ 42",
            "2x",
            "3i",
            "4 + 3i",
            "2^10",
            "10²",
            "√2",
            r"\sqrt{2}",
            r"\frac{x}{2}",
            "1/0",
            "5k",
            "0x2A",
            "±3",
            "12 345",
            "1/2/3",
            "1e9999",
            "42 + x",
            "2024-05-01",
            "2**3",
            "n - 1",
        ] {
            assert_eq!(read(text), "-", "{text:?}");
        }
        assert_eq!(read(&"9".repeat(1001)), "-");
    }

    #[test]
    fn a_tolerance_is_exact() {
        let number = |text| last_number(text, PercentMeaning::Value).unwrap();
        let tolerance = exact(0.1).unwrap();
        assert!(is_close(&number("0.3"), &number("0.2"), &tolerance));
        assert!(!is_close(&number("0.30000001"), &number("0.2"), &tolerance));
        assert_eq!(last_number("50%", PercentMeaning::Ignore), Some(number("50")));
    }
}
