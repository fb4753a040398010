//! Which requests a listener answers.
//!
//! Another site can resolve its own name to this machine ("DNS rebinding"). A browser on this machine that shows such a
//! page sends requests without a foreign `Origin`, but with that name as their `Host`.

use crate::token::AccessToken;
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use std::net::{IpAddr, SocketAddr};

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// Its `Host` does not name this machine.
    ForeignHost,
    /// A page in a browser sent it.
    WebPage,
    /// It has no token.
    MissingToken,
    /// Its token is wrong.
    WrongToken,
}

impl AccessError {
    /// Status of the refusal.
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::ForeignHost => StatusCode::MISDIRECTED_REQUEST,
            Self::WebPage => StatusCode::FORBIDDEN,
            Self::MissingToken | Self::WrongToken => StatusCode::UNAUTHORIZED,
        }
    }
}

/// Checks the requests of one listener. Which checks a server needs depends on what it offers.
#[derive(Clone, Debug)]
pub struct AccessGuard {
    bound: SocketAddr,
    token: Option<AccessToken>,
}

impl AccessGuard {
    /// A guard of the listener at `bound`; without a token, [`Self::check_token`] accepts every request.
    #[must_use]
    pub fn new(bound: SocketAddr, token: Option<AccessToken>) -> Self {
        Self { bound, token }
    }

    /// Address that the listener is bound to.
    #[must_use]
    pub fn bound(&self) -> SocketAddr {
        self.bound
    }

    /// Whether requests must carry a token.
    #[must_use]
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether there is a token and `given` is it.
    #[must_use]
    pub fn is_token(&self, given: &[u8]) -> bool {
        self.token.as_ref().is_some_and(|token| token.is(given))
    }

    /// Requires that one of the tokens in the request is the right one.
    ///
    /// # Errors
    /// [`AccessError::MissingToken`] and [`AccessError::WrongToken`].
    pub fn check_token<'a>(&self, given: impl IntoIterator<Item = &'a [u8]>) -> Result<(), AccessError> {
        if !self.has_token() {
            return Ok(());
        }
        let mut error = AccessError::MissingToken;
        for given in given.into_iter().filter(|given| !given.is_empty()) {
            if self.is_token(given) {
                return Ok(());
            }
            error = AccessError::WrongToken;
        }
        Err(error)
    }

    /// Requires that the `Host` is a loopback name or address, if the listener is bound to a loopback address. The
    /// names of other listeners are not known, and every `Host` is accepted.
    ///
    /// # Errors
    /// [`AccessError::ForeignHost`].
    pub fn check_host(&self, headers: &HeaderMap) -> Result<(), AccessError> {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        if !self.bound.ip().is_loopback() || host.is_some_and(is_loopback) {
            return Ok(());
        }
        Err(AccessError::ForeignHost)
    }

    /// Refuses requests that a page in a browser sends.
    ///
    /// # Errors
    /// [`AccessError::WebPage`].
    pub fn check_origin(&self, headers: &HeaderMap) -> Result<(), AccessError> {
        if headers.contains_key(ORIGIN) { Err(AccessError::WebPage) } else { Ok(()) }
    }
}

/// Whether the name in a `Host` header, which may have a port, is a loopback name or address.
fn is_loopback(host: &str) -> bool {
    let port = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
    let name = port.map_or(host, |(name, _)| name);
    // A name may end in the dot of the root domain.
    let bare = name.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
    bare.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(bound: &str, token: Option<&str>) -> AccessGuard {
        AccessGuard::new(bound.parse().unwrap(), token.and_then(AccessToken::new))
    }

    #[test]
    fn a_foreign_name_that_resolves_to_this_machine_is_refused() {
        let asked = |bound: &str, host: &str| {
            let headers = HeaderMap::from_iter([(HOST, host.parse().unwrap())]);
            guard(bound, None).check_host(&headers).is_ok()
        };
        for (host, fine) in [
            ("127.0.0.1:8017", true),
            ("127.1.2.3", true),
            ("localhost:8017", true),
            ("LocalHost", true),
            ("localhost.:8017", true),
            ("[::1]:8017", true),
            ("evil.example:8017", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example", false),
            ("10.0.0.1:8017", false),
            ("", false),
        ] {
            assert_eq!(asked("127.0.0.1:8017", host), fine, "{host}");
            assert_eq!(asked("[::1]:8017", host), fine, "{host}");
        }
        assert!(asked("0.0.0.0:8017", "trainer.example:8017"), "others may ask, by whatever name");
        let without = guard("127.0.0.1:8017", None).check_host(&HeaderMap::new());
        assert_eq!(without, Err(AccessError::ForeignHost));
    }

    #[test]
    fn a_page_of_a_browser_is_recognized_by_its_origin() {
        let guard = guard("127.0.0.1:8017", None);
        let page = HeaderMap::from_iter([(ORIGIN, "http://evil.example".parse().unwrap())]);
        assert_eq!(guard.check_origin(&page), Err(AccessError::WebPage));
        assert_eq!(guard.check_origin(&HeaderMap::new()), Ok(()));
    }

    #[test]
    fn a_token_is_required_where_one_is_set() {
        let open = guard("127.0.0.1:8017", None);
        assert_eq!(open.check_token([]), Ok(()));
        assert!(!open.is_token(b""), "no token is not the empty token");
        let closed = guard("0.0.0.0:8017", Some("sesame"));
        for (given, checked) in [
            (&[][..], Err(AccessError::MissingToken)),
            (&[&b""[..]], Err(AccessError::MissingToken)),
            (&[b"sesam"], Err(AccessError::WrongToken)),
            (&[b"sesam", b"sesame"], Ok(())),
        ] {
            assert_eq!(closed.check_token(given.iter().copied()), checked, "{given:?}");
        }
    }
}
