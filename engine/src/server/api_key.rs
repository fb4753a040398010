//! API key of the server: compared in constant time and never printed.

use sha2::{Digest as _, Sha256};
use std::fmt;
use subtle::ConstantTimeEq as _;

/// An API key; only its SHA-256 digest is kept.
#[derive(Clone)]
pub struct ApiKey {
    digest: [u8; 32],
}

impl ApiKey {
    /// Digests a key; `None` if it is empty.
    #[must_use]
    pub fn new(key: &str) -> Option<Self> {
        (!key.is_empty()).then(|| Self { digest: digest(key.as_bytes()) })
    }

    /// Whether `given` is the key. The time that this takes does not reveal the key or its length.
    #[must_use]
    pub fn is(&self, given: &[u8]) -> bool {
        self.digest.ct_eq(&digest(given)).into()
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_key_matches_and_it_is_never_printed() {
        let key = ApiKey::new("tml-secret").unwrap();
        assert!(key.is(b"tml-secret"));
        for other in [&b""[..], b"tml-secre", b"tml-secret ", b"TML-secret", &[0xff]] {
            assert!(!key.is(other), "{other:?}");
        }
        assert_eq!(format!("{key:?}"), "***");
        assert!(ApiKey::new("").is_none());
    }
}
