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
use minds_http::{AccessError, AccessGuard};
use std::net::SocketAddr;
use std::sync::Arc;

const COOKIE_NAME: &str = "minds_token";

/// URL of the page for browsers on this machine.
pub(super) fn page_url(bound: SocketAddr) -> String {
    match bound.ip() {
        ip if ip.is_unspecified() => format!("http://127.0.0.1:{}/", bound.port()),
        _ => format!("http://{bound}/"),
    }
}

/// Tokens of a request: those of `Authorization` and those of the cookie.
fn tokens(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let text = |name| headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    let bearer = text(AUTHORIZATION).filter_map(|value| value.strip_prefix("Bearer "));
    let cookies = text(COOKIE).flat_map(|all| all.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let cookie = cookies.filter(|(name, _)| *name == COOKIE_NAME).map(|(_, value)| value);
    bearer.chain(cookie).map(str::as_bytes)
}

/// Passes an authorized request on; rejects any other with the reason.
pub(super) async fn require_access(
    State(guard): State<Arc<AccessGuard>>,
    request: Request,
    next: Next,
) -> Response {
    if let Err(error) = guard.check_host(request.headers()) {
        return refuse(error);
    }
    if request.uri().path() == "/"
        && let Some(token) = request.uri().query().and_then(|query| query.strip_prefix("token="))
        && guard.is_token(token.as_bytes())
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
    match guard.check_token(tokens(request.headers())) {
        Ok(()) => next.run(request).await,
        Err(error) => refuse(error),
    }
}

fn refuse(error: AccessError) -> Response {
    let why = match error {
        AccessError::ForeignHost | AccessError::WebPage => "ask for this machine by its own name\n",
        AccessError::MissingToken | AccessError::WrongToken => {
            "this address wants the token of `metrics.token_env`: open /?token=…, or send it as a bearer token\n"
        }
    };
    (error.status(), why).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_http::AccessToken;

    fn headers(pairs: &[(axum::http::HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_configured_token_is_required() {
        let bound = "0.0.0.0:9464".parse().unwrap();
        let guard = AccessGuard::new(bound, AccessToken::new("sesame"));
        for (given, fine) in [
            (vec![], false),
            (vec![(AUTHORIZATION, "Bearer sesame")], true),
            (vec![(AUTHORIZATION, "Bearer sesam")], false),
            (vec![(AUTHORIZATION, "sesame")], false),
            (vec![(COOKIE, "a=b; minds_token=sesame")], true),
            (vec![(COOKIE, "token=sesame")], false),
        ] {
            assert_eq!(guard.check_token(tokens(&headers(&given))).is_ok(), fine, "{given:?}");
        }
        assert_eq!(page_url(bound), "http://127.0.0.1:9464/");
    }
}
