//! Access control: checks the host of every request, and the token where one is set.
//!
//! A foreign site must not read the run through a DNS name that it points at this machine, so requests have to name the
//! address that the dashboard listens on. The token is sent as `Authorization: Bearer …`, or once as `/?token=…`, which
//! sets a cookie.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, COOKIE, LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use minds_engine::server::names_this_machine;
use minds_tinker::client::Secret;
use std::net::SocketAddr;
use std::sync::Arc;
use subtle::ConstantTimeEq as _;

const COOKIE_NAME: &str = "minds_token";

/// Checks the host and the token of requests.
#[derive(Clone)]
pub(super) struct AccessGuard {
    addr: SocketAddr,
    token: Option<Secret>,
}

impl AccessGuard {
    pub(super) fn new(addr: SocketAddr, token: Option<Secret>) -> Self {
        Self { addr, token }
    }

    /// URL of the page for browsers on this machine.
    pub(super) fn url(&self) -> String {
        match self.addr.ip() {
            ip if ip.is_unspecified() => format!("http://127.0.0.1:{}/", self.addr.port()),
            _ => format!("http://{}/", self.addr),
        }
    }

    fn is_token(&self, given: &str) -> bool {
        self.token.as_ref().is_some_and(|token| token.expose().as_bytes().ct_eq(given.as_bytes()).into())
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        if self.token.is_none() {
            return true;
        }
        let text = |name| headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        let bearer = text(AUTHORIZATION).filter_map(|value| value.strip_prefix("Bearer "));
        let cookies =
            text(COOKIE).flat_map(|all| all.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let cookie = cookies.filter(|(name, _)| *name == COOKIE_NAME).map(|(_, value)| value);
        bearer.chain(cookie).any(|given| self.is_token(given))
    }
}

/// Passes an authorized request on; rejects any other with the reason.
pub(super) async fn require_access(
    State(guard): State<Arc<AccessGuard>>,
    request: Request,
    next: Next,
) -> Response {
    if !names_this_machine(guard.addr, request.headers()) {
        return (StatusCode::MISDIRECTED_REQUEST, "use this machine's own name in the address\n")
            .into_response();
    }
    if request.uri().path() == "/"
        && let Some(token) = request.uri().query().and_then(|query| query.strip_prefix("token="))
        && guard.is_token(token)
    {
        let cookie = format!("{COOKIE_NAME}={token}; HttpOnly; SameSite=Strict; Path=/");
        return match Response::builder()
            .status(StatusCode::SEE_OTHER)
            .header(LOCATION, "/")
            .header(SET_COOKIE, cookie)
            .body(Body::empty())
        {
            Ok(response) => response,
            Err(_) => StatusCode::BAD_REQUEST.into_response(),
        };
    }
    if !guard.admits(request.headers()) {
        let how = "this address wants the token of `metrics.token_env`: open /?token=…, or send it as a bearer token\n";
        return (StatusCode::UNAUTHORIZED, how).into_response();
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(axum::http::HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_configured_token_is_required() {
        let guard = AccessGuard::new("0.0.0.0:9464".parse().unwrap(), Some(Secret::new("sesame")));
        for (given, fine) in [
            (vec![], false),
            (vec![(AUTHORIZATION, "Bearer sesame")], true),
            (vec![(AUTHORIZATION, "Bearer sesam")], false),
            (vec![(AUTHORIZATION, "sesame")], false),
            (vec![(COOKIE, "a=b; minds_token=sesame")], true),
            (vec![(COOKIE, "token=sesame")], false),
        ] {
            assert_eq!(guard.admits(&headers(&given)), fine, "{given:?}");
        }
        assert_eq!(guard.url(), "http://127.0.0.1:9464/");
    }
}
