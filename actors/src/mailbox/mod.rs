//! A mailbox: bounded sending to an actor, with a permit that travels with the message.
//!
//! At most `capacity` messages of a mailbox exist at any moment, queued or being processed: the sender takes a permit
//! first, and the receiver frees it by dropping it when the work is done. A send that was cancelled
//! while it waited has sent nothing; a send that returned cannot be cancelled. A message that is dropped unopened
//! is counted as lost.
//!
//! Only this module uses actix's own ways of sending and starting; `docs/mailboxes.md` gives the reasons.

mod launch;

use actix::{Actor, Addr, Context, Handler, Message, Recipient};
pub use launch::{
    StageExit, StageHandle, catch_panic, launch, panic_message, spawn_watched, spawn_watched_local,
};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

/// Creates a mailbox: the end that stages send to, and the end that is bound to its actor.
#[must_use]
pub fn mailbox<M: Send + 'static>(
    name: &'static str,
    capacity: NonZeroUsize,
) -> (MailboxSender<M>, MailboxReceiver<M>) {
    let shared = Arc::new(MailboxState {
        name,
        capacity: capacity.get(),
        permits: Arc::new(Semaphore::new(capacity.get())),
        sent: AtomicU64::new(0),
        lost: AtomicU64::new(0),
        waited_nanos: AtomicU64::new(0),
    });
    let (receiver, seen) = watch::channel(ReceiverState::Unbound);
    (MailboxSender { shared: shared.clone(), receiver: seen }, MailboxReceiver { shared, receiver })
}

/// What both ends of a mailbox share: its permits and its counts.
struct MailboxState {
    name: &'static str,
    capacity: usize,
    permits: Arc<Semaphore>,
    sent: AtomicU64,
    lost: AtomicU64,
    waited_nanos: AtomicU64,
}

/// Where the mailbox delivers at present.
enum ReceiverState<M: Send + 'static> {
    /// Not launched yet, or between two actors: senders wait.
    Unbound,
    Open(Recipient<StageMessage<M>>),
    /// For good: senders get their message back.
    Closed,
}

/// Traffic of a mailbox so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MailboxStats {
    /// Name of the mailbox in metrics.
    pub name: &'static str,
    /// Most messages at a time.
    pub capacity: usize,
    /// Messages queued or being processed.
    pub depth: usize,
    /// Messages sent so far.
    pub sent: u64,
    /// Messages dropped without being opened.
    pub lost: u64,
    /// Seconds that senders have waited for a permit.
    pub waited_s: f64,
}

/// The receiver has stopped for good; returns the message.
#[derive(Debug, Error)]
#[error("the receiver of this mailbox has stopped")]
pub struct SendError<M>(pub M);

/// A message in transit, and the permit it occupies.
pub struct StageMessage<M> {
    content: Option<M>,
    permit: Option<MailboxPermit>,
    shared: Arc<MailboxState>,
}

impl<M> StageMessage<M> {
    /// Takes the message out. Keep the permit as long as the work lasts.
    pub fn open(mut self) -> (M, MailboxPermit) {
        let content = self.content.take().expect("a message is opened once, by value");
        let permit = self.permit.take().expect("a message is opened once, by value");
        (content, permit)
    }
}

impl<M> Drop for StageMessage<M> {
    fn drop(&mut self) {
        if self.content.is_some() {
            self.shared.lost.fetch_add(1, Relaxed);
        }
    }
}

impl<M: Send + 'static> Message for StageMessage<M> {
    type Result = ();
}

/// Room for one message in a mailbox; dropping it makes room for the next.
#[must_use = "dropping the permit makes room for the next message"]
pub struct MailboxPermit {
    _permit: OwnedSemaphorePermit,
}

/// The sending end. Cheap to clone.
pub struct MailboxSender<M: Send + 'static> {
    shared: Arc<MailboxState>,
    receiver: watch::Receiver<ReceiverState<M>>,
}

impl<M: Send + 'static> Clone for MailboxSender<M> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), receiver: self.receiver.clone() }
    }
}

impl<M: Send + 'static> MailboxSender<M> {
    /// Waits for a permit, then hands the message over.
    ///
    /// # Errors
    /// Gives the message back when the receiver has gone for good.
    pub async fn send(&self, message: M) -> Result<(), SendError<M>> {
        match self.reserve().await {
            Some(permit) => permit.send(message).await,
            None => Err(SendError(message)),
        }
    }

    /// Waits for a permit without a message; `None` when the receiver has gone for good. For senders that want to
    /// choose the message only when it can leave.
    pub async fn reserve(&self) -> Option<SendPermit<M>> {
        let asked = Instant::now();
        let acquired = self.shared.permits.clone().acquire_owned().await;
        self.shared.waited_nanos.fetch_add(asked.elapsed().as_nanos() as u64, Relaxed);
        Some(SendPermit { permit: MailboxPermit { _permit: acquired.ok()? }, sender: self.clone() })
    }

    /// Waits until the receiver has gone for good. A sender can then stop work whose result would be discarded.
    pub async fn closed(&self) {
        let mut receiver = self.receiver.clone();
        // An error means the same: the receiver has gone.
        drop(receiver.wait_for(|receiver| matches!(receiver, ReceiverState::Closed)).await);
    }

    /// Traffic of the mailbox so far.
    #[must_use]
    pub fn stats(&self) -> MailboxStats {
        self.shared.stats()
    }

    /// A reader of the mailbox that does not hold it open.
    #[must_use]
    pub fn gauge(&self) -> MailboxGauge {
        MailboxGauge(self.shared.clone())
    }
}

/// Reads the traffic of a mailbox. Cheap to clone.
#[derive(Clone)]
pub struct MailboxGauge(Arc<MailboxState>);

impl MailboxGauge {
    /// Traffic of the mailbox so far.
    #[must_use]
    pub fn stats(&self) -> MailboxStats {
        self.0.stats()
    }
}

/// A permit for one message.
pub struct SendPermit<M: Send + 'static> {
    permit: MailboxPermit,
    sender: MailboxSender<M>,
}

impl<M: Send + 'static> SendPermit<M> {
    /// Hands the message over. Waits only while the receiver is between two actors.
    ///
    /// # Errors
    /// Gives the message back when the receiver has gone for good.
    pub async fn send(self, message: M) -> Result<(), SendError<M>> {
        let MailboxSender { shared, mut receiver } = self.sender;
        let mut message =
            StageMessage { content: Some(message), permit: Some(self.permit), shared: shared.clone() };
        loop {
            let recipient = match &*receiver.borrow_and_update() {
                ReceiverState::Open(recipient) => Some(recipient.clone()),
                ReceiverState::Unbound => None,
                ReceiverState::Closed => return Err(SendError(message.open().0)),
            };
            if let Some(recipient) = recipient {
                // A fresh clone always has room (docs/mailboxes.md, A3); the permit is the bound.
                #[expect(clippy::disallowed_methods, reason = "the mailbox module is where this is allowed")]
                match recipient.try_send(message) {
                    Ok(()) => {
                        shared.sent.fetch_add(1, Relaxed);
                        return Ok(());
                    }
                    // The actor died and its successor is not bound yet.
                    Err(actix::prelude::SendError::Full(back) | actix::prelude::SendError::Closed(back)) => {
                        message = back;
                    }
                }
            }
            if receiver.changed().await.is_err() {
                return Err(SendError(message.open().0));
            }
        }
    }
}

impl MailboxState {
    fn stats(&self) -> MailboxStats {
        MailboxStats {
            name: self.name,
            capacity: self.capacity,
            depth: self.capacity.saturating_sub(self.permits.available_permits()),
            sent: self.sent.load(Relaxed),
            lost: self.lost.load(Relaxed),
            waited_s: self.waited_nanos.load(Relaxed) as f64 * 1e-9,
        }
    }
}

/// The receiving end: binds the mailbox to its actor. Dropping it closes the mailbox, so that no sender waits for a
/// permit of a mailbox that no actor will ever empty.
pub struct MailboxReceiver<M: Send + 'static> {
    shared: Arc<MailboxState>,
    receiver: watch::Sender<ReceiverState<M>>,
}

impl<M: Send + 'static> MailboxReceiver<M> {
    /// Delivers to this actor from now on.
    pub fn bind<A>(&self, addr: &Addr<A>)
    where
        A: Actor<Context = Context<A>> + Handler<StageMessage<M>>,
    {
        self.receiver.send_if_modified(|receiver| {
            let closed = matches!(receiver, ReceiverState::Closed);
            if !closed {
                *receiver = ReceiverState::Open(addr.clone().recipient());
            }
            !closed
        });
    }

    /// Refuses new messages for good; those in the mailbox are still processed.
    pub fn close(&self) {
        self.receiver.send_replace(ReceiverState::Closed);
        self.shared.permits.close();
    }

    /// Traffic of the mailbox so far.
    #[must_use]
    pub fn stats(&self) -> MailboxStats {
        self.shared.stats()
    }
}

impl<M: Send + 'static> Drop for MailboxReceiver<M> {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
