//! What an answer means, and when to ask again.
//!
//! A request carries its own identity (a `seq_id`, or the number of a model or sampler in its session), so asking
//! again is safe even when only the answer was lost. Errors of the caller are never asked again.

use super::error::ClientError;
use super::http::{Reply, Transport};
use super::meters::Meters;
use super::options::Patience;
use crate::types::ErrorBody;
use minds_core::backend::BackendError;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A conflict is asked again this often: most are real, some are a race with one's own lost request.
const CONFLICTS: u32 = 3;

/// Answers that cannot be read are asked for again this often.
const UNREADABLE: u32 = 8;

/// What a request on something that is not there means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absent {
    /// The caller named something that does not exist.
    Rejected,
    /// What the client itself had made is gone.
    Lost,
}

/// Why to ask again.
#[derive(Debug)]
pub(super) enum Again {
    /// The network or the server failed.
    Failed(String),
    /// The server is full and may say for how long.
    Busy(String, Option<Duration>),
    /// Somebody has to pay first.
    Billing(String),
    /// A conflict that may be one with ourselves.
    Conflict(String),
    /// The answer makes no sense.
    Unreadable(String),
}

/// What an answer means.
pub(super) enum Verdict {
    Good(Reply),
    Again(Again),
    Gone(String),
    No(ClientError),
}

/// Reads the status.
pub(super) fn judge(
    transport: &Transport,
    what: &str,
    absent: Absent,
    reply: Result<Reply, String>,
) -> Verdict {
    let reply = match reply {
        Ok(reply) => reply,
        Err(why) => return Verdict::Again(Again::Failed(transport.told(&why))),
    };
    let status = reply.status;
    if (200..300).contains(&status) {
        return match reply.too_large {
            None => Verdict::Good(reply),
            Some(most) => Verdict::Again(Again::Unreadable(format!("it has more than {most} bytes"))),
        };
    }
    let detail = detail(transport, &reply);
    let (what, told) = (what.to_owned(), format!("{detail} (status {status})"));
    match (status, reply.should_retry) {
        (401 | 403, _) => Verdict::No(ClientError::Denied { what, status, detail }),
        (402, _) => Verdict::Again(Again::Billing(told)),
        (404 | 405, _) if is_no_route(&reply) => Verdict::No(ClientError::Unsupported { what, detail: told }),
        (404, _) if absent == Absent::Lost => Verdict::No(ClientError::Lost { what, detail: told }),
        (410, _) => Verdict::Gone(told),
        (501, _) => Verdict::No(ClientError::Unsupported { what, detail: told }),
        // The proxies in front of servers answer like this; a server's own refusal has words.
        (400, _) if reply.body.is_empty() => Verdict::Again(Again::Failed(told)),
        (429, _) => Verdict::Again(Again::Busy(told, reply.retry_after)),
        (409, Some(false)) => Verdict::No(ClientError::Rejected { what, detail: told }),
        (409, _) => Verdict::Again(Again::Conflict(told)),
        (408 | 425 | 500.., _) | (_, Some(true)) => Verdict::Again(match reply.retry_after {
            Some(after) => Again::Busy(told, Some(after)),
            None => Again::Failed(told),
        }),
        _ => Verdict::No(ClientError::Rejected { what, detail: told }),
    }
}

/// What the server says is wrong.
pub(super) fn detail(transport: &Transport, reply: &Reply) -> String {
    let text = match serde_json::from_slice::<ErrorBody>(&reply.body) {
        Ok(ErrorBody { detail: Value::String(text) }) => text,
        Ok(ErrorBody { detail }) => detail.to_string(),
        Err(_) => String::from_utf8_lossy(&reply.body).trim().to_owned(),
    };
    if text.is_empty() { "it gave no reason".into() } else { transport.told(&text) }
}

/// Whether the server has no such address at all, as web frameworks say it.
fn is_no_route(reply: &Reply) -> bool {
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner).random_range(range)
    }

    /// A name for one request, the same over all its attempts.
    pub(super) fn idempotency_key(&self) -> String {
        format!("minds-{:032x}", self.0.lock().unwrap_or_else(PoisonError::into_inner).random::<u128>())
    }
}

/// Whether the time in which a server does not answer counts.
enum Outages {
    /// It does: it is what the limit is for.
    Count,
    /// It does not, but each stretch of it has a limit of its own.
    Aside {
        /// Since when there has been no answer.
        since: Option<Instant>,
        /// How long earlier stretches were.
        past: Duration,
    },
}

/// One request over all its attempts: how often it was asked, how long to pause, when to give up.
pub(super) struct Attempts<'a> {
    what: &'a str,
    patience: &'a Patience,
    jitter: &'a Jitter,
    meters: &'a Meters,
    begun: Instant,
    limit: Duration,
    /// Time spent waiting for payment does not count.
    billing: Duration,
    billing_limit: Duration,
    outages: Outages,
    pause: Duration,
    asked: u32,
    conflicts: u32,
    unreadable: u32,
}

impl<'a> Attempts<'a> {
    pub(super) fn new(
        what: &'a str,
        patience: &'a Patience,
        jitter: &'a Jitter,
        meters: &'a Meters,
        limit: Duration,
        billing_limit: Duration,
    ) -> Self {
        Self {
            what,
            patience,
            jitter,
            meters,
            begun: Instant::now(),
            limit,
            billing: Duration::ZERO,
            billing_limit,
            outages: Outages::Count,
            pause: patience.backoff,
            asked: 0,
            conflicts: 0,
            unreadable: 0,
        }
    }

    /// For a result: what takes long is limited, the server's absence is limited apart from that.
    pub(super) fn outages_aside(mut self) -> Self {
        self.outages = Outages::Aside { since: None, past: Duration::ZERO };
        self
    }

    /// Time that is left.
    pub(super) fn left(&self) -> Duration {
        let past = match self.outages {
            Outages::Aside { since: Some(since), .. } => {
                return self.patience.submit.saturating_sub(since.elapsed());
            }
            Outages::Aside { past, .. } => past,
            Outages::Count => Duration::ZERO,
        };
        (self.limit + self.billing + past).saturating_sub(self.begun.elapsed())
    }

    /// Pauses before the next attempt, or says that there is none.
    pub(super) async fn again(&mut self, again: Again) -> Result<(), ClientError> {
        self.asked += 1;
        self.meters.retry(&again);
        if let (Again::Failed(_) | Again::Busy(..), Outages::Aside { since, .. }) =
            (&again, &mut self.outages)
        {
            since.get_or_insert_with(Instant::now);
        }
        let grown = self.jitter.around(self.pause);
        let (why, pause) = match again {
            Again::Failed(why) => (why, grown),
            Again::Busy(why, after) => (why, after.map_or(grown, |after| after.max(grown))),
            Again::Billing(why) => {
                self.billing += self.patience.billing_pause;
                if self.billing > self.billing_limit {
                    return Err(self.give_up(why));
                }
                tracing::warn!(what = self.what, why, "the server waits for a payment");
                sleep(self.patience.billing_pause).await;
                return Ok(());
            }
            Again::Conflict(why) => {
                self.conflicts += 1;
                if self.conflicts >= CONFLICTS {
                    return Err(ClientError::rejected(self.what, why));
                }
                (why, grown)
            }
            Again::Unreadable(why) => {
                self.unreadable += 1;
                if self.unreadable >= UNREADABLE {
                    return Err(ClientError::Unreadable { what: self.what.into(), detail: why });
                }
                (why, grown)
            }
        };
        if pause >= self.left() {
            return Err(self.give_up(why));
        }
        tracing::debug!(what = self.what, attempt = self.asked, ?pause, why, "asked again");
        self.pause = (self.pause * 2).min(self.patience.longest_backoff);
        sleep(pause).await;
        Ok(())
    }

    /// After a success in between, failures count anew.
    pub(super) fn progressed(&mut self) {
        self.pause = self.patience.backoff;
        if let Outages::Aside { since, past } = &mut self.outages
            && let Some(since) = since.take()
        {
            *past += since.elapsed();
        }
    }

    pub(super) fn give_up(&self, why: String) -> ClientError {
        ClientError::TimedOut {
            what: self.what.into(),
            waited: self.begun.elapsed(),
            attempts: self.asked.max(1),
            why,
        }
    }
}

/// Whether asking again later, as a new request, makes sense.
pub(super) fn is_retryable(error: &ClientError) -> bool {
    BackendError::from(error.clone()).is_retryable()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    fn away() -> Again {
        Again::Failed("away".into())
    }

    /// How long it is asked again before it is given up.
    async fn given_up_after(attempts: &mut Attempts<'_>) -> Duration {
        let begun = Instant::now();
        while attempts.again(away()).await.is_ok() {}
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_without_a_server_is_not_the_results_but_has_a_limit_of_its_own() {
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3600));
        let patience = Patience { submit: 2 * hour, ..Patience::default() };
        let jitter = Jitter::new(ChaCha8Rng::seed_from_u64(0));
        let meters = Meters::default();
        let attempts = || Attempts::new("sample", &patience, &jitter, &meters, 10 * minute, Duration::ZERO);

        let mut result = attempts().outages_aside();
        let begun = Instant::now();
        while begun.elapsed() < hour {
            result.again(away()).await.unwrap();
        }
        result.progressed();
        // The server is there again, and all of the ten minutes are left.
        assert_eq!(result.left(), 10 * minute);
        sleep(9 * minute).await;
        assert_eq!(result.left(), minute);
        let silence = given_up_after(&mut result).await;
        assert!(silence <= 2 * hour && silence > 2 * hour - minute, "{silence:?}");

        // Without that, the ten minutes are for everything.
        let silence = given_up_after(&mut attempts()).await;
        assert!(silence <= 10 * minute && silence > 9 * minute, "{silence:?}");
    }
}
