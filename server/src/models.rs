//! The models in training: each accepts requests, orders them, and runs them one at a time.
//!
//! A repeated request is recognized by its number and gets the promise of the first. Each model has at most one request
//! in the queue of the engine, so models take turns, no matter how many requests one of them has. The memory of all
//! adapters is bounded.

use crate::api_error::ApiError;
use crate::futures::{FutureTable, ResultPromise};
use crate::operation::ModelOperation;
use crate::options::ServerOptions;
use crate::order::RequestOrder;
use crate::outcome::RequestOutcome;
use crate::samplers::SamplerRegistry;
use crate::sessions::SessionTable;
use minds_core::hosting::{HostedService, HostedTraining};
use minds_core::lora::LoraSpec;
use minds_core::service::{BackendError, Pending};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

/// Number of recent requests per model whose repetition is recognized.
const REMEMBERED: usize = 4096;

/// The models in training, bounded in bytes.
pub(crate) struct ModelTable {
    service: Arc<dyn HostedService>,
    sessions: Arc<SessionTable>,
    samplers: Arc<SamplerRegistry>,
    most: usize,
    /// Maximum time that requests of a model wait for an earlier-numbered one.
    gap: Duration,
    used: Arc<AtomicUsize>,
    handles: Mutex<HashMap<String, Arc<ModelHandle>>>,
}

/// Everything that a new model is created from.
pub(crate) struct NewModel {
    pub(crate) id: String,
    pub(crate) session: String,
    pub(crate) spec: LoraSpec,
    /// Memory that is reserved for the adapter.
    pub(crate) reservation: AdapterReservation,
    /// Future that creates the adapter, or loads it from a checkpoint.
    pub(crate) training: Pending<Arc<dyn HostedTraining>>,
    /// Promise of the request that creates the model; `made` fulfills it when the adapter exists.
    pub(crate) promise: ResultPromise,
    pub(crate) made: RequestOutcome,
}

/// Memory reserved for one adapter. The task of the model holds it, and dropping it frees the memory.
#[derive(Debug)]
pub(crate) struct AdapterReservation {
    bytes: usize,
    used: Arc<AtomicUsize>,
}

impl Drop for AdapterReservation {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl ModelTable {
    /// No models yet; `sessions` and `samplers` are those of the server.
    pub(crate) fn new(
        service: Arc<dyn HostedService>,
        sessions: Arc<SessionTable>,
        samplers: Arc<SamplerRegistry>,
        options: &ServerOptions,
    ) -> Arc<Self> {
        Arc::new(Self {
            service,
            sessions,
            samplers,
            most: options.adapter_bytes,
            gap: options.gap,
            used: Arc::default(),
            handles: Mutex::default(),
        })
    }

    /// Reserves memory for an adapter; an error if the limit would be exceeded.
    pub(crate) fn reserve(&self, spec: &LoraSpec) -> Result<AdapterReservation, ApiError> {
        let bytes = self.service.training_bytes(spec);
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.most);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(AdapterReservation { bytes, used: self.used.clone() }),
            // Models that are being unloaded will free enough memory.
            Err(_) if self.kept_bytes() + bytes <= self.most => Err(ApiError::too_many_requests(
                "an unloaded model is still in use; its slot is free after that",
            )),
            Err(used) => Err(ApiError::bad_request(format!(
                "models in training take {used} bytes, this one would take {bytes}, and {} are there: finish a \
                 session, or give the server more room for adapters",
                self.most
            ))),
        }
    }

    /// Bytes of the models that are not being unloaded.
    fn kept_bytes(&self) -> usize {
        let handles = self.handles.lock();
        let kept = handles.values().filter(|handle| !handle.unloading.load(Ordering::Relaxed));
        kept.map(|handle| self.service.training_bytes(handle.spec())).sum()
    }

    /// Starts to create a model. Its requests are accepted at once.
    pub(crate) fn open(self: &Arc<Self>, new_model: NewModel) {
        let NewModel { id, session, spec, reservation, training, promise, made } = new_model;
        let (sender, inbox) = unbounded_channel();
        let task = ModelTask {
            id: id.clone(),
            inbox,
            order: RequestOrder::new(),
            table: Arc::downgrade(self),
            sessions: self.sessions.clone(),
            samplers: self.samplers.clone(),
            gap: self.gap,
            _reservation: reservation,
        };
        let handle = ModelHandle {
            id: id.clone(),
            session,
            spec,
            dedupe: Mutex::new(RequestDeduplicator { sender, seen: BTreeMap::new(), floor: 0 }),
            used: Mutex::new(Instant::now()),
            unloading: AtomicBool::new(false),
        };
        self.handles.lock().insert(id, Arc::new(handle));
        tokio::spawn(task.run(training, promise, made));
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<ModelHandle>> {
        self.handles.lock().get(id).cloned()
    }

    pub(crate) fn end_session(&self, session: &str) {
        self.handles.lock().retain(|_, handle| handle.session() != session);
    }
}

/// A request that waits for its turn.
#[derive(Debug)]
struct QueuedRequest {
    number: Option<u64>,
    operation: ModelOperation,
    promise: ResultPromise,
}

/// Handle of a model, through which requests reach its task.
#[derive(Debug)]
pub(crate) struct ModelHandle {
    id: String,
    session: String,
    spec: LoraSpec,
    dedupe: Mutex<RequestDeduplicator>,
    used: Mutex<Instant>,
    /// Whether an `unload_model` is queued.
    unloading: AtomicBool,
}

/// Recognizes a request that a client sends again, by its number.
#[derive(Debug)]
struct RequestDeduplicator {
    sender: UnboundedSender<QueuedRequest>,
    seen: BTreeMap<u64, (&'static str, String)>,
    /// Requests with smaller numbers are not remembered.
    floor: u64,
}

impl ModelHandle {
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn session(&self) -> &str {
        &self.session
    }

    pub(crate) fn spec(&self) -> &LoraSpec {
        &self.spec
    }

    /// Time of the most recent request.
    pub(crate) fn used(&self) -> Instant {
        *self.used.lock()
    }

    /// Accepts a request and returns its request id.
    pub(crate) fn submit(
        &self,
        futures: &Arc<FutureTable>,
        number: Option<i64>,
        bytes: usize,
        operation: ModelOperation,
    ) -> Result<String, ApiError> {
        let negative = |number| ApiError::bad_request(format!("seq_id is {number}; it must not be negative"));
        let number = number.map(|number| u64::try_from(number).map_err(|_| negative(number))).transpose()?;
        *self.used.lock() = Instant::now();
        let mut dedupe = self.dedupe.lock();
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
        // If the task has ended, the request is dropped, and with it the promise, which reports a failure. An
        // `unload_model` succeeds instead, because the model is gone already.
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
    table: Weak<ModelTable>,
    sessions: Arc<SessionTable>,
    samplers: Arc<SamplerRegistry>,
    gap: Duration,
    /// Held until the task ends, even if the handle is dropped earlier.
    _reservation: AdapterReservation,
}

impl ModelTask {
    async fn run(
        mut self,
        training: Pending<Arc<dyn HostedTraining>>,
        promise: ResultPromise,
        made: RequestOutcome,
    ) {
        let training = match training.await {
            Ok(training) => training,
            Err(error) => {
                promise.fulfill(RequestOutcome::failed(&error));
                self.leave_table();
                return;
            }
        };
        promise.fulfill(made);
        self.run_requests(&*training).await;
        // It is executed even though nothing waits for it.
        drop(training.release());
    }

    /// Runs the requests in order, until the model is unloaded or its handle dropped.
    async fn run_requests(&mut self, training: &dyn HostedTraining) {
        while let Some(queued) = self.next().await {
            let QueuedRequest { operation, promise, .. } = queued;
            let is_last = matches!(operation, ModelOperation::Unload(_));
            let outcome = operation.run(training, &self.sessions, &self.samplers).await;
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
        self.leave_table();
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

    fn leave_table(&self) {
        if let Some(table) = self.table.upgrade() {
            table.handles.lock().remove(&self.id);
        }
    }

    /// Waits for the next request in order; `None` when the handle is dropped.
    async fn next(&mut self) -> Option<QueuedRequest> {
        let mut deadline: Option<Instant> = None;
        loop {
            if let Some(queued) = self.order.next() {
                return Some(queued);
            }
            // The timeout starts when no request is ready to run, not when the first one was parked.
            let until = *deadline.get_or_insert_with(|| Instant::now() + self.gap);
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
                            self.id, self.gap.as_secs()
                        ));
                    }
                    continue;
                }
            };
            let number = arrived.number;
            if let Err(queued) = self.order.offer(number, arrived) {
                refuse(
                    queued,
                    &format!("it arrived too late: requests after it have run or failed at {}", self.id),
                );
            }
        }
    }
}

fn refuse(queued: QueuedRequest, why: &str) {
    queued.promise.fulfill(RequestOutcome::failed(&BackendError::Rejected(why.into())));
}
