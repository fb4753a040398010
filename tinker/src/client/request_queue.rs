//! Keeps the requests of one model in order.
//!
//! A call puts its request into the queue, which fixes its position. One task numbers the requests and sends each until
//! it is accepted, one at a time; it does not wait for results. If it is unknown at the time limit whether a request
//! was accepted, the order is broken for good: later requests would run without it, so the queue rejects them.

use super::connection::{Connection, SubmittedRequest};
use super::error::ClientError;
use super::pass_request::PassRequest;
use super::retry::{Attempts, NotFoundMeaning, ResponseOutcome, RetryReason};
use super::transport::HttpRequest;
use super::wire_format::WireFormat;
use crate::types::FutureHandle;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// A request to be sent in order.
pub(super) enum TrainingRequest {
    /// A pass, sent in one or more chunks.
    Pass(PassRequest),
    /// Any other request, encoded as JSON once its number is known.
    Json {
        path: &'static str,
        not_found: NotFoundMeaning,
        /// Whether the request changes the model.
        changes: bool,
        body: Box<dyn FnOnce(i64) -> Bytes + Send>,
    },
}

/// The accepted requests, one per chunk.
pub(super) type SubmitResult = Result<Vec<SubmittedRequest>, ClientError>;

struct QueueEntry {
    what: String,
    request: TrainingRequest,
    accepted: oneshot::Sender<SubmitResult>,
}

/// Handle to the queue. The task ends after the last handle is dropped and all requests are sent.
#[derive(Clone)]
pub(super) struct RequestQueue(mpsc::UnboundedSender<QueueEntry>);

impl RequestQueue {
    pub(super) fn start(connection: Arc<Connection>, model_id: String) -> Self {
        let (entries, inbox) = mpsc::unbounded_channel();
        let runtime = connection.runtime.clone();
        runtime.spawn(QueueTask { connection, model_id, next: 1, broken: None }.run(inbox));
        Self(entries)
    }

    /// Appends a request to the queue.
    pub(super) fn push(&self, what: String, request: TrainingRequest) -> oneshot::Receiver<SubmitResult> {
        let (accepted, receiver) = oneshot::channel();
        // If the task has ended, the sender in the entry is dropped, which the receiver detects.
        if self.0.send(QueueEntry { what, request, accepted }).is_err() {
            tracing::debug!("a request was queued after the client's runtime had stopped");
        }
        receiver
    }
}

struct QueueTask {
    connection: Arc<Connection>,
    model_id: String,
    next: i32,
    /// The request that broke the order, and its error.
    broken: Option<String>,
}

impl QueueTask {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<QueueEntry>) {
        while let Some(QueueEntry { what, request, accepted }) = inbox.recv().await {
            let changes = !matches!(request, TrainingRequest::Json { changes: false, .. });
            let result = match &self.broken {
                Some(why) => Err(ClientError::lost(&what, format!("the order of requests is broken: {why}"))),
                None => match self.connection.check_alive(&what) {
                    Ok(()) => self.send(&what, request).await,
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = &result
                && error.breaks_order(changes)
            {
                self.broken.get_or_insert_with(|| error.to_string());
            }
            // The caller may have dropped the receiver; the request was sent anyway.
            if accepted.send(result).is_err() {
                tracing::debug!(what, "the caller has dropped this request");
            }
        }
    }

    async fn send(&mut self, what: &str, request: TrainingRequest) -> SubmitResult {
        match request {
            TrainingRequest::Json { path, not_found, body, .. } => {
                let body = body(i64::from(self.number()));
                let call = HttpRequest::post(path, body, self.connection.timeouts.request);
                let submitted = self.connection.submit(what, call, not_found).await;
                self.keep_number_if_left(&submitted);
                Ok(vec![submitted?])
            }
            TrainingRequest::Pass(pass) => {
                let mut ids = Vec::new();
                for chunk in pass.chunk_ranges(&self.connection.config) {
                    let seq_id = self.number();
                    let sent = self.send_chunk(what, &pass, chunk, seq_id).await;
                    self.keep_number_if_left(&sent);
                    match sent {
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

    fn keep_number_if_left<T>(&mut self, sent: &Result<T, ClientError>) {
        if sent.as_ref().is_err_and(ClientError::leaves_number) {
            self.next -= 1;
        }
    }

    /// Sends one chunk with retries until it is accepted.
    async fn send_chunk(
        &self,
        what: &str,
        pass: &PassRequest,
        chunk: Range<usize>,
        seq_id: i32,
    ) -> Result<SubmittedRequest, ClientError> {
        let mut attempts = self.connection.attempts(what, "forward_backward", None);
        let chunk = PassChunk { what, pass, range: chunk, seq_id };
        loop {
            match self.try_wires(&chunk, &attempts).await {
                Ok((request_id, wire)) => {
                    let PassChunk { range, seq_id, .. } = chunk;
                    let model_id = self.model_id.clone();
                    let pass = pass.clone();
                    return Ok(SubmittedRequest {
                        request_id,
                        again: Box::new(move |connection| {
                            pass.call(connection, &model_id, range.clone(), seq_id, wire)
                        }),
                        maybe_executed: attempts.maybe_executed(),
                    });
                }
                Err(ChunkRejection::Failed(error)) => return Err(error),
                Err(ChunkRejection::Retry(reason)) => attempts.back_off(reason).await?,
            }
        }
    }

    /// Sends one attempt in the server's wire format; while that is a guess, tries the other one too. If both are
    /// rejected, returns the rejection of the likelier one. Returns the name of the result, and the wire format.
    async fn try_wires(
        &self,
        chunk: &PassChunk<'_>,
        attempts: &Attempts<'_>,
    ) -> Result<(String, WireFormat), ChunkRejection> {
        let (wire, other) = self.connection.wire.candidates();
        let rejection = match self.try_wire(chunk, wire, attempts).await {
            Ok(submitted) => return Ok(submitted),
            Err(rejection) => rejection,
        };
        match other {
            Some(other) if rejection.may_be_the_wire() => match self.try_wire(chunk, other, attempts).await {
                Err(ChunkRejection::Failed(_)) => Err(rejection),
                Err(rejection) => {
                    // It is still open whether this wire is the right one, so it is the first to be tried next time.
                    // Second again, it might never get through: SkyRL 0.3.0 resets a connection after a pass that it
                    // cannot read.
                    self.connection.wire.prefer(other);
                    Err(rejection)
                }
                accepted => accepted,
            },
            _ => Err(rejection),
        }
    }

    async fn try_wire(
        &self,
        chunk: &PassChunk<'_>,
        wire: WireFormat,
        attempts: &Attempts<'_>,
    ) -> Result<(String, WireFormat), ChunkRejection> {
        let PassChunk { what, pass, range, seq_id } = chunk;
        let connection = &self.connection;
        let call = pass
            .call(connection, &self.model_id, range.clone(), *seq_id, wire)
            .map_err(ChunkRejection::Failed)?;
        match connection
            .attempt(what, &connection.with_idempotency_key(call), NotFoundMeaning::Lost, attempts)
            .await
        {
            ResponseOutcome::Accepted(reply) => {
                let promise: FutureHandle = connection
                    .read(&reply)
                    .map_err(|why| ChunkRejection::Retry(RetryReason::Unreadable(why)))?;
                connection.wire.confirm(wire);
                Ok((promise.request_id, wire))
            }
            ResponseOutcome::Retry(reason) => Err(ChunkRejection::Retry(reason)),
            ResponseOutcome::Gone(why) => Err(ChunkRejection::Failed(ClientError::lost(what, why))),
            ResponseOutcome::Failed(error) => Err(ChunkRejection::Failed(error)),
        }
    }

    fn number(&mut self) -> i32 {
        self.next += 1;
        self.next - 1
    }
}

/// One chunk of a pass, sent as one request.
struct PassChunk<'a> {
    what: &'a str,
    pass: &'a PassRequest,
    range: Range<usize>,
    seq_id: i32,
}

/// Why a chunk was not accepted.
enum ChunkRejection {
    Retry(RetryReason),
    Failed(ClientError),
}

impl ChunkRejection {
    /// Whether the wire format may be the cause: a server that cannot read it rejects the request, or fails.
    fn may_be_the_wire(&self) -> bool {
        match self {
            Self::Failed(error) => {
                matches!(error, ClientError::Rejected { .. } | ClientError::Unsupported { .. })
            }
            Self::Retry(reason) => {
                matches!(reason, RetryReason::Failed { status: Some(500), .. })
            }
        }
    }
}
