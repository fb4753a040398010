//! One model in training: it takes requests in, puts them in order, carries one out after the other.
//!
//! A repeated request is recognised by its number and gets the promise of the first. Of each model one request at a
//! time is in the engine's queue, so that models share the engine turn by turn, however much one of them asks for.

use super::futures::{Futures, Promise};
use super::order::Order;
use super::outcome::Outcome;
use super::refusal::Refusal;
use super::state::{Seat, Server};
use super::work::Work;
use crate::local::LocalTraining;
use minds_core::backend::{BackendError, Pending};
use minds_core::lora::LoraSpec;
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
struct Errand {
    number: Option<u64>,
    work: Work,
    promise: Promise,
}

/// The address of a model.
#[derive(Debug)]
pub(super) struct Desk {
    id: String,
    session: String,
    spec: LoraSpec,
    intake: Mutex<Intake>,
    used: Mutex<Instant>,
    /// Whether an `unload_model` is queued.
    leaving: AtomicBool,
}

#[derive(Debug)]
struct Intake {
    errands: UnboundedSender<Errand>,
    seen: BTreeMap<u64, (&'static str, String)>,
    /// Numbers below are forgotten.
    floor: u64,
}

/// What a desk needs to open.
pub(super) struct Opening {
    pub(super) id: String,
    pub(super) session: String,
    pub(super) spec: LoraSpec,
    /// The adapter's room.
    pub(super) seat: Seat,
    /// Makes the adapter.
    pub(super) training: Pending<LocalTraining>,
    /// The promise of the model, and how it is kept.
    pub(super) promise: Promise,
    pub(super) made: Outcome,
}

impl Desk {
    /// Begins to make the model. Requests may come at once.
    pub(super) fn open(opening: Opening, server: &Arc<Server>) -> Arc<Self> {
        let (errands, inbox) = unbounded_channel();
        let intake = Mutex::new(Intake { errands, seen: BTreeMap::new(), floor: 1 });
        let Opening { id, session, spec, seat, training, promise, made } = opening;
        let used = Mutex::new(Instant::now());
        let leaving = AtomicBool::new(false);
        let desk = Arc::new(Self { id, session, spec, intake, used, leaving });
        let clerk = Clerk {
            id: desk.id.clone(),
            inbox,
            order: Order::new(),
            server: Arc::downgrade(server),
            _seat: seat,
        };
        tokio::spawn(clerk.serve(training, promise, made, server.options().gap));
        desk
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
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// When it was last asked for something.
    pub(super) fn used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a request in; answers with the name of its result. A number of 0 is none.
    pub(super) fn submit(
        &self,
        futures: &Arc<Futures>,
        number: Option<i64>,
        bytes: usize,
        work: Work,
    ) -> Result<String, Refusal> {
        let number = match number {
            None | Some(0) => None,
            Some(number) => Some(
                u64::try_from(number)
                    .map_err(|_| Refusal::bad(format!("seq_id is {number}, it counts from 1")))?,
            ),
        };
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let mut intake = self.intake.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = number {
            match intake.seen.get(&number) {
                Some((kind, id)) if *kind == work.kind() => return Ok(id.clone()),
                Some((kind, _)) => {
                    return Err(Refusal::bad(format!(
                        "request {number} of {} was a {kind} and now is a {}",
                        self.id,
                        work.kind()
                    )));
                }
                None if number < intake.floor => {
                    return Err(Refusal::bad(format!("request {number} of {} is long over", self.id)));
                }
                None => {}
            }
        }
        let promise = futures.promise(&self.session, bytes)?;
        if matches!(work, Work::Unload(_)) {
            self.leaving.store(true, Ordering::Relaxed);
        }
        let id = promise.id();
        if let Some(number) = number {
            intake.seen.insert(number, (work.kind(), id.clone()));
            if intake.seen.len() > REMEMBERED
                && let Some((forgotten, _)) = intake.seen.pop_first()
            {
                intake.floor = forgotten + 1;
            }
        }
        // A desk that has closed, or whose model could not be made, drops the errand, and with it the promise: that is a
        // failure, but for one that asks for nothing more than that.
        if let Err(SendError(Errand { work: Work::Unload(request), promise, .. })) =
            intake.errands.send(Errand { number, work, promise })
        {
            promise.keep(Outcome::json(&request));
        }
        Ok(id)
    }
}

/// Who works at a desk. It ends when the desk is gone.
struct Clerk {
    id: String,
    inbox: UnboundedReceiver<Errand>,
    order: Order<Errand>,
    server: Weak<Server>,
    /// Kept as long as there is work, also when the desk is gone.
    _seat: Seat,
}

impl Clerk {
    async fn serve(
        mut self,
        training: Pending<LocalTraining>,
        promise: Promise,
        made: Outcome,
        gap: Duration,
    ) {
        let training = match training.await {
            Ok(training) => training,
            Err(error) => {
                promise.keep(Outcome::failed(&error));
                if let Some(server) = self.server.upgrade() {
                    server.models.close(&self.id);
                }
                return;
            }
        };
        promise.keep(made);
        while let Some(errand) = self.next(gap).await {
            let Errand { work, promise, .. } = errand;
            let is_last = matches!(work, Work::Unload(_));
            let outcome = work.run(&training, &self.server).await;
            if is_last {
                self.leave();
            }
            promise.keep(outcome.unwrap_or_else(|error| Outcome::failed(&error)));
            if is_last {
                return;
            }
        }
    }

    /// Unloads the model. Of the requests queued behind, a repeated `unload_model` succeeds and all others are refused.
    fn leave(&mut self) {
        if let Some(server) = self.server.upgrade() {
            server.models.close(&self.id);
        }
        self.inbox.close();
        let mut behind = self.order.drain();
        while let Ok(errand) = self.inbox.try_recv() {
            behind.push(errand);
        }
        for errand in behind {
            match &errand.work {
                Work::Unload(request) => {
                    let outcome = Outcome::json(request);
                    errand.promise.keep(outcome);
                }
                _ => refuse(errand, &format!("{} was unloaded before it", self.id)),
            }
        }
    }

    /// The next request whose turn it is; `None` when the desk is gone.
    async fn next(&mut self, gap: Duration) -> Option<Errand> {
        let mut patience: Option<Instant> = None;
        loop {
            if let Some(errand) = self.order.next() {
                return Some(errand);
            }
            // The time begins when there is nothing else to do, not when the first request was parked.
            let until = *patience.get_or_insert_with(|| Instant::now() + gap);
            if !self.order.has_gap() {
                patience = None;
            }
            let arrived = tokio::select! {
                biased;
                arrived = self.inbox.recv() => arrived?,
                () = sleep_until(until), if self.order.has_gap() => {
                    let (missing, late) = self.order.give_up();
                    for errand in late {
                        refuse(errand, &format!(
                            "request {missing} of {} did not arrive within {} s, and this one had to wait for it",
                            self.id, gap.as_secs()
                        ));
                    }
                    continue;
                }
            };
            let number = arrived.number;
            if let Err(errand) = self.order.offer(number, arrived) {
                refuse(errand, &format!("it came too late: requests behind it were given up at {}", self.id));
            }
        }
    }
}

fn refuse(errand: Errand, why: &str) {
    errand.promise.keep(Outcome::failed(&BackendError::Rejected(why.into())));
}
