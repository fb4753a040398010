//! Tokens: compared in constant time and never printed.

use sha2::{Digest as _, Sha256};
use std::fmt;
use subtle::ConstantTimeEq as _;

/// What a client must present; only its SHA-256 digest is kept.
#[derive(Clone)]
pub struct AccessToken {
    digest: [u8; 32],
}

impl AccessToken {
    /// Digests a token; `None` if it is empty.
    #[must_use]
    pub fn new(token: &str) -> Option<Self> {
        (!token.is_empty()).then(|| Self { digest: digest(token.as_bytes()) })
    }

    /// Whether `given` is the token. The time that this takes does not reveal the token or its length.
    #[must_use]
    pub fn is(&self, given: &[u8]) -> bool {
        self.digest.ct_eq(&digest(given)).into()
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_matches_and_it_is_not_printed() {
        let token = AccessToken::new("tml-secret").unwrap();
        assert!(token.is(b"tml-secret"));
        for other in [&b""[..], b"tml-secre", b"tml-secret ", b"TML-secret", &[0xff]] {
            assert!(!token.is(other), "{other:?}");
        }
        assert_eq!(format!("{token:?}"), "***");
        assert!(AccessToken::new("").is_none());
    }
}
