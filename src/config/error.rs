//! Complaints about a config. Each names the file or the flag, the key, what stands there and what would be right.

use std::path::PathBuf;

/// A config that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("failed to read the config {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The text is not TOML, or a key is unknown or has a value of the wrong type.
    #[error("{origin}: {message}{}", suggestion.as_ref().map(|s| format!("\ndid you mean `{s}`?")).unwrap_or_default())]
    Parse {
        /// The file, or the flag.
        origin: String,
        /// What the parser says, with line and column where they are known.
        message: String,
        /// The nearest known key.
        suggestion: Option<String>,
    },
    /// A value is out of its range, or does not go with others.
    #[error("{origin}: `{key}` {problem}")]
    Value {
        /// The file.
        origin: String,
        /// The key, with its table.
        key: String,
        /// What stands there and what would be right.
        problem: String,
    },
}

/// Finds the key that was meant: `message` is serde's ``unknown field `x`, expected one of `a`, `b` ``.
pub(super) fn nearest_key(message: &str) -> Option<String> {
    let rest = message.split("unknown field ").nth(1)?;
    let mut quoted = rest.split('`').skip(1).step_by(2);
    let written = quoted.next()?;
    quoted
        .map(|known| (strsim::damerau_levenshtein(written, known), known))
        .min()
        .filter(|(distance, known)| *distance <= known.len().max(4) / 2)
        .map(|(_, known)| known.to_owned())
}

#[cfg(test)]
mod tests {
    use super::nearest_key;

    #[test]
    fn the_nearest_known_key_is_suggested_and_only_a_near_one() {
        let message = "unknown field `lerning_rate`, expected one of `seed`, `learning_rate`, `loss_fn`";
        assert_eq!(nearest_key(message).as_deref(), Some("learning_rate"));
        assert_eq!(nearest_key("unknown field `zzzzzz`, expected `seed`"), None);
        assert_eq!(nearest_key("missing field `base_model`"), None);
    }
}
