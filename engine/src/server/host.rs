//! Checks that the `Host` of a request names this machine.
//!
//! Another site can resolve its own name to this machine ("DNS rebinding"). A browser on this machine that shows such a
//! page sends requests without a foreign `Origin`, but with that name as their `Host`.

use axum::http::HeaderMap;
use axum::http::header::HOST;
use std::net::{IpAddr, SocketAddr};

/// Whether the `Host` of a request is a loopback name or address, for servers that are bound to a loopback address. For
/// all others the server's names are not known, and every `Host` is accepted.
#[must_use]
pub fn names_this_machine(bound: SocketAddr, headers: &HeaderMap) -> bool {
    if !bound.ip().is_loopback() {
        return true;
    }
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name =
        host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    // A name may end in the dot of the root domain.
    let bare = name.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
    bare.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_name_that_resolves_to_this_machine_is_refused() {
        let asked = |bound: &str, host: &str| {
            let headers = HeaderMap::from_iter([(HOST, host.parse().unwrap())]);
            names_this_machine(bound.parse().unwrap(), &headers)
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
        assert!(!names_this_machine("127.0.0.1:8017".parse().unwrap(), &HeaderMap::new()));
    }
}
