//! What an answer means, and when to ask again.
//!
//! A request carries its own identity (a `seq_id`, or the number of a model or sampler in its session), so asking
//! again is safe even when only the answer was lost. Errors of the caller are never asked again.
//!
//! An outage has one clock ([`OutageTracker`]) and one limit ([`ClientTimeouts::outage`]) for all waiting requests: all
//! of them fail when it runs out, and those that begin later fail at their first failure.

use super::error::ClientError;
use super::metrics::ClientMetrics;
use super::options::ClientTimeouts;
use super::outage::OutageTracker;
use super::transport::{HttpResponse, HttpTransport};
use crate::types::ErrorBody;
use parking_lot::Mutex;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Retries of a conflict: most are real, some are a race with one's own lost request.
const CONFLICTS: u32 = 3;

/// Retries of an unreadable answer.
const UNREADABLE: u32 = 8;

/// Unreadable answers to a request after which they are logged. A single one may be damaged in transit.
const LOGGED_UNREADABLE: u32 = 2;

/// What a request on something that is not there means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotFoundMeaning {
    /// The caller named something that does not exist.
    Rejected,
    /// What the client itself had made is gone.
    Lost,
    /// What was to be deleted may have been, by an earlier attempt.
    Deleted,
    /// The server has forgotten a result.
    Forgotten,
}

/// Reason to retry a request.
#[derive(Debug)]
pub(super) enum RetryReason {
    /// The network or the server failed.
    Failed {
        /// Status of the response, if there was one.
        status: Option<u16>,
        /// What failed, without secrets.
        why: String,
    },
    /// The server is full and may say for how long.
    Busy(String, Option<Duration>),
    /// A conflict, possibly with an earlier attempt of this request.
    Conflict(String),
    /// The response cannot be read.
    Unreadable(String),
}

impl RetryReason {
    pub(super) fn failed(status: Option<u16>, why: String) -> Self {
        Self::Failed { status, why }
    }

    /// Whether a server is there and refuses for load or maintenance. No other failure says that its address is right.
    fn is_overload(&self) -> bool {
        matches!(self, Self::Busy(..) | Self::Failed { status: Some(503), .. })
    }
}

/// What an answer means.
pub(super) enum ResponseOutcome {
    Accepted(HttpResponse),
    Retry(RetryReason),
    Gone(String),
    Failed(ClientError),
}

/// Classifies a response by its status.
pub(super) fn classify(
    transport: &HttpTransport,
    what: &str,
    not_found: NotFoundMeaning,
    reply: Result<HttpResponse, String>,
) -> ResponseOutcome {
    let reply = match reply {
        Ok(reply) => reply,
        Err(why) => return ResponseOutcome::Retry(RetryReason::failed(None, transport.redact(&why))),
    };
    let status = reply.status;
    if (200..300).contains(&status) {
        return match reply.too_large {
            None => ResponseOutcome::Accepted(reply),
            Some(most) => {
                ResponseOutcome::Retry(RetryReason::Unreadable(format!("it has more than {most} bytes")))
            }
        };
    }
    let detail = detail(transport, &reply);
    let what = what.to_owned();
    let why = format!("{detail} (status {status})");
    if reply.no_key {
        return ResponseOutcome::Failed(ClientError::NoKey { what, detail });
    }
    match (status, reply.should_retry) {
        // The account is empty (402) until a person pays: waiting for that would keep a run and its machine idle.
        (401..=403, _) => ResponseOutcome::Failed(ClientError::Denied { what, status, detail }),
        (404, _) if not_found == NotFoundMeaning::Forgotten => ResponseOutcome::Gone(why),
        (404 | 405, _) if is_no_route(&reply) => {
            ResponseOutcome::Failed(ClientError::Unsupported { what, detail: why })
        }
        (404, _) if not_found == NotFoundMeaning::Lost => {
            ResponseOutcome::Failed(ClientError::Lost { what, detail: why })
        }
        (404, _) if not_found == NotFoundMeaning::Deleted => ResponseOutcome::Gone(why),
        (410, _) => ResponseOutcome::Gone(why),
        (501, _) => ResponseOutcome::Failed(ClientError::Unsupported { what, detail: why }),
        // The proxies in front of servers answer like this; a server's own refusal has words.
        (400, _) if reply.body.is_empty() => ResponseOutcome::Retry(RetryReason::failed(Some(status), why)),
        (429, _) => ResponseOutcome::Retry(RetryReason::Busy(why, reply.retry_after)),
        (409, Some(false)) => ResponseOutcome::Failed(ClientError::Rejected { what, detail: why }),
        (409, _) => ResponseOutcome::Retry(RetryReason::Conflict(why)),
        (408 | 425 | 500.., _) | (_, Some(true)) => ResponseOutcome::Retry(match reply.retry_after {
            Some(after) => RetryReason::Busy(why, Some(after)),
            None => RetryReason::failed(Some(status), why),
        }),
        _ => ResponseOutcome::Failed(ClientError::Rejected { what, detail: why }),
    }
}

/// What the server says is wrong.
pub(super) fn detail(transport: &HttpTransport, reply: &HttpResponse) -> String {
    let text = match serde_json::from_slice::<ErrorBody>(&reply.body) {
        Ok(ErrorBody { detail: Value::String(text) }) => text,
        Ok(ErrorBody { detail }) => detail.to_string(),
        Err(_) => String::from_utf8_lossy(&reply.body).trim().to_owned(),
    };
    if text.is_empty() { "it gave no reason".into() } else { transport.redact(&text) }
}

/// Whether the server has no such address at all, as web frameworks say it.
fn is_no_route(reply: &HttpResponse) -> bool {
    let body = serde_json::from_slice::<ErrorBody>(&reply.body).map(|body| body.detail);
    reply.status == 405 || reply.body.is_empty() || body.is_ok_and(|detail| detail == "Not Found")
}

/// Pauses that grow with each failure and differ from client to client.
pub(super) struct Jitter(Mutex<ChaCha8Rng>);

impl Jitter {
    pub(super) fn new(rng: ChaCha8Rng) -> Self {
        Self(Mutex::new(rng))
    }

    /// Within a quarter around the pause.
    fn around(&self, pause: Duration) -> Duration {
        pause.mul_f64(self.draw(0.75..1.25))
    }

    fn draw(&self, range: std::ops::Range<f64>) -> f64 {
        self.0.lock().random_range(range)
    }

    /// A name for one request, the same over all its attempts.
    pub(super) fn idempotency_key(&self) -> String {
        format!("minds-{:032x}", self.0.lock().random::<u128>())
    }
}

/// Shortest time that an attempt is given, however little is left.
const SHORTEST: Duration = Duration::from_secs(1);

/// What all requests to a server have in common.
pub(super) struct RetryContext<'a> {
    pub(super) timeouts: &'a ClientTimeouts,
    pub(super) jitter: &'a Jitter,
    pub(super) metrics: &'a ClientMetrics,
    pub(super) outage: &'a OutageTracker,
    /// Whether the server has answered a request before.
    pub(super) connected: bool,
}

/// One request over all its attempts: their number, the next pause, and the limit.
pub(super) struct Attempts<'a> {
    what: &'a str,
    /// The kind of request, as an outage is counted by it.
    operation: &'static str,
    context: RetryContext<'a>,
    begun: Instant,
    /// How long a result may take, the time without a server not counted. A request that waits to be accepted has no
    /// limit of its own.
    limit: Option<Duration>,
    /// Whether the latest failure came from a server that refuses for load.
    overload: bool,
    /// Since when this request has met with nothing but failures.
    failing: Option<Instant>,
    /// How long earlier stretches of failures were.
    past: Duration,
    pause: Duration,
    count: u32,
    conflicts: u32,
    unreadable: u32,
    /// Whether an attempt may have been carried out although its answer did not come.
    maybe_executed: bool,
    /// Whether the server answered every attempt that it is too busy to take the request.
    refused: bool,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(
        what: &'a str,
        operation: &'static str,
        context: RetryContext<'a>,
        limit: Option<Duration>,
    ) -> Self {
        let pause = context.timeouts.backoff;
        Self {
            what,
            operation,
            context,
            begun: Instant::now(),
            limit,
            overload: false,
            failing: None,
            past: Duration::ZERO,
            pause,
            count: 0,
            conflicts: 0,
            unreadable: 0,
            maybe_executed: false,
            refused: true,
        }
    }

    /// Time that is left: for a request that fails until the outage has lasted too long, else for its result.
    pub(super) fn left(&self) -> Duration {
        match self.limit {
            Some(limit) if self.failing.is_none() => (limit + self.past).saturating_sub(self.begun.elapsed()),
            _ if self.failing.is_some() && self.context.outage.given_up() => Duration::ZERO,
            _ => self.outage_limit().saturating_sub(self.unanswered_for()),
        }
    }

    /// Limit of an outage; short until a server has answered, so that a wrong address is reported early.
    fn outage_limit(&self) -> Duration {
        let ClientTimeouts { outage, first_response, .. } = *self.context.timeouts;
        if self.context.connected || self.overload { outage } else { outage.min(first_response) }
    }

    /// How long this request has failed, or all of its kind.
    fn unanswered_for(&self) -> Duration {
        let all = self.context.outage.since(self.operation);
        self.failing.into_iter().chain(all).map(|since| since.elapsed()).max().unwrap_or_default()
    }

    /// How long the next attempt may take of what a request may take.
    pub(super) fn timeout(&self, usual: Duration) -> Duration {
        usual.min(self.left().max(SHORTEST))
    }

    /// Whether an attempt may have been carried out although its answer did not come.
    pub(super) fn maybe_executed(&self) -> bool {
        self.maybe_executed
    }

    /// Pauses before the next attempt, or says that there is none.
    pub(super) async fn back_off(&mut self, reason: RetryReason) -> Result<(), ClientError> {
        self.count += 1;
        self.context.metrics.retry(&reason);
        self.overload = reason.is_overload();
        self.refused &= self.overload;
        self.maybe_executed |= matches!(reason, RetryReason::Failed { .. } | RetryReason::Unreadable(_));
        if matches!(reason, RetryReason::Failed { .. } | RetryReason::Busy(..)) {
            self.failing.get_or_insert_with(Instant::now);
        }
        let grown = self.context.jitter.around(self.pause);
        let (why, pause) = match reason {
            RetryReason::Failed { why, .. } => (why, grown),
            RetryReason::Busy(why, after) => (why, after.map_or(grown, |after| after.max(grown))),
            RetryReason::Conflict(why) => {
                self.conflicts += 1;
                if self.conflicts >= CONFLICTS {
                    return Err(self.conflict(why));
                }
                (why, grown)
            }
            RetryReason::Unreadable(why) => {
                self.unreadable += 1;
                if self.unreadable == LOGGED_UNREADABLE {
                    tracing::warn!(what = self.what, why, "the server's answer is unreadable, retrying");
                }
                if self.unreadable >= UNREADABLE {
                    return Err(ClientError::Unreadable { what: self.what.into(), detail: why });
                }
                (why, grown)
            }
        };
        let left = self.left();
        if left.is_zero() {
            return Err(self.give_up(why));
        }
        // The last attempt is made when the time is over, not before.
        let pause = pause.min(left);
        tracing::debug!(what = self.what, attempt = self.count, ?pause, why, "asked again");
        self.pause = (self.pause * 2).min(self.context.timeouts.max_backoff);
        sleep(pause).await;
        Ok(())
    }

    /// A success resets the count of failures.
    pub(super) fn progressed(&mut self) {
        self.pause = self.context.timeouts.backoff;
        if let Some(since) = self.failing.take() {
            self.past += since.elapsed();
        }
    }

    /// A conflict that stays: one with an earlier attempt whose answer was lost, or with a request of another client.
    fn conflict(&self, why: String) -> ClientError {
        match self.maybe_executed {
            true => ClientError::InDoubt {
                what: self.what.into(),
                detail: format!(
                    "the answer to an earlier attempt was lost, and now it meets a conflict: {why}"
                ),
            },
            false => ClientError::rejected(self.what, why),
        }
    }

    pub(super) fn give_up(&self, why: String) -> ClientError {
        let what = self.what.to_owned();
        let attempts = self.count.max(1);
        match self.failing {
            Some(_) => {
                self.context.outage.give_up(self.operation);
                let waited = self.unanswered_for();
                ClientError::Unreachable { what, waited, attempts, why, refused: self.refused }
            }
            None => ClientError::TimedOut { what, waited: self.begun.elapsed(), attempts, why },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3600);

    struct World {
        timeouts: ClientTimeouts,
        jitter: Jitter,
        metrics: ClientMetrics,
        outage: OutageTracker,
    }

    impl World {
        fn new(submit: Duration) -> Self {
            Self {
                timeouts: ClientTimeouts { outage: submit, ..ClientTimeouts::default() },
                jitter: Jitter::new(ChaCha8Rng::seed_from_u64(0)),
                metrics: ClientMetrics::default(),
                outage: OutageTracker::default(),
            }
        }

        fn attempts(&self, limit: Option<Duration>) -> Attempts<'_> {
            let Self { timeouts, jitter, metrics, outage } = self;
            let context = RetryContext { timeouts, jitter, metrics, outage, connected: true };
            Attempts::new("sample", "asample", context, limit)
        }

        /// Nobody answers a request, which notes that.
        async fn fail(&self, attempts: &mut Attempts<'_>) -> Result<(), ClientError> {
            self.outage.record("asample", Instant::now(), false);
            attempts.back_off(RetryReason::failed(None, "away".into())).await
        }

        /// How long it is retried, and how the failure is reported.
        async fn given_up(&self, attempts: &mut Attempts<'_>) -> (Duration, ClientError) {
            let begun = Instant::now();
            loop {
                if let Err(error) = self.fail(attempts).await {
                    return (begun.elapsed(), error);
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_without_a_server_is_not_the_results_but_has_a_limit_of_its_own() {
        let world = World::new(2 * HOUR);
        let mut result = world.attempts(Some(10 * MINUTE));
        let begun = Instant::now();
        while begun.elapsed() < HOUR {
            world.fail(&mut result).await.unwrap();
        }
        result.progressed();
        world.outage.record("asample", Instant::now(), true);
        // The server is there again, and all of the ten minutes are left.
        assert_eq!(result.left(), 10 * MINUTE);
        sleep(9 * MINUTE).await;
        assert_eq!(result.left(), MINUTE);
        let (silence, error) = world.given_up(&mut result).await;
        assert_eq!(silence, 2 * HOUR);
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_a_server_exactly_as_long_as_the_limit() {
        for limit in [Duration::from_secs(10), MINUTE, 2 * HOUR] {
            let world = World::new(limit);
            let (silence, error) = world.given_up(&mut world.attempts(None)).await;
            assert_eq!(silence, limit);
            assert!(matches!(error, ClientError::Unreachable { waited, .. } if waited == limit), "{error:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_has_one_clock_however_many_requests_wait() {
        let world = World::new(HOUR);
        let begun = Instant::now();
        let mut first = world.attempts(None);
        while begun.elapsed() < 50 * MINUTE {
            world.fail(&mut first).await.unwrap();
        }
        // One that begins late has what is left, and one that begins after the end has nothing.
        world.given_up(&mut world.attempts(None)).await;
        assert_eq!(begun.elapsed(), HOUR);
        let (silence, _) = world.given_up(&mut world.attempts(None)).await;
        assert_eq!(silence, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn after_one_kind_of_request_timed_out_no_other_kind_waits_for_the_same_server() {
        let world = World::new(HOUR);
        world.given_up(&mut world.attempts(None)).await;
        let World { timeouts, jitter, metrics, outage } = &world;
        let context = RetryContext { timeouts, jitter, metrics, outage, connected: true };
        let mut save = Attempts::new("save", "save_weights", context, None);
        let begun = Instant::now();
        assert!(save.back_off(RetryReason::failed(None, "away".into())).await.is_err());
        assert_eq!(begun.elapsed(), Duration::ZERO);
        // The server is back.
        world.outage.record("asample", Instant::now(), true);
        assert_eq!(world.given_up(&mut world.attempts(None)).await.0, HOUR);
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_takes_no_longer_than_what_is_left_of_the_outage() {
        let world = World::new(10 * Duration::from_secs(1));
        let mut attempts = world.attempts(None);
        assert_eq!(attempts.timeout(MINUTE), Duration::from_secs(10));
        world.fail(&mut attempts).await.unwrap();
        assert!(attempts.timeout(MINUTE) < Duration::from_secs(10));
        assert_eq!(attempts.timeout(Duration::from_secs(2)), Duration::from_secs(2));
        world.given_up(&mut attempts).await;
        assert_eq!(attempts.timeout(MINUTE), SHORTEST);
    }

    #[tokio::test(start_paused = true)]
    async fn a_conflict_is_in_doubt_only_if_an_answer_was_lost() {
        let world = World::new(HOUR);
        let conflict = async |attempts: &mut Attempts<'_>| loop {
            if let Err(error) = attempts.back_off(RetryReason::Conflict("it exists".into())).await {
                return error;
            }
        };
        let error = conflict(&mut world.attempts(None)).await;
        assert!(matches!(error, ClientError::Rejected { .. }), "{error:?}");
        let mut lost = world.attempts(None);
        world.fail(&mut lost).await.unwrap();
        let error = conflict(&mut lost).await;
        assert!(matches!(error, ClientError::InDoubt { .. }), "{error:?}");
    }
}
