//! One request, one answer. What the answer means is decided in [`super::retry`].

use super::credential::Credential;
use super::error::ClientError;
use super::metrics::ClientMetrics;
use super::options::ClientOptions;
use super::secret::Secret;
use crate::types::{API_KEY_HEADER, AuthTokenResponse, JSON, PREFIX, PROTOBUF};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use reqwest::header::{
    ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use reqwest::{Method, Url, redirect};
use serde::Deserialize;
use std::error::Error as _;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::Instant;

/// An HTTP request to the server.
#[derive(Clone)]
pub(super) struct HttpRequest {
    pub(super) method: Method,
    /// Path relative to `/api/v1/`.
    pub(super) path: String,
    pub(super) body: Option<Bytes>,
    pub(super) content_type: &'static str,
    pub(super) zstd: bool,
    pub(super) accept: &'static str,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) timeout: Duration,
    /// Whether the answer is a result, which may be large.
    pub(super) large: bool,
}

impl HttpRequest {
    pub(super) fn post(path: impl Into<String>, body: Bytes, timeout: Duration) -> Self {
        Self {
            method: Method::POST,
            path: path.into(),
            body: Some(body),
            content_type: JSON,
            zstd: false,
            accept: JSON,
            headers: vec![],
            timeout,
            large: false,
        }
    }

    pub(super) fn bare(method: Method, path: impl Into<String>, timeout: Duration) -> Self {
        Self { method, body: None, ..Self::post(path, Bytes::new(), timeout) }
    }

    pub(super) fn header(mut self, name: &'static str, value: impl Into<HeaderValue>) -> Self {
        self.headers.push((HeaderName::from_static(name), value.into()));
        self
    }
}

/// An answer, whatever its status.
pub(super) struct HttpResponse {
    pub(super) status: u16,
    pub(super) protobuf: bool,
    pub(super) body: Bytes,
    pub(super) retry_after: Option<Duration>,
    pub(super) should_retry: Option<bool>,
    /// The limit that the body went beyond; what is there of it is its beginning.
    pub(super) too_large: Option<usize>,
    invalid_token: bool,
    /// Whether the request was not sent for lack of a key; the body says why.
    pub(super) no_key: bool,
}

impl HttpResponse {
    /// Stands for the response to a request that was not sent for lack of a key.
    fn no_key(problem: &str) -> Self {
        Self {
            status: 401,
            protobuf: false,
            body: problem.to_owned().into(),
            retry_after: None,
            should_retry: None,
            too_large: None,
            invalid_token: false,
            no_key: true,
        }
    }
}

/// Most bytes of an answer that are reserved because its head announces them; a longer one grows.
const MOST_RESERVED: usize = 4 << 20;

/// Requests in a row without an answer after which the server counts as away.
const UNREACHABLE_AFTER: u32 = 3;

/// The connection, its address and the key.
pub(super) struct HttpTransport {
    http: reqwest::Client,
    base: Url,
    credential: Credential,
    max_result_bytes: usize,
    max_answer_bytes: usize,
    token: Mutex<Option<BearerToken>>,
    /// Requests in a row that had no answer.
    unanswered: AtomicU32,
    pub(super) metrics: ClientMetrics,
}

/// The token that the key was traded for.
enum TokenState {
    /// The server wants the key itself.
    None,
    Valid(Secret),
    /// It is to be renewed before the next request.
    Due,
}

struct BearerToken {
    jwt: Secret,
    renew_at: Instant,
}

impl HttpTransport {
    pub(super) fn new(options: &ClientOptions) -> Result<Self, ClientError> {
        let mut base = address(&options.base_url)?;
        let loopback = base.host_str().is_some_and(is_loopback);
        if base.scheme() == "http" && !loopback && !options.allow_insecure {
            return Err(ClientError::Options(
                "the server's address begins with http://, so that everybody on the way could read the key: use \
                 https://, or `allow_insecure` if the way is safe"
                    .into(),
            ));
        }
        let path = format!("{}{PREFIX}/", base.path().trim_end_matches('/'));
        base.set_path(&path);
        let timeouts = &options.timeouts;
        // An error means that the process has chosen one already.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("minds-actors/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(timeouts.connect)
            // The key travels in a header that redirects to other servers would take along.
            .redirect(redirect::Policy::custom(|attempt| {
                let same =
                    attempt.previous().last().is_some_and(|from| from.origin() == attempt.url().origin());
                if same && attempt.previous().len() < 5 { attempt.follow() } else { attempt.stop() }
            }));
        if loopback {
            builder = builder.no_proxy();
        }
        let http = builder
            .build()
            .map_err(|e| ClientError::Options(format!("no client: {}", describe_error(&e))))?;
        if options.api_key.as_ref().is_some_and(|key| HeaderValue::from_str(key.expose()).is_err()) {
            return Err(ClientError::Options("the key has characters that no key has".into()));
        }
        let credential =
            Credential::new(options.api_key.clone(), options.credential_command.clone(), timeouts.backoff);
        let ClientOptions { max_result_bytes, max_answer_bytes, .. } = *options;
        options.metrics.begin();
        Ok(Self {
            http,
            base,
            credential,
            max_result_bytes,
            max_answer_bytes,
            token: Mutex::new(None),
            unanswered: AtomicU32::new(0),
            metrics: options.metrics.clone(),
        })
    }

    /// The server, for messages.
    pub(super) fn server(&self) -> String {
        self.base.as_str().trim_end_matches('/').trim_end_matches(PREFIX).to_owned()
    }

    /// Text from outside, without the key in it and not longer than a message should be.
    pub(super) fn redact(&self, text: &str) -> String {
        let text = self.credential.scrub(text);
        let token = self.token.lock();
        let text = token.as_ref().map_or(text.clone(), |token| token.jwt.scrub(&text));
        let mut short: String = text.chars().take(500).collect();
        if short.len() < text.len() {
            short.push('…');
        }
        short
    }

    /// Sends a request; a token that ran out is renewed on the way. If it is not, the answer is the one that says why.
    pub(super) async fn send(&self, call: &HttpRequest) -> Result<HttpResponse, String> {
        let sent = self.try_send(call).await;
        self.log_reachability(&sent);
        sent
    }

    /// Says once that the server cannot be reached, and once that it can again: requests ask again in silence.
    fn log_reachability(&self, sent: &Result<HttpResponse, String>) {
        match sent {
            Ok(_) if self.unanswered.swap(0, Relaxed) >= UNREACHABLE_AFTER => {
                tracing::warn!(server = self.server(), "the server answers again");
            }
            Err(why) if self.unanswered.fetch_add(1, Relaxed) + 1 == UNREACHABLE_AFTER => {
                tracing::warn!(server = self.server(), why, "the server does not answer, retrying");
            }
            _ => {}
        }
    }

    async fn try_send(&self, call: &HttpRequest) -> Result<HttpResponse, String> {
        match self.token() {
            TokenState::None => self.send_with_key(call).await,
            TokenState::Valid(token) => self.send_with_token(call, token).await,
            TokenState::Due => match self.exchange_key().await? {
                Ok(token) => self.exchange(call, Some(token)).await,
                Err(refusal) => Ok(refusal),
            },
        }
    }

    /// Sends a request with the key; one that a command printed is renewed when it is refused.
    async fn send_with_key(&self, call: &HttpRequest) -> Result<HttpResponse, String> {
        let key = match self.credential.current().await {
            Ok(key) => key,
            Err(problem) => return Ok(HttpResponse::no_key(&problem)),
        };
        let reply = self.exchange(call, key.clone()).await?;
        if reply.status != 401 {
            return Ok(reply);
        }
        match self.credential.after(key.as_ref()).await {
            Ok(Some(other)) => self.exchange(call, Some(other)).await,
            Ok(None) => Ok(reply),
            Err(problem) => Ok(HttpResponse::no_key(&problem)),
        }
    }

    async fn send_with_token(&self, call: &HttpRequest, token: Secret) -> Result<HttpResponse, String> {
        let reply = self.exchange(call, Some(token)).await?;
        if !(reply.status == 401 && reply.invalid_token) {
            return Ok(reply);
        }
        match self.exchange_key().await? {
            Ok(token) => self.exchange(call, Some(token)).await,
            Err(refusal) => Ok(refusal),
        }
    }

    /// Has the command used in the place of a given key.
    ///
    /// # Errors
    /// There is no command.
    pub(super) fn prefer_command(&mut self) -> Result<(), ClientError> {
        self.credential.prefer_command().map_err(ClientError::Options)
    }

    /// Trades the key for a token, which the server asked for. The inner error is the refusal.
    pub(super) async fn exchange_key(&self) -> Result<Result<Secret, HttpResponse>, String> {
        let call = HttpRequest::post("auth/token", Bytes::from_static(b"{}"), Duration::from_secs(60));
        let key = match self.credential.fresh().await {
            Ok(key) => key,
            Err(problem) => return Ok(Err(HttpResponse::no_key(&problem))),
        };
        let reply = self.exchange(&call, key).await?;
        if !(200..300).contains(&reply.status) {
            return Ok(Err(reply));
        }
        let token: AuthTokenResponse = serde_json::from_slice(&reply.body)
            .map_err(|_| "the answer to the exchange of the key holds no token".to_owned())?;
        let renew_at = Instant::now() + lifetime(&token.jwt) / 2;
        let jwt = Secret::new(token.jwt);
        *self.token.lock() = Some(BearerToken { jwt: jwt.clone(), renew_at });
        Ok(Ok(jwt))
    }

    fn token(&self) -> TokenState {
        match &*self.token.lock() {
            None => TokenState::None,
            Some(token) if token.renew_at <= Instant::now() => TokenState::Due,
            Some(token) => TokenState::Valid(token.jwt.clone()),
        }
    }

    async fn exchange(&self, call: &HttpRequest, key: Option<Secret>) -> Result<HttpResponse, String> {
        let asked = Instant::now();
        let reply = self.exchanged(call, key).await;
        let status = reply.as_ref().ok().map(|reply| reply.status);
        self.metrics.request(&call.path, status, asked.elapsed());
        reply
    }

    async fn exchanged(&self, call: &HttpRequest, key: Option<Secret>) -> Result<HttpResponse, String> {
        let url = self.base.join(&call.path).map_err(|e| format!("`{}` is not a path: {e}", call.path))?;
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(call.accept));
        if let Some(key) = key {
            let mut value = HeaderValue::from_str(key.expose())
                .map_err(|_| "the key is not a valid header value".to_owned())?;
            value.set_sensitive(true);
            headers.insert(HeaderName::from_static(API_KEY_HEADER), value);
        }
        headers.extend(call.headers.iter().cloned().map(|(name, value)| (Some(name), value)));
        let mut request = self.http.request(call.method.clone(), url).timeout(call.timeout);
        match &call.body {
            Some(body) => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(call.content_type));
                if call.zstd {
                    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("zstd"));
                }
                request = request.body(body.clone());
            }
            None if call.method == Method::GET => {}
            None => {
                headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
            }
        }
        let mut response = request.headers(headers).send().await.map_err(|e| describe_error(&e))?;
        let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let number = |name: &str| text(name).and_then(|text| text.trim().parse::<f64>().ok());
        let seconds = number("retry-after-ms").map(|ms| ms / 1e3).or_else(|| number(RETRY_AFTER.as_str()));
        let reply = HttpResponse {
            status: response.status().as_u16(),
            protobuf: text(CONTENT_TYPE.as_str()).is_some_and(|kind| kind.contains(PROTOBUF)),
            body: Bytes::new(),
            too_large: None,
            // Longer waits than a minute are not believed, as in the SDK.
            retry_after: seconds.filter(|s| *s > 0.0 && *s <= 60.0).map(Duration::from_secs_f64),
            should_retry: text("x-should-retry").and_then(|text| text.parse().ok()),
            invalid_token: text(WWW_AUTHENTICATE.as_str()).is_some_and(|t| t.contains("invalid_token")),
            no_key: false,
        };
        let most = if call.large { self.max_result_bytes } else { self.max_answer_bytes };
        // Unpacked piece by piece, so that a small answer that unpacks to a large one ends at the limit, too.
        let length = response.content_length().and_then(|length| usize::try_from(length).ok());
        let mut body = BytesMut::with_capacity(length.unwrap_or(0).min(most).min(MOST_RESERVED));
        while let Some(piece) = response.chunk().await.map_err(|e| describe_error(&e))? {
            if body.len() + piece.len() > most {
                return Ok(HttpResponse { body: body.freeze(), too_large: Some(most), ..reply });
            }
            body.extend_from_slice(&piece);
        }
        Ok(HttpResponse { body: body.freeze(), ..reply })
    }
}

/// Checks a server's address. What it holds is not repeated: it may hold a key.
///
/// # Errors
/// Anything but a plain address of a web server.
pub fn check_address(base_url: &str) -> Result<(), ClientError> {
    address(base_url).map(|_| ())
}

fn address(base_url: &str) -> Result<Url, ClientError> {
    let wrong = |problem: &str| ClientError::Options(format!("the server's address {problem}"));
    let begins = base_url.starts_with("https://") || base_url.starts_with("http://");
    let url = Url::parse(base_url).map_err(|e| wrong(&format!("cannot be read: {e}")))?;
    if !begins || !matches!(url.scheme(), "https" | "http") {
        return Err(wrong("must begin with https:// or http://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("contains a user name or a password: credentials belong in the API key"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("contains a `?` or a `#`: a key after it belongs in the API key"));
    }
    Ok(url)
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// An error with its causes, without the address.
fn describe_error(error: &reqwest::Error) -> String {
    let mut text = if error.is_timeout() { "no answer in time".to_owned() } else { String::new() };
    let mut cause = error.source();
    while let Some(error) = cause {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&error.to_string());
        cause = error.source();
    }
    if text.is_empty() { "the request failed".into() } else { text }
}

/// How long a token lives, from its own dates; a minute if it does not say.
fn lifetime(jwt: &str) -> Duration {
    #[derive(Deserialize)]
    struct Claims {
        exp: f64,
        iat: f64,
    }
    let claims =
        jwt.split('.').nth(1).and_then(|part| URL_SAFE_NO_PAD.decode(part.trim_end_matches('=')).ok());
    let claims = claims.and_then(|json| serde_json::from_slice::<Claims>(&json).ok());
    let seconds = claims.map_or(60.0, |claims| claims.exp - claims.iat);
    Duration::from_secs_f64(if seconds.is_finite() { seconds.clamp(1.0, 1e6) } else { 60.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str, allow_insecure: bool) -> Option<String> {
        let options = ClientOptions { allow_insecure, ..ClientOptions::new(url) };
        HttpTransport::new(&options).err().map(|e| e.to_string())
    }

    #[test]
    fn plain_http_goes_to_this_machine_only_unless_allowed() {
        for fine in
            ["https://tinker.example", "http://127.0.0.1:8000", "http://localhost/a/b/", "http://[::1]:1"]
        {
            assert_eq!(refused(fine, false), None, "{fine}");
        }
        for open in ["http://10.0.0.1", "http://localhost.example", "http://127.0.0.1.example"] {
            assert!(refused(open, false).unwrap().contains("allow_insecure"), "{open}");
            assert_eq!(refused(open, true), None);
        }
        for open in [
            "https://me:sesame@tinker.example",
            "http:///me:sesame@tinker.example",
            "http:\\\\/me:sesame@tinker.example",
            "https:me:sesame@tinker.example",
            "https://tinker.example?key=sesame",
            "https://tinker.example/#sesame",
            "https://me:sesame@tinker example",
            "https://me:sesame@",
        ] {
            assert!(refused(open, true).is_some_and(|e| !e.contains("sesame")), "{open}");
        }
        assert!(refused("ftp://tinker.example", true).is_some());
    }

    #[test]
    fn the_path_in_front_of_the_api_is_kept() {
        let transport = HttpTransport::new(&ClientOptions::new("https://h/services/prod/")).unwrap();
        assert_eq!(
            transport.base.join("asample").unwrap().as_str(),
            "https://h/services/prod/api/v1/asample"
        );
        assert_eq!(transport.server(), "https://h/services/prod");
        let raw = transport.base.join("samplers/s:sample:1").unwrap();
        assert_eq!(raw.as_str(), "https://h/services/prod/api/v1/samplers/s:sample:1");
    }

    /// The token of the SDK's own tests: {"iat": 1000, "exp": 4600}.
    #[test]
    fn a_token_states_its_lifetime() {
        assert_eq!(lifetime("e30.eyJpYXQiOiAxMDAwLCAiZXhwIjogNDYwMH0.x"), Duration::from_secs(3600));
        assert_eq!(lifetime("nonsense"), Duration::from_secs(60));
    }

    #[test]
    fn a_key_that_a_server_quotes_is_taken_out() {
        let key = Some(Secret::new("tml-sesame"));
        let transport =
            HttpTransport::new(&ClientOptions { api_key: key, ..ClientOptions::new("https://h") }).unwrap();
        assert_eq!(transport.redact("bad key tml-sesame!"), "bad key ***!");
        assert_eq!(format!("{:?}", Secret::new("tml-sesame")), "***");
    }
}
