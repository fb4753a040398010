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
    #[must_use]
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

    /// What the lane has carried.
    #[must_use]
    pub fn stats(&self) -> LaneStats {
        self.shared.stats()
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

/// The receiving end: says where the receiver lives.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::launch;
    use actix::ActorContext;
    use tokio::sync::mpsc;
    use tokio::task::LocalSet;

    fn capacity(n: usize) -> NonZeroUsize {
        NonZeroUsize::new(n).unwrap()
    }

    /// Keeps the slots of all it receives, so that its lane fills up.
    struct Plug {
        held: mpsc::UnboundedSender<(u32, Slot)>,
    }
    impl Actor for Plug {
        type Context = Context<Self>;
    }
    impl Handler<Parcel<u32>> for Plug {
        type Result = ();
        fn handle(&mut self, parcel: Parcel<u32>, _: &mut Context<Self>) {
            let (message, slot) = parcel.open();
            assert_ne!(message, 13, "poison");
            self.held.send((message, slot)).unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_capacity_is_ever_under_way() {
        LocalSet::new()
            .run_until(async {
                let (outlet, inlet) = lane::<u32>("test", capacity(3));
                let (held, mut arrived) = mpsc::unbounded_channel();
                let _stage = launch(
                    "plug",
                    capacity(3),
                    0,
                    move || Plug { held: held.clone() },
                    move |a| inlet.bind(a),
                );
                for task in 0..10 {
                    let outlet = outlet.clone();
                    tokio::task::spawn_local(async move { outlet.send(task).await.unwrap() });
                }
                tokio::time::sleep(std::time::Duration::from_secs(60)).await;
                let mut first = Vec::new();
                while let Ok(item) = arrived.try_recv() {
                    first.push(item);
                }
                assert_eq!((first.len(), outlet.stats().depth), (3, 3));
                drop(first.pop());
                tokio::time::sleep(std::time::Duration::from_secs(60)).await;
                assert!(arrived.try_recv().is_ok(), "one slot made room for one message");
                assert!(arrived.try_recv().is_err());
            })
            .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_send_given_up_while_waiting_has_sent_nothing() {
        LocalSet::new()
            .run_until(async {
                let (outlet, inlet) = lane::<u32>("test", capacity(1));
                let (held, mut arrived) = mpsc::unbounded_channel();
                let _stage = launch(
                    "plug",
                    capacity(1),
                    0,
                    move || Plug { held: held.clone() },
                    move |a| inlet.bind(a),
                );
                outlet.send(1).await.unwrap();
                let limit = std::time::Duration::from_secs(1);
                assert!(tokio::time::timeout(limit, outlet.send(2)).await.is_err());
                drop(arrived.recv().await);
                outlet.send(3).await.unwrap();
                assert_eq!(arrived.recv().await.unwrap().0, 3);
                assert_eq!(outlet.stats().sent, 2);
            })
            .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_restarted_receiver_gets_what_was_not_in_its_mailbox_and_the_rest_is_counted() {
        LocalSet::new()
            .run_until(async {
                let (outlet, inlet) = lane::<u32>("test", capacity(4));
                let (held, mut arrived) = mpsc::unbounded_channel();
                let _stage = launch(
                    "plug",
                    capacity(4),
                    1,
                    move || Plug { held: held.clone() },
                    move |a| inlet.bind(a),
                );
                let sender = outlet.clone();
                let sending = tokio::task::spawn_local(async move {
                    for message in 0..40 {
                        sender.send(message).await.unwrap();
                    }
                });
                let mut seen = Vec::new();
                while !sending.is_finished() || !arrived.is_empty() {
                    let limit = std::time::Duration::from_secs(1);
                    if let Ok(Some((message, _slot))) = tokio::time::timeout(limit, arrived.recv()).await {
                        seen.push(message);
                    }
                }
                let lost = outlet.stats().lost as usize;
                assert!(!seen.contains(&13));
                assert!(lost < 4, "never more than were in the mailbox: {lost}");
                assert_eq!(seen.len() + lost + 1, 40, "39 and the poison");
                assert_eq!(outlet.stats().depth, 0, "every slot came back");
            })
            .await;
    }

    #[tokio::test]
    async fn a_closed_lane_gives_the_message_back() {
        let (outlet, inlet) = lane::<u32>("test", capacity(1));
        inlet.close();
        assert_eq!(outlet.send(7).await.unwrap_err().0, 7);
    }

    /// Stops itself on the first message.
    struct Quitter;
    impl Actor for Quitter {
        type Context = Context<Self>;
    }
    impl Handler<Parcel<u32>> for Quitter {
        type Result = ();
        fn handle(&mut self, _: Parcel<u32>, ctx: &mut Context<Self>) {
            ctx.stop();
        }
    }

    #[tokio::test]
    async fn the_warden_tells_an_end_from_a_panic() {
        LocalSet::new()
            .run_until(async {
                let (outlet, inlet) = lane::<u32>("test", capacity(1));
                let quitter = launch("quitter", capacity(1), 0, || Quitter, move |a| inlet.bind(a));
                outlet.send(1).await.unwrap();
                assert_eq!(quitter.ended().await, crate::kit::Exit::Finished);

                let (outlet, inlet) = lane::<u32>("test", capacity(1));
                let (held, _arrived) = mpsc::unbounded_channel();
                let plug = launch(
                    "plug",
                    capacity(1),
                    0,
                    move || Plug { held: held.clone() },
                    move |a| inlet.bind(a),
                );
                outlet.send(13).await.unwrap();
                let crate::kit::Exit::Panicked(why) = plug.ended().await else { panic!("not a panic") };
                assert!(why.contains("poison"), "{why}");
            })
            .await;
    }
}
