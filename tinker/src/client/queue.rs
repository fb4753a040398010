//! The order of one model's requests.
//!
//! A call puts its request into the queue, and that is its place. One task takes them out, numbers them and sends each
//! until it is accepted, never two at a time; it does not wait for results. A request whose fate is unknown when patience
//! ends breaks the order for good: what follows would run without it, so it is refused instead.

use super::connection::{Connection, Taken};
use super::error::ClientError;
use super::http::Call;
use super::pass::PassJob;
use super::retry::{Absent, Again, Attempts, Verdict};
use super::wire::Wire;
use crate::types::Promise;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// What is to be sent.
pub(super) enum Job {
    /// A pass, perhaps in parts.
    Pass(PassJob),
    /// Anything that is one request in JSON, written once its number is known.
    Json {
        path: &'static str,
        absent: Absent,
        /// Whether the model is another one after it.
        changes: bool,
        body: Box<dyn FnOnce(i64) -> Bytes + Send>,
    },
}

/// The requests as the server has taken them in, one per part.
pub(super) type Accepted = Result<Vec<Taken>, ClientError>;

struct Entry {
    what: String,
    job: Job,
    accepted: oneshot::Sender<Accepted>,
}

/// The way into the order. The task ends when the last of these is gone and everything is sent.
#[derive(Clone)]
pub(super) struct Queue(mpsc::UnboundedSender<Entry>);

impl Queue {
    pub(super) fn start(connection: Arc<Connection>, model_id: String) -> Self {
        let (entries, inbox) = mpsc::unbounded_channel();
        let runtime = connection.runtime.clone();
        runtime.spawn(Sending { connection, model_id, next: 1, broken: None }.run(inbox));
        Self(entries)
    }

    /// Takes a place in the order.
    pub(super) fn push(&self, what: String, job: Job) -> oneshot::Receiver<Accepted> {
        let (accepted, receiver) = oneshot::channel();
        // If the task is gone, so is the sender in the entry, which the receiver notices.
        if self.0.send(Entry { what, job, accepted }).is_err() {
            tracing::debug!("a request was queued after the client's runtime had stopped");
        }
        receiver
    }
}

struct Sending {
    connection: Arc<Connection>,
    model_id: String,
    next: i32,
    /// Which request broke the order, and how.
    broken: Option<String>,
}

impl Sending {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Entry>) {
        while let Some(Entry { what, job, accepted }) = inbox.recv().await {
            let changes = !matches!(job, Job::Json { changes: false, .. });
            let result = match &self.broken {
                Some(why) => Err(ClientError::lost(&what, format!("the order of requests is broken: {why}"))),
                None => match self.connection.check_alive(&what) {
                    Ok(()) => self.send(&what, job).await,
                    Err(error) => Err(error),
                },
            };
            // Whether weights were saved or not is the same to what follows.
            if let Err(error) = &result
                && error.breaks_order()
                && (changes || !matches!(error, ClientError::InDoubt { .. }))
            {
                self.broken.get_or_insert_with(|| error.to_string());
            }
            // Whoever asked may have left; the request was sent all the same.
            if accepted.send(result).is_err() {
                tracing::debug!(what, "nobody waits for this request");
            }
        }
    }

    async fn send(&mut self, what: &str, job: Job) -> Accepted {
        match job {
            Job::Json { path, absent, body, .. } => {
                let body = body(i64::from(self.number()));
                let call = Call::post(path, body, self.connection.patience.request);
                Ok(vec![self.connection.submit(what, call, absent).await?])
            }
            Job::Pass(pass) => {
                let mut ids = Vec::new();
                for part in pass.parts(&self.connection.config) {
                    let seq_id = self.number();
                    match self.send_part(what, &pass, part, seq_id).await {
                        Ok(id) => ids.push(id),
                        Err(error) if ids.is_empty() => return Err(error),
                        Err(error) => {
                            let detail = format!("part {} of it was not taken: {error}", ids.len() + 1);
                            return Err(ClientError::lost(what, detail));
                        }
                    }
                }
                Ok(ids)
            }
        }
    }

    /// Sends one part until it is accepted.
    async fn send_part(
        &self,
        what: &str,
        pass: &PassJob,
        part: Range<usize>,
        seq_id: i32,
    ) -> Result<Taken, ClientError> {
        let mut attempts = self.connection.attempts(what, "forward_backward", None);
        let part = Part { what, pass, range: part, seq_id };
        loop {
            match self.try_wires(&part, &attempts).await {
                Ok((request_id, call)) => return Ok(Taken { request_id, call, unsure: attempts.unsure() }),
                Err(Refusal::No(error)) => return Err(error),
                Err(Refusal::Again(again)) => attempts.again(again).await?,
            }
        }
    }

    /// One attempt on the wire that the server speaks; while that is a guess, the other one is tried too. Should both
    /// be refused, the likelier one knows why.
    async fn try_wires(&self, part: &Part<'_>, attempts: &Attempts<'_>) -> Result<(String, Call), Refusal> {
        let (wire, other) = self.connection.wire.candidates();
        let refusal = match self.try_wire(part, wire, attempts).await {
            Ok(taken) => return Ok(taken),
            Err(refusal) => refusal,
        };
        match other {
            Some(other) if refusal.may_be_the_wire() => match self.try_wire(part, other, attempts).await {
                Err(Refusal::No(_)) => Err(refusal),
                Err(again) => {
                    // It is still open whether this wire is the right one, so it is the first to be tried next time. Second
                    // again, it might never get through: SkyRL 0.3.0 resets a connection after a pass that it cannot read.
                    self.connection.wire.lean(other);
                    Err(again)
                }
                accepted => accepted,
            },
            _ => Err(refusal),
        }
    }

    async fn try_wire(
        &self,
        part: &Part<'_>,
        wire: Wire,
        attempts: &Attempts<'_>,
    ) -> Result<(String, Call), Refusal> {
        let Part { what, pass, range, seq_id } = part;
        let connection = &self.connection;
        let call =
            pass.call(connection, &self.model_id, range.clone(), *seq_id, wire).map_err(Refusal::No)?;
        match connection.once(what, &connection.named(call.clone()), Absent::Lost, attempts).await {
            Verdict::Good(reply) => {
                let promise: Promise =
                    connection.read(&reply).map_err(|why| Refusal::Again(Again::Unreadable(why)))?;
                connection.wire.settle(wire);
                Ok((promise.request_id, call))
            }
            Verdict::Again(again) => Err(Refusal::Again(again)),
            Verdict::Gone(why) => Err(Refusal::No(ClientError::lost(what, why))),
            Verdict::No(error) => Err(Refusal::No(error)),
        }
    }

    fn number(&mut self) -> i32 {
        self.next += 1;
        self.next - 1
    }
}

/// One request of a pass.
struct Part<'a> {
    what: &'a str,
    pass: &'a PassJob,
    range: Range<usize>,
    seq_id: i32,
}

/// Why a request was not accepted.
enum Refusal {
    Again(Again),
    No(ClientError),
}

impl Refusal {
    /// A server that cannot read a wire says that the request is wrong, or falls over it.
    fn may_be_the_wire(&self) -> bool {
        match self {
            Self::No(error) => {
                matches!(error, ClientError::Rejected { .. } | ClientError::Unsupported { .. })
            }
            Self::Again(again) => matches!(again, Again::Failed(why) if why.ends_with("(status 500)")),
        }
    }
}
