//! A server that answers in the end: requests with retries, results with polling.

use super::error::ClientError;
use super::http::{Call, Reply, Transport};
use super::limit::Limiter;
use super::meters::operation;
use super::options::{ClientOptions, Patience};
use super::outage::{Outage, Turn};
use super::retry::{Absent, Again, Attempts, Common, Jitter, Verdict, judge};
use super::wire::{Wire, WireChoice};
use crate::types::{
    CancelFutureRequest, ClientConfig, ClientConfigRequest, DynamicConfig, FailureCategory, FutureAnswer,
    PROTOBUF, Promise, RetrieveFutureRequest,
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

/// The SDK whose wire is spoken; servers choose their answers by it.
pub(super) const SDK_VERSION: &str = "0.38.0";

/// How often "the request is wrong" is asked again of a poll: some servers say so in passing.
const WRONG_POLLS: u32 = 4;

/// How often "the result is gone" is asked again of a poll before it is believed.
const GONE_POLLS: u32 = 3;

/// One server.
pub(super) struct Connection {
    pub(super) transport: Transport,
    pub(super) patience: Patience,
    pub(super) jitter: Jitter,
    outage: Outage,
    pub(super) config: ClientConfig,
    pub(super) wire: WireChoice,
    pub(super) samples: Limiter,
    pub(super) runtime: Handle,
    cancels: bool,
    /// Set when the server says that the session is over.
    pub(super) ended: AtomicBool,
}

/// A request that the server has taken in.
pub(super) struct Taken {
    /// The name of its result.
    pub(super) request_id: String,
    /// The request, for when the server forgets its result.
    pub(super) call: Call,
    /// Whether it may have been taken in more than once: the answer to an earlier attempt was lost.
    pub(super) unsure: bool,
}

/// A result as it came.
pub(super) enum Payload {
    Json(serde_json::Value),
    Protobuf(Bytes),
}

/// Why there is no result.
pub(super) enum NoResult {
    /// The server has forgotten it.
    Gone(String),
    /// Anything else.
    Error(ClientError),
}

impl From<ClientError> for NoResult {
    fn from(error: ClientError) -> Self {
        Self::Error(error)
    }
}

impl Connection {
    /// Asks the server how it wants to be spoken to. One that does not know the question is an old one.
    pub(super) async fn open(options: &ClientOptions) -> Result<Self, ClientError> {
        let transport = Transport::new(options)?;
        let jitter = Jitter::new(ChaCha8Rng::seed_from_u64(options.seed));
        let mut connection = Self {
            transport,
            patience: Patience { submit: options.patience.hello, ..options.patience },
            jitter,
            outage: Outage::default(),
            config: ClientConfig::default(),
            wire: WireChoice::guess(Wire::Protobuf),
            samples: Limiter::new(1),
            runtime: Handle::current(),
            cancels: false,
            ended: AtomicBool::new(false),
        };
        let ask = ClientConfigRequest { sdk_version: SDK_VERSION.into() };
        match connection
            .post::<ClientConfig>("the client's config", "client/config", &ask, Absent::Rejected)
            .await
        {
            Ok(config) => connection.config = config,
            Err(ClientError::Unsupported { .. } | ClientError::Rejected { .. }) => {
                connection.wire = WireChoice::guess(Wire::Json);
            }
            Err(error) => return Err(error),
        }
        connection.patience = options.patience;
        let most = connection.config.sample_max_concurrent_requests.min(options.max_samples_in_flight);
        connection.samples = Limiter::new(most);
        if connection.config.pjwt_auth_enabled {
            connection.exchange_key().await?;
        }
        let body = encode(&ask);
        let call = Call::post("client/dynamic_config", body, options.patience.request);
        // It has a default, so one failure decides nothing.
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
                Ok(None) => return Ok(()),
                Ok(Some(refusal)) => Ok(refusal),
                Err(why) => Err(why),
            };
            match judge(&self.transport, what, Absent::Rejected, refusal) {
                Verdict::Again(again) => attempts.again(again).await?,
                Verdict::No(error) => return Err(error),
                Verdict::Gone(why) => return Err(ClientError::rejected(what, why)),
                Verdict::Good(_) => return Ok(()),
            }
        }
    }

    /// A request to a path; `limit` bounds the time until its result is there.
    pub(super) fn attempts<'a>(&'a self, what: &'a str, path: &str, limit: Option<Duration>) -> Attempts<'a> {
        let billing = self.config.billing_exception_max_pause_duration_sec;
        let common = Common {
            patience: &self.patience,
            jitter: &self.jitter,
            meters: &self.transport.meters,
            outage: &self.outage,
            billing: Duration::try_from_secs_f64(billing).unwrap_or(Duration::from_secs(3600)),
        };
        Attempts::new(what, operation(path), common, limit)
    }

    /// Refuses to go on in a session that the server has ended.
    pub(super) fn check_alive(&self, what: &str) -> Result<(), ClientError> {
        if self.ended.load(Ordering::Relaxed) {
            return Err(ClientError::lost(what, "the server has ended the session"));
        }
        Ok(())
    }

    /// A request in JSON with its answer in JSON, over as many attempts as it takes.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        what: &str,
        path: &str,
        body: &impl Serialize,
        absent: Absent,
    ) -> Result<T, ClientError> {
        let call = Call::post(path, encode(body), self.patience.request);
        self.ask(what, call, absent).await
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, what: &str, path: &str) -> Result<T, ClientError> {
        self.ask(what, Call::bare(Method::GET, path, self.patience.request), Absent::Rejected).await
    }

    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        what: &str,
        call: Call,
        absent: Absent,
    ) -> Result<T, ClientError> {
        let mut attempts = self.attempts(what, &call.path, None);
        self.ask_with(what, &call, absent, &mut attempts).await
    }

    async fn ask_with<T: DeserializeOwned>(
        &self,
        what: &str,
        call: &Call,
        absent: Absent,
        attempts: &mut Attempts<'_>,
    ) -> Result<T, ClientError> {
        let call = self.named(call.clone());
        loop {
            let again = match self.once(what, &call, absent, attempts).await {
                Verdict::Good(reply) => match self.read(&reply) {
                    Ok(answer) => return Ok(answer),
                    Err(why) => Again::Unreadable(why),
                },
                Verdict::Again(again) => again,
                Verdict::Gone(why) => return Err(ClientError::lost(what, why)),
                Verdict::No(error) => return Err(error),
            };
            attempts.again(again).await?;
        }
    }

    /// Sends a request whose answer names its result.
    pub(super) async fn submit(&self, what: &str, call: Call, absent: Absent) -> Result<Taken, ClientError> {
        let mut attempts = self.attempts(what, &call.path, None);
        let promise: Promise = self.ask_with(what, &call, absent, &mut attempts).await?;
        Ok(Taken { request_id: promise.request_id, call, unsure: attempts.unsure() })
    }

    /// Reads an answer in JSON.
    pub(super) fn read<T: DeserializeOwned>(&self, reply: &Reply) -> Result<T, String> {
        // What does not fit is quoted in the error, whatever it is.
        serde_json::from_slice(&reply.body).map_err(|e| self.transport.told(&e.to_string()))
    }

    /// A request whose answer says nothing.
    pub(super) async fn tell(&self, what: &str, call: Call) -> Result<(), ClientError> {
        let mut attempts = self.attempts(what, &call.path, None);
        let call = self.named(call);
        let absent = if call.method == Method::DELETE { Absent::Deleted } else { Absent::Rejected };
        loop {
            match self.once(what, &call, absent, &attempts).await {
                Verdict::Good(_) => return Ok(()),
                Verdict::Again(again) => attempts.again(again).await?,
                // An earlier attempt, whose answer was lost, has deleted it.
                Verdict::Gone(_) if absent == Absent::Deleted && attempts.unsure() => return Ok(()),
                Verdict::Gone(why) if absent == Absent::Deleted => {
                    return Err(ClientError::rejected(what, why));
                }
                Verdict::Gone(why) => return Err(ClientError::lost(what, why)),
                Verdict::No(error) => return Err(error),
            }
        }
    }

    /// One attempt.
    pub(super) async fn once(
        &self,
        what: &str,
        call: &Call,
        absent: Absent,
        attempts: &Attempts<'_>,
    ) -> Verdict {
        let call = Call { timeout: attempts.timeout(call.timeout), ..call.clone() };
        judge(&self.transport, what, absent, self.send(&call).await)
    }

    async fn send(&self, call: &Call) -> Result<Reply, String> {
        let asked = Instant::now();
        let reply = self.transport.send(call).await;
        // A server that refuses for load keeps requests waiting as one does that is not there.
        let answered = reply.as_ref().is_ok_and(|reply| reply.status < 500 && reply.status != 429);
        match self.outage.note(operation(&call.path), asked, answered) {
            None => {}
            Some(Turn::Silent(since)) => {
                let why = match &reply {
                    Ok(reply) => format!("status {}", reply.status),
                    Err(why) => self.transport.told(why),
                };
                tracing::warn!(
                    since_s = since.as_secs(),
                    why,
                    "paused: the service does not answer, waiting for it"
                );
            }
            Some(Turn::Back(after)) => {
                tracing::warn!(after_s = after.as_secs(), "the service is back: going on")
            }
        }
        reply
    }

    /// The request under a name that stays the same over all attempts.
    pub(super) fn named(&self, call: Call) -> Call {
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

    /// Waits for a result. One that `read` cannot make sense of is asked for again: it may have suffered on its way.
    pub(super) async fn retrieve<T>(
        &self,
        what: &str,
        kind: &'static str,
        request_id: &str,
        limit: Duration,
        read: impl Fn(Payload) -> Result<T, String>,
    ) -> Result<T, NoResult> {
        let mut attempts = self.attempts(what, "retrieve_future", Some(limit));
        let (mut iteration, mut wrong, mut gone, mut metadata) = (0u64, 0, 0, true);
        loop {
            let asked = Instant::now();
            let ask = RetrieveFutureRequest { request_id: request_id.into(), allow_metadata_only: metadata };
            let timeout = attempts.timeout(self.patience.poll);
            let mut call = Call::post("retrieve_future", encode(&ask), timeout)
                .header("x-tinker-request-type", reqwest::header::HeaderValue::from_static(kind))
                .header("x-tinker-request-iteration", reqwest::header::HeaderValue::from(iteration));
            call.large = true;
            iteration += 1;
            // These come as protobuf from newer servers; older ones do not look at what is accepted.
            if matches!(kind, "Sample" | "Forward" | "ForwardBackward") && self.wire.now() == Wire::Protobuf {
                call.accept = PROTOBUF;
            }
            let reply = self.send(&call).await;
            if let Ok(reply) = &reply
                && reply.status == 408
            {
                self.pause_between_polls(&mut attempts, asked).await?;
                continue;
            }
            match judge(&self.transport, what, Absent::Forgotten, reply) {
                Verdict::Good(reply) if reply.protobuf => {
                    self.wire.lean(Wire::Protobuf);
                    match read(Payload::Protobuf(reply.body)) {
                        Ok(result) => return Ok(result),
                        Err(why) => attempts.again(self.unreadable(&why)).await?,
                    }
                }
                Verdict::Good(reply) => match FutureAnswer::parse(&reply.body) {
                    Ok(FutureAnswer::Done(value)) => {
                        if call.accept == PROTOBUF {
                            self.wire.lean(Wire::Json);
                        }
                        match read(Payload::Json(value)) {
                            Ok(result) => return Ok(result),
                            Err(why) => attempts.again(self.unreadable(&why)).await?,
                        }
                    }
                    Ok(FutureAnswer::Pending(_)) => self.pause_between_polls(&mut attempts, asked).await?,
                    Ok(FutureAnswer::Metadata(_)) if metadata => metadata = false,
                    Ok(FutureAnswer::Metadata(_)) => {
                        let why = "it is announced and not given".to_owned();
                        attempts.again(Again::Unreadable(why)).await?;
                    }
                    Ok(FutureAnswer::Failed(failed)) => {
                        let (what, detail) = (what.to_owned(), self.transport.told(&failed.error));
                        return Err(NoResult::Error(match failed.category {
                            FailureCategory::User => ClientError::Rejected { what, detail },
                            FailureCategory::Server | FailureCategory::Unknown => {
                                ClientError::Failed { what, detail }
                            }
                        }));
                    }
                    Err(e) => attempts.again(self.unreadable(&e.to_string())).await?,
                },
                Verdict::Again(Again::Conflict(why)) => attempts.again(Again::Failed(why)).await?,
                Verdict::Again(again) => attempts.again(again).await?,
                Verdict::Gone(why) => {
                    gone += 1;
                    if gone >= GONE_POLLS {
                        return Err(NoResult::Gone(why));
                    }
                    attempts.again(Again::Failed(why)).await?;
                }
                Verdict::No(ClientError::Rejected { detail, .. }) => {
                    wrong += 1;
                    if wrong >= WRONG_POLLS {
                        return Err(NoResult::Error(ClientError::rejected(what, detail)));
                    }
                    sleep(self.patience.between_polls).await;
                }
                // The request was taken in, so what cannot be done here is to tell its result.
                Verdict::No(ClientError::Unsupported { detail, .. }) => {
                    return Err(NoResult::Error(ClientError::Unreadable { what: what.into(), detail }));
                }
                Verdict::No(error) => return Err(NoResult::Error(error)),
            }
        }
    }

    /// Waits for the result of a numbered request. If the server has forgotten it, the request is sent once more under its
    /// number: a server that knows the number does not execute it again, and names the result that it still has, if any.
    pub(super) async fn result<T>(
        &self,
        what: &str,
        kind: &'static str,
        taken: &Taken,
        limit: Duration,
        read: impl Fn(Payload) -> Result<T, String>,
    ) -> Result<T, NoResult> {
        let why = match self.retrieve(what, kind, &taken.request_id, limit, &read).await {
            Err(NoResult::Gone(why)) => why,
            result => return result,
        };
        match self.submit(what, taken.call.clone(), Absent::Lost).await {
            Ok(again) if again.request_id != taken.request_id => {
                tracing::warn!(what, why, "the server has forgotten a result, and has another name for it");
                self.retrieve(what, kind, &again.request_id, limit, read).await
            }
            Ok(_) => Err(NoResult::Gone(why)),
            Err(error @ ClientError::Away { .. }) => Err(NoResult::Error(error)),
            Err(error) => Err(NoResult::Gone(format!("{why}; asked again: {error}"))),
        }
    }

    fn unreadable(&self, why: &str) -> Again {
        Again::Unreadable(self.transport.told(why))
    }

    /// A server that answers at once that a result is not there must not be asked at once again.
    async fn pause_between_polls(
        &self,
        attempts: &mut Attempts<'_>,
        asked: Instant,
    ) -> Result<(), ClientError> {
        attempts.progressed();
        if attempts.left().is_zero() {
            return Err(attempts.give_up("the result is not there yet".into()));
        }
        let rest = self.patience.between_polls.saturating_sub(asked.elapsed());
        sleep(rest.min(attempts.left())).await;
        Ok(())
    }

    /// Tells the server that nobody waits for a sample any more, where it wants to know.
    pub(super) async fn cancel(&self, request_id: String) {
        if !self.cancels {
            return;
        }
        let body = encode(&CancelFutureRequest { request_id });
        let call = Call::post("cancel_future", body, self.patience.request);
        if let Err(why) = self.transport.send(&call).await {
            tracing::debug!(why, "a sample was not cancelled");
        }
    }
}

pub(super) fn encode(body: &impl Serialize) -> Bytes {
    serde_json::to_vec(body).expect("requests have no keys but strings").into()
}
