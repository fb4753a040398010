//! Joins members into groups, and groups into batches.
//!
//! A group is complete when every member has left the scorer. Advantages are centred over those that have a reward,
//! by member, never by position. Data are built as each group completes, on the pool of threads. A batch holds the
//! oldest complete groups at the moment when the trainer has room; it may leave in parts, each as soon as it is full.
//! No group is trained that is too old: either a batch waits until every group that is left behind can still be trained
//! in time, or groups that have grown too old are dropped and played again.

mod cpu_pool;
mod groups;
mod staleness_gate;

use crate::ledger::{GroupOutcome, one_line};
use crate::mailbox::{MailboxSender, StageMessage};
use crate::messages::{Batch, RolloutFailure, ScoredRollout, TrainingGroup};
use crate::policy::Policy;
use crate::telemetry::StageBoard;
use actix::fut::ActorFutureExt;
use actix::prelude::{Actor, AsyncContext, Context, Handler, WrapFuture};
pub use cpu_pool::{CpuPool, CpuPoolError};
pub(crate) use groups::CompleteGroup;
use groups::{OpenGroups, ReadyGroups};
use minds_core::advantage::Estimator;
pub use staleness_gate::StalenessGate;
use std::num::NonZeroUsize;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::warn;

const NAME: &str = "batcher";

/// How groups become batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatcherOptions {
    /// Groups per optimizer step.
    pub groups_per_batch: NonZeroUsize,
    /// How rewards become advantages.
    pub estimator: Estimator,
    /// What becomes of a group whose rewards are all equal.
    pub constant: ConstantGroups,
    /// Fewest members with a reward for the group to be trained; never fewer than two of a larger group.
    pub min_members: NonZeroUsize,
    /// What counts as much as what.
    pub weighting: LossWeighting,
    /// What a nat of drift from the reference costs; 0 where there is no reference.
    pub kl_penalty: f32,
    /// Equal parts in which a batch is sent.
    pub minibatches: NonZeroUsize,
    /// How groups are kept from growing too old.
    pub staleness: StalenessHandling,
}

/// What counts as much as what in the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossWeighting {
    /// Each token as much as any other.
    #[default]
    Token,
    /// Each sequence as much as any other: its tokens share its advantage (Shao et al. 2024, "DeepSeekMath", eq. 3).
    Sequence,
}

/// How groups are kept from growing too old.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StalenessHandling {
    /// The trainer waits for stragglers; nothing is thrown away.
    #[default]
    Wait,
    /// The trainer goes on; what has grown too old is dropped, counted and played again.
    Drop,
}

/// What becomes of a group whose rewards are all equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConstantGroups {
    /// It takes its place in the batch; its gradient is zero.
    #[default]
    Keep,
    /// It takes its place in the batch and leaves it as filtered.
    Drop,
    /// It leaves, and another group is opened in its place.
    Replace,
}

/// The fourth stage.
pub struct AdvantageBatcher {
    /// How groups become batches.
    pub options: BatcherOptions,
    /// Threads for building data.
    pub pool: CpuPool,
    /// Where the stage tells how it is.
    pub board: StageBoard,
    /// To the trainer.
    pub batches: MailboxSender<Batch>,
    /// The newest weights.
    policy: watch::Receiver<Arc<Policy>>,
    /// Groups with members still out.
    open: OpenGroups,
    /// Groups that wait for their batch.
    ready: ReadyGroups,
    /// Whether a batch is waiting for the trainer to have room.
    sending: bool,
    staleness_gate: StalenessGate,
    /// Groups that an earlier part of the run had collected, until the stage starts.
    restored: Vec<CompleteGroup>,
}

impl AdvantageBatcher {
    /// Nothing collected yet.
    #[must_use]
    pub fn new(
        options: BatcherOptions,
        staleness_gate: StalenessGate,
        pool: CpuPool,
        board: StageBoard,
        policy: watch::Receiver<Arc<Policy>>,
        batches: MailboxSender<Batch>,
        restored: Vec<CompleteGroup>,
    ) -> Self {
        let (open, ready) = (OpenGroups::default(), ReadyGroups::default());
        Self { options, pool, board, policy, batches, open, ready, sending: false, staleness_gate, restored }
    }
}

impl Actor for AdvantageBatcher {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        for complete in std::mem::take(&mut self.restored) {
            self.build(complete, ctx);
        }
    }
}

impl Handler<StageMessage<ScoredRollout>> for AdvantageBatcher {
    type Result = ();

    fn handle(&mut self, message: StageMessage<ScoredRollout>, ctx: &mut Self::Context) {
        // What is collected here is bounded by the credits; the permit can go at once.
        let (scored, _permit) = message.open();
        if let Some(complete) = self.open.add(scored) {
            self.build(complete, ctx);
        }
    }
}

impl AdvantageBatcher {
    fn build(&mut self, complete: CompleteGroup, ctx: &mut Context<Self>) {
        self.board.update(NAME, |s| s.busy += 1);
        let (pool, options) = (self.pool.clone(), self.options);
        let group = complete.group.clone();
        let building = async move { pool.run(move || complete.build(&options)).await };
        ctx.spawn(building.into_actor(self).map(move |built, stage, ctx| {
            stage.board.update(NAME, |s| s.busy -= 1);
            match built.map_err(|e| e.to_string().into()).and_then(|built| built) {
                Ok(ready) => stage.collect(ready, ctx),
                Err(RolloutFailure { why, unanswered: true }) => {
                    group.span.in_scope(|| warn!(%why, "no service for this group, its item comes again"));
                    group.credit.settle(&GroupOutcome::Unanswered(why));
                }
                Err(RolloutFailure { why, unanswered: false }) => {
                    group.span.in_scope(|| warn!(why = %one_line(&why), "group failed"));
                    stage.board.update(NAME, |s| s.failed += 1);
                    group.credit.settle(&GroupOutcome::Failed(why));
                }
            }
        }));
    }

    fn collect(&mut self, ready: TrainingGroup, ctx: &mut Context<Self>) {
        self.board.update(NAME, |s| s.done += 1);
        ready.group.credit.ready(ready.members.clone());
        if ready.constant && self.options.constant == ConstantGroups::Replace {
            ready.group.credit.settle(&GroupOutcome::Filtered);
            return;
        }
        self.ready.add(ready);
        self.offer(ctx);
    }

    /// Hands the next part of a batch over as soon as the trainer has room. It is put together only then, so that it
    /// holds the oldest groups of that moment.
    fn offer(&mut self, ctx: &mut Context<Self>) {
        let BatcherOptions { groups_per_batch, minibatches, staleness, .. } = self.options;
        let count = groups_per_batch.get() / minibatches;
        if self.sending || self.ready.len() < count {
            return;
        }
        self.sending = true;
        let batches = self.batches.clone();
        let (staleness_gate, mut policy) = (self.staleness_gate.clone(), self.policy.clone());
        let room = async move {
            let room = batches.reserve().await;
            let begun = Instant::now();
            match staleness {
                StalenessHandling::Wait => staleness_gate.wait(count).await,
                // Before the weights are there that can play what replaces it, nothing is too old.
                StalenessHandling::Drop => {
                    drop(policy.wait_for(|policy| !staleness_gate.too_old(policy.version)).await)
                }
            }
            let held = staleness == StalenessHandling::Wait && !begun.elapsed().is_zero();
            (room, held.then_some(begun))
        };
        ctx.spawn(room.into_actor(self).map(move |(room, held_since), stage, ctx| {
            stage.sending = false;
            // Without room for ever, the run is over: what is ready stays until the stage is dropped.
            let Some(room) = room else { return };
            if staleness == StalenessHandling::Drop {
                for old in stage.ready.take_old(|version| stage.staleness_gate.too_old(version)) {
                    old.group.credit.settle(&GroupOutcome::Dropped);
                }
                if stage.ready.len() < count {
                    return; // the next group that is ready tries again
                }
            }
            let minibatch = stage.staleness_gate.left % groups_per_batch.get() / count;
            let batch = Batch { groups: stage.ready.take(count), minibatch, minibatches, held_since };
            batch.groups.iter().for_each(|group| group.group.credit.batched());
            stage.staleness_gate.left += count;
            let sending = async move { room.send(batch).await };
            ctx.spawn(sending.into_actor(stage).map(|sent, stage, ctx| match sent {
                Ok(()) => stage.offer(ctx),
                Err(back) => back.0.groups.into_iter().for_each(|group| stage.ready.add(group)),
            }));
        }));
    }
}
