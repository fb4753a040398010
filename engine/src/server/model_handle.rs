//! One model in training: it takes requests in, puts them in order, carries one out after the other.
//!
//! A repeated request is recognised by its number and gets the promise of the first. Of each model one request at a
//! time is in the engine's queue, so that models share the engine turn by turn, however much one of them asks for.

use super::api_error::ApiError;
use super::futures::{FutureTable, ResultPromise};
use super::operation::ModelOperation;
use super::order::RequestOrder;
use super::outcome::RequestOutcome;
use super::state::{AdapterReservation, ServerState};
use crate::embedded::EmbeddedTraining;
use minds_core::lora::LoraSpec;
use minds_core::service::{BackendError, Pending};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

/// Requests whose repetition is recognised.
const REMEMBERED: usize = 4096;

/// A request in its place.
#[derive(Debug)]
struct QueuedRequest {
    number: Option<u64>,
    operation: ModelOperation,
    promise: ResultPromise,
}

/// The address of a model.
#[derive(Debug)]
pub(super) struct ModelHandle {
    id: String,
    session: String,
    spec: LoraSpec,
    dedupe: Mutex<Dedupe>,
    used: Mutex<Instant>,
    /// Whether an `unload_model` is queued.
    unloading: AtomicBool,
}

#[derive(Debug)]
struct Dedupe {
    sender: UnboundedSender<QueuedRequest>,
    seen: BTreeMap<u64, (&'static str, String)>,
    /// Numbers below are forgotten.
    floor: u64,
}

/// What a new model consists of.
pub(super) struct NewModel {
    pub(super) id: String,
    pub(super) session: String,
    pub(super) spec: LoraSpec,
    /// The adapter's room.
    pub(super) reservation: AdapterReservation,
    /// Makes the adapter.
    pub(super) training: Pending<EmbeddedTraining>,
    /// The promise of the model, and how it is kept.
    pub(super) promise: ResultPromise,
    pub(super) made: RequestOutcome,
}

impl ModelHandle {
    /// Begins to make the model. Requests may come at once.
    pub(super) fn open(new_model: NewModel, server: &Arc<ServerState>) -> Arc<Self> {
        let (sender, inbox) = unbounded_channel();
        let dedupe = Mutex::new(Dedupe { sender, seen: BTreeMap::new(), floor: 1 });
        let NewModel { id, session, spec, reservation, training, promise, made } = new_model;
        let used = Mutex::new(Instant::now());
        let unloading = AtomicBool::new(false);
        let handle = Arc::new(Self { id, session, spec, dedupe, used, unloading });
        let task = ModelTask {
            id: handle.id.clone(),
            inbox,
            order: RequestOrder::new(),
            server: Arc::downgrade(server),
            _reservation: reservation,
        };
        tokio::spawn(task.run(training, promise, made, server.options().gap));
        handle
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn session(&self) -> &str {
        &self.session
    }

    pub(super) fn spec(&self) -> &LoraSpec {
        &self.spec
    }

    /// Whether the model has been asked to go.
    pub(super) fn is_unloading(&self) -> bool {
        self.unloading.load(Ordering::Relaxed)
    }

    /// When it was last asked for something.
    pub(super) fn used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a request in; answers with the name of its result. A number of 0 is none.
    pub(super) fn submit(
        &self,
        futures: &Arc<FutureTable>,
        number: Option<i64>,
        bytes: usize,
        operation: ModelOperation,
    ) -> Result<String, ApiError> {
        let number = match number {
            None | Some(0) => None,
            Some(number) => Some(
                u64::try_from(number)
                    .map_err(|_| ApiError::bad_request(format!("seq_id is {number}, it counts from 1")))?,
            ),
        };
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let mut dedupe = self.dedupe.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = number {
            match dedupe.seen.get(&number) {
                Some((kind, id)) if *kind == operation.kind() => return Ok(id.clone()),
                Some((kind, _)) => {
                    return Err(ApiError::bad_request(format!(
                        "request {number} of {} was a {kind} and now is a {}",
                        self.id,
                        operation.kind()
                    )));
                }
                None if number < dedupe.floor => {
                    return Err(ApiError::bad_request(format!(
                        "request {number} of {} is long over",
                        self.id
                    )));
                }
                None => {}
            }
        }
        let promise = futures.promise(&self.session, bytes)?;
        if matches!(operation, ModelOperation::Unload(_)) {
            self.unloading.store(true, Ordering::Relaxed);
        }
        let id = promise.id();
        if let Some(number) = number {
            dedupe.seen.insert(number, (operation.kind(), id.clone()));
            if dedupe.seen.len() > REMEMBERED
                && let Some((forgotten, _)) = dedupe.seen.pop_first()
            {
                dedupe.floor = forgotten + 1;
            }
        }
        // A handle that has closed, or whose model could not be made, drops the request, and with it the promise: that is a
        // failure, but for one that asks for nothing more than that.
        if let Err(SendError(QueuedRequest { operation: ModelOperation::Unload(request), promise, .. })) =
            dedupe.sender.send(QueuedRequest { number, operation, promise })
        {
            promise.fulfill(RequestOutcome::json(&request));
        }
        Ok(id)
    }
}

/// Runs the operations of one model in order. Ends when its handle is dropped.
struct ModelTask {
    id: String,
    inbox: UnboundedReceiver<QueuedRequest>,
    order: RequestOrder<QueuedRequest>,
    server: Weak<ServerState>,
    /// Kept as long as there is work, also when the handle is gone.
    _reservation: AdapterReservation,
}

impl ModelTask {
    async fn run(
        mut self,
        training: Pending<EmbeddedTraining>,
        promise: ResultPromise,
        made: RequestOutcome,
        gap: Duration,
    ) {
        let training = match training.await {
            Ok(training) => training,
            Err(error) => {
                promise.fulfill(RequestOutcome::failed(&error));
                if let Some(server) = self.server.upgrade() {
                    server.models.close(&self.id);
                }
                return;
            }
        };
        promise.fulfill(made);
        while let Some(queued) = self.next(gap).await {
            let QueuedRequest { operation, promise, .. } = queued;
            let is_last = matches!(operation, ModelOperation::Unload(_));
            let outcome = operation.run(&training, &self.server).await;
            if is_last {
                self.unload();
            }
            promise.fulfill(outcome.unwrap_or_else(|error| RequestOutcome::failed(&error)));
            if is_last {
                return;
            }
        }
    }

    /// Unloads the model. Of the requests queued behind, a repeated `unload_model` succeeds and all others are refused.
    fn unload(&mut self) {
        if let Some(server) = self.server.upgrade() {
            server.models.close(&self.id);
        }
        self.inbox.close();
        let mut behind = self.order.drain();
        while let Ok(queued) = self.inbox.try_recv() {
            behind.push(queued);
        }
        for queued in behind {
            match &queued.operation {
                ModelOperation::Unload(request) => {
                    let outcome = RequestOutcome::json(request);
                    queued.promise.fulfill(outcome);
                }
                _ => refuse(queued, &format!("{} was unloaded before it", self.id)),
            }
        }
    }

    /// The next request whose turn it is; `None` when the handle is gone.
    async fn next(&mut self, gap: Duration) -> Option<QueuedRequest> {
        let mut deadline: Option<Instant> = None;
        loop {
            if let Some(queued) = self.order.next() {
                return Some(queued);
            }
            // The time begins when there is nothing else to do, not when the first request was parked.
            let until = *deadline.get_or_insert_with(|| Instant::now() + gap);
            if !self.order.has_gap() {
                deadline = None;
            }
            let arrived = tokio::select! {
                biased;
                arrived = self.inbox.recv() => arrived?,
                () = sleep_until(until), if self.order.has_gap() => {
                    let (missing, late) = self.order.give_up();
                    for queued in late {
                        refuse(queued, &format!(
                            "request {missing} of {} did not arrive within {} s, and this one had to wait for it",
                            self.id, gap.as_secs()
                        ));
                    }
                    continue;
                }
            };
            let number = arrived.number;
            if let Err(queued) = self.order.offer(number, arrived) {
                refuse(queued, &format!("it came too late: requests behind it were given up at {}", self.id));
            }
        }
    }
}

fn refuse(queued: QueuedRequest, why: &str) {
    queued.promise.fulfill(RequestOutcome::failed(&BackendError::Rejected(why.into())));
}
