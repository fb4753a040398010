//! Errors of a config. Each names the place of the value, the key, the value and what would be valid.

use minds_core::number::ShortNumber;
use std::fmt;
use std::path::PathBuf;

/// A config that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("failed to read the config {}: {source}", path.display())]
    Read {
        /// Path of the config file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The text is not valid TOML, or a key or a value is invalid or conflicts with others.
    #[error("{place}: {message}{}", excerpt.as_ref().map(ToString::to_string).unwrap_or_default())]
    Wrong {
        /// `file:line:column` as far as it is known; else the variable, the override or the flag.
        place: String,
        /// The key, its value and what would be valid.
        message: String,
        /// The line of the value, if it is in the file.
        excerpt: Option<ConfigExcerpt>,
    },
}

/// A key and what is wrong with its value; [`ConfigLocations`](super::locations::ConfigLocations) knows the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyProblem {
    /// The key with its tables, such as `trainer.seed`.
    pub key: String,
    /// The rest of a sentence that begins with the key.
    pub problem: String,
}

impl KeyProblem {
    pub(super) fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { key: key.into(), problem: problem.into() }
    }
}

/// The value, if the condition holds that it `must` meet: `lie in [0, 1)`.
pub(super) fn ensure<T: fmt::Display>(
    key: impl Into<String>,
    value: T,
    holds: bool,
    must: impl fmt::Display,
) -> Result<T, KeyProblem> {
    if holds { Ok(value) } else { Err(KeyProblem::new(key, format!("is {value}; it must {must}"))) }
}

/// The number, if the condition holds that it `must` meet.
pub(super) fn ensure_number(
    key: impl Into<String>,
    number: f64,
    holds: bool,
    must: impl fmt::Display,
) -> Result<f64, KeyProblem> {
    ensure(key, ShortNumber(number), holds, must).map(|number| number.0)
}

/// The value, if it is not above `most`.
pub(super) fn at_most<T: fmt::Display + PartialOrd>(
    key: impl Into<String>,
    value: T,
    most: T,
) -> Result<T, KeyProblem> {
    let holds = value <= most;
    ensure(key, value, holds, format_args!("be at most {most}"))
}

/// Refuses shares of the same requests that are together above 1, and names the largest.
pub(super) fn at_most_whole(shares: &[(&str, f64)]) -> Result<(), KeyProblem> {
    let whole: f64 = shares.iter().map(|(_, share)| share).sum();
    let largest = shares.iter().max_by(|one, other| one.1.total_cmp(&other.1));
    // Decimal shares that are exactly 1 need not be so as binary numbers.
    let Some((key, share)) = largest.filter(|_| whole > 1.0 + 1e-9) else { return Ok(()) };
    let others: Vec<String> =
        shares.iter().filter(|(other, _)| other != key).map(|(other, _)| format!("`{other}`")).collect();
    let problem =
        format!("is {share}, together with {} {whole:.3}; they must be at most 1", others.join(" and "));
    Err(KeyProblem::new(*key, problem))
}

/// A line of a file with a part of it underlined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigExcerpt {
    /// Line number, counted from 1.
    pub line: usize,
    /// Text of the whole line.
    pub text: String,
    /// Characters before the underlined part.
    pub before: usize,
    /// Characters of the underlined part.
    pub length: usize,
}

impl fmt::Display for ConfigExcerpt {
    /// Formats the excerpt as a compiler does, beginning with a newline.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let gutter = " ".repeat(number.len());
        let indent = " ".repeat(self.before);
        let marks = "^".repeat(self.length.max(1));
        write!(f, "\n{gutter} |\n{number} | {}\n{gutter} | {indent}{marks}", self.text)
    }
}

/// The known name that was meant by one that is not known, if one is near enough.
pub(super) fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.into_iter().filter_map(|known| Some((distance(written, known)?, known)));
    near.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// Letters by which the two differ, if they are near enough for one to be meant by the other.
pub(super) fn distance(written: &str, known: &str) -> Option<usize> {
    let distance = strsim::damerau_levenshtein(written, known);
    (distance <= known.len().max(4) / 2 && distance < written.len()).then_some(distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_near_name_is_suggested() {
        let keys = ["seed", "learning_rate", "loss_fn"];
        assert_eq!(nearest("lerning_rate", keys), Some("learning_rate"));
        assert_eq!(nearest("sede", keys), Some("seed"), "two letters in the wrong order");
        assert_eq!(nearest("zzzzzz", keys), None);
        assert_eq!(nearest("x", ["id"]), None, "nothing of it was written");
    }

    #[test]
    fn an_excerpt_points_at_its_part() {
        let excerpt = ConfigExcerpt { line: 12, text: "seed = -1".into(), before: 7, length: 2 };
        assert_eq!(excerpt.to_string(), "\n   |\n12 | seed = -1\n   |        ^^");
    }
}
