//! A key that cannot be printed.

use std::fmt;

/// A key or token. It has no `Display`, its `Debug` is `***`, and [`Secret::scrub`] takes it out of foreign texts.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a key or token.
    #[must_use]
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// The key itself, to be sent or compared.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Replaces the key where a server quotes it.
    pub(super) fn scrub(&self, text: &str) -> String {
        // A key of a few letters would tear words apart and protect nothing.
        if self.0.len() < 6 { text.into() } else { text.replace(&self.0, "***") }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
