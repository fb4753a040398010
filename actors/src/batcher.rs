//! Joins members into groups, and groups into batches.
//!
//! A group is complete when every member has left the scorer. Advantages are centred over those that have a reward,
//! by member, never by position. Data are built as each group completes, on the pool of threads. A batch holds the
//! oldest complete groups at the moment when the trainer has room, and leaves only once every group that is left
//! behind can still be trained before it is too old.

mod book;
mod patience;

use crate::kit::{Board, CpuPool, Outlet, Parcel};
use crate::ledger::Verdict;
use crate::parcels::{Batch, Judged, ReadyGroup};
use actix::fut::ActorFutureExt;
use actix::prelude::{Actor, AsyncContext, Context, Handler, WrapFuture};
use book::{GroupBook, ReadyBook};
use minds_core::advantage::Estimator;
pub use patience::Patience;
use std::num::NonZeroUsize;
use tracing::warn;

const NAME: &str = "batcher";

/// How groups become batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Groups per optimizer step.
    pub groups_per_batch: NonZeroUsize,
    /// How rewards become advantages.
    pub estimator: Estimator,
    /// What becomes of a group whose rewards are all equal.
    pub constant: ConstantGroups,
    /// Fewest members with a reward, as a share of the group, for the group to be trained.
    pub min_share: f64,
}

/// What becomes of a group whose rewards are all equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConstantGroups {
    /// It takes its place in the batch; its gradient is zero.
    #[default]
    Keep,
    /// It leaves, and another group is opened in its place.
    Replace,
}

/// The fourth stage.
pub struct AdvantageBatcher {
    /// How groups become batches.
    pub options: Options,
    /// Threads for building data.
    pub pool: CpuPool,
    /// Where the stage tells how it is.
    pub board: Board,
    /// To the trainer.
    pub batches: Outlet<Batch>,
    /// Groups with members still out.
    open: GroupBook,
    /// Groups that wait for their batch.
    ready: ReadyBook,
    /// Whether a batch is waiting for the trainer to have room.
    sending: bool,
    patience: Patience,
}

impl AdvantageBatcher {
    /// Nothing collected yet.
    #[must_use]
    pub fn new(
        options: Options,
        patience: Patience,
        pool: CpuPool,
        board: Board,
        batches: Outlet<Batch>,
    ) -> Self {
        let (open, ready) = (GroupBook::default(), ReadyBook::default());
        Self { options, pool, board, batches, open, ready, sending: false, patience }
    }
}

impl Actor for AdvantageBatcher {
    type Context = Context<Self>;
}

impl Handler<Parcel<Judged>> for AdvantageBatcher {
    type Result = ();

    fn handle(&mut self, parcel: Parcel<Judged>, ctx: &mut Self::Context) {
        // What is collected here is bounded by the credits; the slot can go at once.
        let (judged, _slot) = parcel.open();
        let Some(complete) = self.open.add(judged) else { return };
        self.board.update(NAME, |s| s.busy += 1);
        let (pool, options) = (self.pool.clone(), self.options);
        let group = complete.group.clone();
        let building =
            async move { pool.run(move || complete.build(options.estimator, options.min_share)).await };
        ctx.spawn(building.into_actor(self).map(move |built, stage, ctx| {
            stage.board.update(NAME, |s| s.busy -= 1);
            match built.map_err(|e| e.to_string()).and_then(|b| b) {
                Ok(ready) => stage.collect(ready, ctx),
                Err(why) => {
                    warn!(group = %group.id, %why, "group failed");
                    stage.board.update(NAME, |s| s.failed += 1);
                    group.credit.settle(&Verdict::Failed(why));
                }
            }
        }));
    }
}

impl AdvantageBatcher {
    fn collect(&mut self, ready: ReadyGroup, ctx: &mut Context<Self>) {
        self.board.update(NAME, |s| s.done += 1);
        ready.group.credit.ready();
        if ready.constant && self.options.constant == ConstantGroups::Replace {
            ready.group.credit.settle(&Verdict::Filtered);
            return;
        }
        self.ready.add(ready);
        self.offer(ctx);
    }

    /// Hands the next batch over as soon as the trainer has room. The batch is put together only then, so that it
    /// holds the oldest groups of that moment.
    fn offer(&mut self, ctx: &mut Context<Self>) {
        if self.sending || self.ready.len() < self.options.groups_per_batch.get() {
            return;
        }
        self.sending = true;
        let batches = self.batches.clone();
        let patience = self.patience.clone();
        let room = async move {
            let room = batches.reserve().await;
            patience.wait().await;
            room
        };
        ctx.spawn(room.into_actor(self).map(|room, stage, ctx| {
            stage.sending = false;
            // Without room for ever, the run is over: what is ready stays until the stage is dropped.
            let Some(room) = room else { return };
            let batch = Batch { groups: stage.ready.take(stage.options.groups_per_batch.get()) };
            batch.groups.iter().for_each(|group| group.group.credit.batched());
            // A batch that is refused makes this one too high, which only makes the next one wait longer.
            stage.patience.step += 1;
            let sending = async move { room.send(batch).await };
            ctx.spawn(sending.into_actor(stage).map(|sent, stage, ctx| match sent {
                Ok(()) => stage.offer(ctx),
                Err(back) => back.0.groups.into_iter().for_each(|group| stage.ready.add(group)),
            }));
        }));
    }
}
