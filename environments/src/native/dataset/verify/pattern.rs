//! Regular expressions, in linear time whatever pattern and answer are.

use regex::{Regex, RegexBuilder};

/// Most memory of one compiled pattern, in bytes.
const SIZE: usize = 1 << 20;

/// Compiles a pattern.
///
/// # Errors
/// It is not valid, too large, or uses look-around or back references, which cannot run in linear time.
pub(super) fn compile(pattern: &str, ignore_case: bool) -> Result<Regex, String> {
    let built = RegexBuilder::new(pattern).size_limit(SIZE).case_insensitive(ignore_case).build();
    built.map_err(|error| {
        // The library draws the place of the error over several lines; the last one says what is wrong.
        let text = error.to_string();
        let last = text.lines().last().unwrap_or_default().trim();
        format!("`{pattern}` is not a valid pattern: {}", last.trim_start_matches("error: "))
    })
}

/// What the first group of the last match holds, or the whole match if the pattern has no group.
pub(super) fn captured<'a>(pattern: &Regex, answer: &'a str) -> Option<&'a str> {
    let last = pattern.captures_iter(answer).last()?;
    let group = if pattern.captures_len() > 1 { last.get(1) } else { last.get(0) };
    group.map(|found| found.as_str())
}
