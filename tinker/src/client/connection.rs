//! The connection to a server: requests with retries, results with polling.

use super::error::ClientError;
use super::limiter::ConcurrencyLimiter;
use super::metrics::operation;
use super::options::{ClientOptions, ClientTimeouts};
use super::outage::{OutageEvent, OutageTracker};
use super::retry::{Attempts, Jitter, NotFoundMeaning, ResponseOutcome, RetryContext, RetryReason, classify};
use super::transport::{HttpRequest, HttpResponse, HttpTransport};
use super::wire_format::{WireDetection, WireFormat};
use crate::types::{
    CancelFutureRequest, ClientConfig, ClientConfigRequest, DynamicConfig, FailureCategory, FutureAnswer,
    FutureHandle, PROTOBUF, RetrieveFutureRequest,
};
use bytes::Bytes;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

/// Version of the SDK whose wire format the client uses; servers adapt their responses to it.
pub(super) const SDK_VERSION: &str = "0.38.0";

/// Retries of a poll that fails with "the request is wrong", which some servers return transiently.
const WRONG_POLLS: u32 = 4;

/// Characters of an unreadable answer in its error.
const SHOWN: usize = 60;

/// Retries of a poll that fails with "the result is gone".
const GONE_POLLS: u32 = 3;

/// Connection to one server, with its retry state.
pub(super) struct Connection {
    pub(super) transport: HttpTransport,
    pub(super) timeouts: ClientTimeouts,
    /// Whether the server has answered the first request.
    connected: bool,
    pub(super) jitter: Jitter,
    outage: OutageTracker,
    pub(super) config: ClientConfig,
    pub(super) wire: WireDetection,
    pub(super) sample_limiter: ConcurrencyLimiter,
    pub(super) runtime: Handle,
    cancels: bool,
    /// Set when the server reports that the session has ended.
    pub(super) ended: AtomicBool,
}

/// Makes a request that was sent before. Of a pass it is encoded again: its body is large, and seldom needed.
pub(super) type RequestAgain = Box<dyn Fn(&Connection) -> Result<HttpRequest, ClientError> + Send + Sync>;

/// A request that the server has accepted.
pub(super) struct SubmittedRequest {
    /// Name of the result on the server.
    pub(super) request_id: String,
    /// Makes the request again, if the server forgets its result.
    pub(super) again: RequestAgain,
    /// Whether it may have been accepted more than once: the response to an earlier attempt was lost.
    pub(super) maybe_executed: bool,
}

/// A result as it was received.
pub(super) enum ResultPayload {
    Json(serde_json::Value),
    Protobuf(Bytes),
}

/// Why there is no result.
pub(super) enum ResultError {
    /// The server has forgotten it.
    Gone(String),
    /// Any other error of the request.
    Error(ClientError),
}

impl From<ClientError> for ResultError {
    fn from(error: ClientError) -> Self {
        Self::Error(error)
    }
}

impl Connection {
    /// Requests the client configuration from the server. A server without that endpoint is an old one.
    pub(super) async fn open(options: &ClientOptions) -> Result<Self, ClientError> {
        let transport = HttpTransport::new(options)?;
        let jitter = Jitter::new(ChaCha8Rng::seed_from_u64(options.seed));
        let mut connection = Self {
            transport,
            timeouts: options.timeouts,
            connected: false,
            jitter,
            outage: OutageTracker::default(),
            config: ClientConfig::default(),
            wire: WireDetection::guess(WireFormat::Protobuf),
            sample_limiter: ConcurrencyLimiter::new(1),
            runtime: Handle::current(),
            cancels: false,
            ended: AtomicBool::new(false),
        };
        let ask = ClientConfigRequest { sdk_version: SDK_VERSION.into() };
        match connection
            .post::<ClientConfig>(
                "the client configuration",
                "client/config",
                &ask,
                NotFoundMeaning::Rejected,
            )
            .await
        {
            Ok(config) => connection.config = config,
            Err(ClientError::Unsupported { .. } | ClientError::Rejected { .. }) => {
                connection.wire = WireDetection::guess(WireFormat::Json);
            }
            Err(error) => return Err(error),
        }
        connection.connected = true;
        let allowed = connection.config.sample_max_concurrent_requests;
        let most = options.max_sample_requests.map_or(allowed, |most| allowed.min(most.get()));
        connection.sample_limiter = ConcurrencyLimiter::new(most);
        if connection.config.pjwt_auth_enabled {
            if connection.config.credential_default_source == "credential_cmd" {
                connection.transport.prefer_command()?;
            }
            connection.exchange_key().await?;
        }
        let body = encode(&ask);
        let call = HttpRequest::post("client/dynamic_config", body, options.timeouts.request);
        // The configuration has a default, so a failure is harmless.
        if let Ok(reply) = connection.transport.send(&call).await {
            let config: DynamicConfig = serde_json::from_slice(&reply.body).unwrap_or_default();
            connection.cancels = reply.status == 200 && config.sample_cancel_enabled;
        }
        Ok(connection)
    }

    async fn exchange_key(&self) -> Result<(), ClientError> {
        let what = "the exchange of the key for a token";
        let mut attempts = self.attempts(what, "auth/token", None);
        loop {
            let refusal = match self.transport.exchange_key().await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(refusal)) => Ok(refusal),
                Err(why) => Err(why),
            };
            match classify(&self.transport, what, NotFoundMeaning::Rejected, refusal) {
                ResponseOutcome::Retry(reason) => attempts.back_off(reason).await?,
                ResponseOutcome::Failed(error) => return Err(error),
                ResponseOutcome::Gone(why) => return Err(ClientError::rejected(what, why)),
                ResponseOutcome::Accepted(_) => return Ok(()),
            }
        }
    }

    /// Retry state of a request to a path; `limit` bounds the time until its result is ready.
    pub(super) fn attempts<'a>(&'a self, what: &'a str, path: &str, limit: Option<Duration>) -> Attempts<'a> {
        let context = RetryContext {
            timeouts: &self.timeouts,
            jitter: &self.jitter,
            metrics: &self.transport.metrics,
            outage: &self.outage,
            connected: self.connected,
        };
        Attempts::new(what, operation(path), context, limit)
    }

    /// Fails if the server has ended the session.
    pub(super) fn check_alive(&self, what: &str) -> Result<(), ClientError> {
        if self.ended.load(Ordering::Relaxed) {
            return Err(ClientError::lost(what, "the server has ended the session"));
        }
        Ok(())
    }

    /// Sends a JSON request with retries and parses the JSON response.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        body: &impl Serialize,
        not_found: NotFoundMeaning,
    ) -> Result<T, ClientError> {
        let call = HttpRequest::post(path, encode(body), self.timeouts.request);
        self.request_json(what, call, not_found).await
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, what: &str, path: &str) -> Result<T, ClientError> {
        self.request_json(
            what,
            HttpRequest::bare(Method::GET, path, self.timeouts.request),
            NotFoundMeaning::Rejected,
        )
        .await
    }

    pub(super) async fn request_json<T: DeserializeOwned>(
        &self,
        what: &str,
        call: HttpRequest,
        not_found: NotFoundMeaning,
    ) -> Result<T, ClientError> {
        let mut attempts = self.attempts(what, &call.path, None);
        self.request_with(what, &call, not_found, &mut attempts).await
    }

    async fn request_with<T: DeserializeOwned>(
        &self,
        what: &str,
        call: &HttpRequest,
        not_found: NotFoundMeaning,
        attempts: &mut Attempts<'_>,
    ) -> Result<T, ClientError> {
        let call = self.with_idempotency_key(call.clone());
        loop {
            let reason = match self.attempt(what, &call, not_found, attempts).await {
                ResponseOutcome::Accepted(reply) => match self.read(&reply) {
                    Ok(answer) => return Ok(answer),
                    Err(why) => RetryReason::Unreadable(why),
                },
                ResponseOutcome::Retry(reason) => reason,
                ResponseOutcome::Gone(why) => return Err(ClientError::lost(what, why)),
                ResponseOutcome::Failed(error) => return Err(error),
            };
            attempts.back_off(reason).await?;
        }
    }

    /// Sends a request whose response names its result.
    pub(super) async fn submit(
        &self,
        what: &str,
        call: HttpRequest,
        not_found: NotFoundMeaning,
    ) -> Result<SubmittedRequest, ClientError> {
        let mut attempts = self.attempts(what, &call.path, None);
        let promise: FutureHandle = self.request_with(what, &call, not_found, &mut attempts).await?;
        Ok(SubmittedRequest {
            request_id: promise.request_id,
            again: Box::new(move |_| Ok(call.clone())),
            maybe_executed: attempts.maybe_executed(),
        })
    }

    /// Parses a response in JSON.
    pub(super) fn read<T: DeserializeOwned>(&self, reply: &HttpResponse) -> Result<T, String> {
        serde_json::from_slice(&reply.body).map_err(|error| {
            // The error quotes the invalid input, so it may contain secrets, and so does the beginning of the answer.
            let text = self.transport.redact(&String::from_utf8_lossy(&reply.body));
            let start: String = text.chars().take(SHOWN).collect();
            let rest = if start.len() < text.len() { "…" } else { "" };
            let error = self.transport.redact(&error.to_string());
            format!("status {}, {start:?}{rest}: {error}", reply.status)
        })
    }

    /// Sends a request whose response body is irrelevant.
    pub(super) async fn request_empty(&self, what: &str, call: HttpRequest) -> Result<(), ClientError> {
        let mut attempts = self.attempts(what, &call.path, None);
        let call = self.with_idempotency_key(call);
        let not_found =
            if call.method == Method::DELETE { NotFoundMeaning::Deleted } else { NotFoundMeaning::Rejected };
        loop {
            match self.attempt(what, &call, not_found, &attempts).await {
                ResponseOutcome::Accepted(_) => return Ok(()),
                ResponseOutcome::Retry(reason) => attempts.back_off(reason).await?,
                // An earlier attempt, whose response was lost, has deleted it.
                ResponseOutcome::Gone(_)
                    if not_found == NotFoundMeaning::Deleted && attempts.maybe_executed() =>
                {
                    return Ok(());
                }
                ResponseOutcome::Gone(why) if not_found == NotFoundMeaning::Deleted => {
                    return Err(ClientError::rejected(what, why));
                }
                ResponseOutcome::Gone(why) => return Err(ClientError::lost(what, why)),
                ResponseOutcome::Failed(error) => return Err(error),
            }
        }
    }

    /// Sends one attempt, without retries.
    pub(super) async fn attempt(
        &self,
        what: &str,
        call: &HttpRequest,
        not_found: NotFoundMeaning,
        attempts: &Attempts<'_>,
    ) -> ResponseOutcome {
        let call = HttpRequest { timeout: attempts.timeout(call.timeout), ..call.clone() };
        classify(&self.transport, what, not_found, self.send(&call).await)
    }

    async fn send(&self, call: &HttpRequest) -> Result<HttpResponse, String> {
        let asked = Instant::now();
        let reply = self.transport.send(call).await;
        // An overloaded server delays requests like an unreachable one.
        let answered = reply.as_ref().is_ok_and(|reply| reply.status < 500 && reply.status != 429);
        match self.outage.record(operation(&call.path), asked, answered) {
            None => {}
            Some(OutageEvent::Ongoing(since)) => {
                let why = match &reply {
                    Ok(reply) => format!("status {}", reply.status),
                    Err(why) => self.transport.redact(why),
                };
                tracing::warn!(since_s = since.as_secs(), why, "paused: the service does not answer");
            }
            Some(OutageEvent::Over(after)) => {
                tracing::warn!(after_s = after.as_secs(), "the service is back: continuing")
            }
        }
        reply
    }

    /// Adds an idempotency key that stays the same over all attempts.
    pub(super) fn with_idempotency_key(&self, call: HttpRequest) -> HttpRequest {
        match call.method {
            Method::GET => call,
            _ => {
                let key = self.jitter.idempotency_key();
                match reqwest::header::HeaderValue::from_str(&key) {
                    Ok(key) => call.header("x-idempotency-key", key),
                    Err(_) => call,
                }
            }
        }
    }

    /// Waits for a result. If `read` cannot parse it, requests it again: it may be damaged in transit.
    pub(super) async fn retrieve<T>(
        &self,
        what: &str,
        kind: &'static str,
        request_id: &str,
        limit: Duration,
        read: impl Fn(ResultPayload) -> Result<T, String>,
    ) -> Result<T, ResultError> {
        let mut attempts = self.attempts(what, "retrieve_future", Some(limit));
        let mut iteration = 0u64;
        let mut wrong = 0;
        let mut gone = 0;
        let mut metadata = true;
        loop {
            let asked = Instant::now();
            let ask = RetrieveFutureRequest { request_id: request_id.into(), allow_metadata_only: metadata };
            let timeout = attempts.timeout(self.timeouts.poll);
            let mut call = HttpRequest::post("retrieve_future", encode(&ask), timeout)
                .header("x-tinker-request-type", reqwest::header::HeaderValue::from_static(kind))
                .header("x-tinker-request-iteration", reqwest::header::HeaderValue::from(iteration));
            call.large = true;
            iteration += 1;
            // Newer servers send these as protobuf; older ones ignore the `accept` header.
            if matches!(kind, "Sample" | "Forward" | "ForwardBackward")
                && self.wire.now() == WireFormat::Protobuf
            {
                call.accept = PROTOBUF;
            }
            let reply = self.send(&call).await;
            if let Ok(reply) = &reply
                && reply.status == 408
            {
                self.pause_between_polls(&mut attempts, asked).await?;
                continue;
            }
            match classify(&self.transport, what, NotFoundMeaning::Forgotten, reply) {
                ResponseOutcome::Accepted(reply) if reply.protobuf => {
                    self.wire.prefer(WireFormat::Protobuf);
                    match read(ResultPayload::Protobuf(reply.body)) {
                        Ok(result) => return Ok(result),
                        Err(why) => attempts.back_off(self.unreadable(&why)).await?,
                    }
                }
                ResponseOutcome::Accepted(reply) => match FutureAnswer::parse(&reply.body) {
                    Ok(FutureAnswer::Done(value)) => {
                        if call.accept == PROTOBUF {
                            self.wire.prefer(WireFormat::Json);
                        }
                        match read(ResultPayload::Json(value)) {
                            Ok(result) => return Ok(result),
                            Err(why) => attempts.back_off(self.unreadable(&why)).await?,
                        }
                    }
                    Ok(FutureAnswer::Pending(_)) => self.pause_between_polls(&mut attempts, asked).await?,
                    Ok(FutureAnswer::Metadata(_)) if metadata => metadata = false,
                    Ok(FutureAnswer::Metadata(_)) => {
                        let why = "it is announced and not given".to_owned();
                        attempts.back_off(RetryReason::Unreadable(why)).await?;
                    }
                    Ok(FutureAnswer::Failed(failed)) => {
                        let what = what.to_owned();
                        let detail = self.transport.redact(&failed.error);
                        return Err(ResultError::Error(match failed.category {
                            FailureCategory::User => ClientError::Rejected { what, detail },
                            FailureCategory::Server | FailureCategory::Unknown => {
                                ClientError::Failed { what, detail }
                            }
                        }));
                    }
                    Err(e) => attempts.back_off(self.unreadable(&e.to_string())).await?,
                },
                ResponseOutcome::Retry(RetryReason::Conflict(why)) => {
                    attempts.back_off(RetryReason::failed(None, why)).await?
                }
                ResponseOutcome::Retry(reason) => attempts.back_off(reason).await?,
                ResponseOutcome::Gone(why) => {
                    gone += 1;
                    if gone >= GONE_POLLS {
                        return Err(ResultError::Gone(why));
                    }
                    attempts.back_off(RetryReason::failed(None, why)).await?;
                }
                ResponseOutcome::Failed(ClientError::Rejected { detail, .. }) => {
                    wrong += 1;
                    if wrong >= WRONG_POLLS {
                        return Err(ResultError::Error(ClientError::rejected(what, detail)));
                    }
                    sleep(self.timeouts.poll_interval).await;
                }
                // The server accepted the request, so only its result is unavailable.
                ResponseOutcome::Failed(ClientError::Unsupported { detail, .. }) => {
                    return Err(ResultError::Error(ClientError::Unreadable { what: what.into(), detail }));
                }
                ResponseOutcome::Failed(error) => return Err(ResultError::Error(error)),
            }
        }
    }

    /// Waits for the result of a numbered request. If the server has forgotten it, sends the request once more under
    /// the same number: a server that knows the number does not execute it again, and returns the result if it still
    /// has it.
    pub(super) async fn result<T>(
        &self,
        what: &str,
        kind: &'static str,
        submitted: &SubmittedRequest,
        limit: Duration,
        read: impl Fn(ResultPayload) -> Result<T, String>,
    ) -> Result<T, ResultError> {
        let why = match self.retrieve(what, kind, &submitted.request_id, limit, &read).await {
            Err(ResultError::Gone(why)) => why,
            result => return result,
        };
        let resubmitted = match (submitted.again)(self) {
            Ok(call) => self.submit(what, call, NotFoundMeaning::Lost).await,
            Err(error) => Err(error),
        };
        match resubmitted {
            Ok(resubmitted) if resubmitted.request_id != submitted.request_id => {
                tracing::warn!(what, why, "the server has forgotten a result, and has another name for it");
                self.retrieve(what, kind, &resubmitted.request_id, limit, read).await
            }
            Ok(_) => Err(ResultError::Gone(why)),
            Err(error @ ClientError::Unreachable { .. }) => Err(ResultError::Error(error)),
            Err(error) => Err(ResultError::Gone(format!("{why}; asked again: {error}"))),
        }
    }

    fn unreadable(&self, why: &str) -> RetryReason {
        RetryReason::Unreadable(self.transport.redact(why))
    }

    /// Pauses before the next poll if the server responded at once without a result.
    async fn pause_between_polls(
        &self,
        attempts: &mut Attempts<'_>,
        asked: Instant,
    ) -> Result<(), ClientError> {
        attempts.progressed();
        if attempts.left().is_zero() {
            return Err(attempts.give_up("the result is not there yet".into()));
        }
        let rest = self.timeouts.poll_interval.saturating_sub(asked.elapsed());
        sleep(rest.min(attempts.left())).await;
        Ok(())
    }

    /// Cancels a sample, if the server supports cancellation.
    pub(super) async fn cancel(&self, request_id: String) {
        if !self.cancels {
            return;
        }
        let body = encode(&CancelFutureRequest { request_id });
        let call = HttpRequest::post("cancel_future", body, self.timeouts.request);
        if let Err(why) = self.transport.send(&call).await {
            tracing::debug!(why, "a sample was not cancelled");
        }
    }
}

pub(super) fn encode(body: &impl Serialize) -> Bytes {
    serde_json::to_vec(body).expect("requests have no keys but strings").into()
}
