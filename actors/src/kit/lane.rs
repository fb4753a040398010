//! A lane: bounded sending to an actor, with a slot that travels with the message.
//!
//! At most `capacity` parcels of a lane exist at any moment, queued or in work: a slot is taken before the message
//! leaves and becomes free when the receiver drops it, which is when the work is done. A send that was cancelled
//! while it waited has sent nothing; a send that returned cannot be cancelled. A parcel that is dropped unopened
//! is counted as lost.

use actix::{Actor, Addr, Context, Handler, Message, Recipient};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

/// Makes a lane. The inlet goes to whoever launches the receiver, outlets to the senders.
#[must_use]
pub fn lane<M: Send + 'static>(name: &'static str, capacity: NonZeroUsize) -> (Outlet<M>, Inlet<M>) {
    let shared = Arc::new(Shared {
        name,
        capacity: capacity.get(),
        slots: Arc::new(Semaphore::new(capacity.get())),
        sent: AtomicU64::new(0),
        lost: AtomicU64::new(0),
        waited_nanos: AtomicU64::new(0),
    });
    let (door, seen) = watch::channel(Door::Unbound);
    (Outlet { shared: shared.clone(), door: seen }, Inlet { shared, door })
}

struct Shared {
    name: &'static str,
    capacity: usize,
    slots: Arc<Semaphore>,
    sent: AtomicU64,
    lost: AtomicU64,
    waited_nanos: AtomicU64,
}

/// Where the receiver lives at present.
enum Door<M: Send + 'static> {
    /// Not launched yet, or between two lives: senders wait.
    Unbound,
    Open(Recipient<Parcel<M>>),
    /// For good: senders get their message back.
    Closed,
}

/// What a lane has carried so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneStats {
    /// The lane's name.
    pub name: &'static str,
    /// Most parcels at once.
    pub capacity: usize,
    /// Parcels queued or in work.
    pub depth: usize,
    /// Messages sent.
    pub sent: u64,
    /// Parcels dropped unopened.
    pub lost: u64,
    /// Seconds that senders have waited for room.
    pub waited_s: f64,
}

/// The receiver has gone for good; here is the message.
#[derive(Debug, Error)]
#[error("the receiver of this lane has gone")]
pub struct SendError<M>(pub M);

/// A message on its way, and the slot it occupies.
pub struct Parcel<M> {
    content: Option<M>,
    slot: Option<Slot>,
    shared: Arc<Shared>,
}

impl<M> Parcel<M> {
    /// Takes the message out. Keep the slot as long as the work lasts.
    pub fn open(mut self) -> (M, Slot) {
        let content = self.content.take().expect("a parcel is opened once, by value");
        let slot = self.slot.take().expect("a parcel is opened once, by value");
        (content, slot)
    }
}

impl<M> Drop for Parcel<M> {
    fn drop(&mut self) {
        if self.content.is_some() {
            self.shared.lost.fetch_add(1, Relaxed);
        }
    }
}

impl<M: Send + 'static> Message for Parcel<M> {
    type Result = ();
}

/// One place in a lane; dropping it makes room.
#[must_use = "dropping the slot makes room for the next message"]
pub struct Slot {
    _permit: OwnedSemaphorePermit,
}

/// The sending end. Cheap to clone.
pub struct Outlet<M: Send + 'static> {
    shared: Arc<Shared>,
    door: watch::Receiver<Door<M>>,
}

impl<M: Send + 'static> Clone for Outlet<M> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), door: self.door.clone() }
    }
}

impl<M: Send + 'static> Outlet<M> {
    /// Waits for room, then hands the message over.
    ///
    /// # Errors
    /// Gives the message back when the receiver has gone for good.
    pub async fn send(&self, message: M) -> Result<(), SendError<M>> {
        match self.reserve().await {
            Some(room) => room.send(message).await,
            None => Err(SendError(message)),
        }
    }

    /// Waits for room without a message; `None` when the receiver has gone for good. For senders that want to
    /// choose the message only when it can leave.
    pub async fn reserve(&self) -> Option<Room<M>> {
        let asked = Instant::now();
        let permit = self.shared.slots.clone().acquire_owned().await;
        self.shared.waited_nanos.fetch_add(asked.elapsed().as_nanos() as u64, Relaxed);
        Some(Room { slot: Slot { _permit: permit.ok()? }, outlet: self.clone() })
    }

    /// Waits until the receiver has gone for good. Work whose result nobody will take can end with it.
    pub async fn closed(&self) {
        let mut door = self.door.clone();
        // An error says the same: the inlet has gone.
        drop(door.wait_for(|door| matches!(door, Door::Closed)).await);
    }

    /// What the lane has carried.
    #[must_use]
    pub fn stats(&self) -> LaneStats {
        self.shared.stats()
    }

    /// Reads the lane from anywhere, without holding it open.
    #[must_use]
    pub fn gauge(&self) -> LaneGauge {
        LaneGauge(self.shared.clone())
    }
}

/// Reads a lane. Cheap to clone.
#[derive(Clone)]
pub struct LaneGauge(Arc<Shared>);

impl LaneGauge {
    /// What the lane has carried.
    #[must_use]
    pub fn stats(&self) -> LaneStats {
        self.0.stats()
    }
}

/// Room for one message.
pub struct Room<M: Send + 'static> {
    slot: Slot,
    outlet: Outlet<M>,
}

impl<M: Send + 'static> Room<M> {
    /// Hands the message over. Waits only while the receiver is between two lives.
    ///
    /// # Errors
    /// Gives the message back when the receiver has gone for good.
    pub async fn send(self, message: M) -> Result<(), SendError<M>> {
        let Outlet { shared, mut door } = self.outlet;
        let mut parcel = Parcel { content: Some(message), slot: Some(self.slot), shared: shared.clone() };
        loop {
            let recipient = match &*door.borrow_and_update() {
                Door::Open(recipient) => Some(recipient.clone()),
                Door::Unbound => None,
                Door::Closed => return Err(SendError(parcel.open().0)),
            };
            if let Some(recipient) = recipient {
                // A fresh clone always has room (docs/mailboxes.md, A3); the slot is the bound.
                #[expect(clippy::disallowed_methods, reason = "the kit is where this is allowed")]
                match recipient.try_send(parcel) {
                    Ok(()) => {
                        shared.sent.fetch_add(1, Relaxed);
                        return Ok(());
                    }
                    // The actor died and its successor is not bound yet.
                    Err(actix::prelude::SendError::Full(back) | actix::prelude::SendError::Closed(back)) => {
                        parcel = back;
                    }
                }
            }
            if door.changed().await.is_err() {
                return Err(SendError(parcel.open().0));
            }
        }
    }
}

impl Shared {
    fn stats(&self) -> LaneStats {
        LaneStats {
            name: self.name,
            capacity: self.capacity,
            depth: self.capacity.saturating_sub(self.slots.available_permits()),
            sent: self.sent.load(Relaxed),
            lost: self.lost.load(Relaxed),
            waited_s: self.waited_nanos.load(Relaxed) as f64 * 1e-9,
        }
    }
}

/// The receiving end: says where the receiver lives. Dropping it closes the lane, so that nobody waits for room in
/// a lane that no actor will ever empty.
pub struct Inlet<M: Send + 'static> {
    shared: Arc<Shared>,
    door: watch::Sender<Door<M>>,
}

impl<M: Send + 'static> Inlet<M> {
    /// Sends to this actor from now on.
    pub fn bind<A>(&self, addr: &Addr<A>)
    where
        A: Actor<Context = Context<A>> + Handler<Parcel<M>>,
    {
        self.door.send_if_modified(|door| {
            let closed = matches!(door, Door::Closed);
            if !closed {
                *door = Door::Open(addr.clone().recipient());
            }
            !closed
        });
    }

    /// Refuses new messages for good; those in the lane are still worked off.
    pub fn close(&self) {
        self.door.send_replace(Door::Closed);
        self.shared.slots.close();
    }

    /// What the lane has carried.
    #[must_use]
    pub fn stats(&self) -> LaneStats {
        self.shared.stats()
    }
}

impl<M: Send + 'static> Drop for Inlet<M> {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
