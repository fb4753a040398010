//! Joins rollouts into groups, and groups into batches.
//!
//! A group is complete when every member has left the scorer. Advantages are centred over those that have a reward,
//! by member, never by position. Data are built as each group completes, on the pool of threads. A batch holds the
//! oldest complete groups at the moment when the trainer has room; it may be sent in minibatches, each when it is full.
//! No group is trained that is too stale: either a batch waits until every group that is left behind can still be
//! trained in time, or groups that have become too stale are dropped and sampled again.

mod cpu_pool;
mod groups;
mod length;
mod staleness_gate;

use crate::ledger::{GroupOutcome, one_line};
use crate::mailbox::{MailboxSender, StageMessage};
use crate::messages::{Batch, Group, ScoredRollout, TrainingGroup};
use crate::policy::Policy;
use crate::telemetry::StageBoard;
use actix::fut::ActorFutureExt;
use actix::prelude::{Actor, AsyncContext, Context, Handler, WrapFuture};
pub use cpu_pool::{CpuPool, CpuPoolError};
pub(crate) use groups::CompleteGroup;
use groups::{OpenGroups, ReadyGroups};
use length::RolloutLength;
pub use length::{LengthShaping, TruncatedRollouts};
use minds_core::advantage::Estimator;
use serde::{Deserialize, Serialize};
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
    /// How tokens and sequences are weighted in the loss.
    pub weighting: LossWeighting,
    /// Penalty per nat of drift from the reference; 0 where there is no reference.
    pub kl_penalty: f32,
    /// How the length of completions counts.
    pub length: LengthShaping,
    /// Whether rewards are trained; otherwise only the drift from the reference is.
    pub rewards: bool,
    /// Minibatches of equal size in which a batch is sent.
    pub minibatches: NonZeroUsize,
    /// How groups are kept from becoming too stale.
    pub staleness: StalenessHandling,
}

/// How tokens and sequences are weighted in the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossWeighting {
    /// Every token has the same weight.
    #[default]
    Token,
    /// Every sequence has the same weight: its tokens share its advantage (Shao et al. 2024, "DeepSeekMath", eq. 3).
    Sequence,
}

/// How groups are kept from becoming too stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StalenessHandling {
    /// The trainer waits for stragglers; no group is dropped.
    #[default]
    Wait,
    /// The trainer does not wait; groups that have become too stale are dropped, counted and sampled again.
    Drop,
}

/// What becomes of a group whose rewards are all equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConstantGroups {
    /// It takes its place in the batch; its gradient is zero.
    #[default]
    Keep,
    /// It takes its place in the batch and leaves it as filtered.
    Drop,
    /// It leaves, and another group is opened in its place.
    Replace,
}

/// What the batcher is connected to.
pub struct BatcherLinks {
    /// Threads for building data.
    pub pool: CpuPool,
    /// Where the stage publishes its snapshot.
    pub board: StageBoard,
    /// The newest published weights.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// Mailbox of the trainer.
    pub batches: MailboxSender<Batch>,
}

/// The fourth stage: joins rollouts into groups, computes advantages, and sends batches.
pub struct AdvantageBatcher {
    options: BatcherOptions,
    links: BatcherLinks,
    /// Groups with members still being sampled or scored.
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
    /// A batcher without any groups but those that are `restored`.
    #[must_use]
    pub fn new(
        options: BatcherOptions,
        links: BatcherLinks,
        staleness_gate: StalenessGate,
        restored: Vec<CompleteGroup>,
    ) -> Self {
        let open = OpenGroups::default();
        let ready = ReadyGroups::default();
        Self { options, links, open, ready, sending: false, staleness_gate, restored }
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

impl Handler<StageMessage<(Arc<Group>, ScoredRollout)>> for AdvantageBatcher {
    type Result = ();

    fn handle(&mut self, message: StageMessage<(Arc<Group>, ScoredRollout)>, ctx: &mut Self::Context) {
        // The credits bound what is collected here; the permit can be dropped at once.
        let ((group, scored), _permit) = message.open();
        if let Some(complete) = self.open.add(group, scored) {
            self.build(complete, ctx);
        }
    }
}

/// In supervised runs groups come from the feeder, and their data are made here.
impl Handler<StageMessage<Arc<Group>>> for AdvantageBatcher {
    type Result = ();

    fn handle(&mut self, message: StageMessage<Arc<Group>>, ctx: &mut Self::Context) {
        let (group, permit) = message.open();
        let imitated = group.clone();
        self.build_on_pool(group, move || TrainingGroup::of_demonstration(imitated), permit, ctx);
    }
}

impl AdvantageBatcher {
    fn build(&mut self, complete: CompleteGroup, ctx: &mut Context<Self>) {
        let options = self.options;
        let group = complete.group.clone();
        self.build_on_pool(group, move || complete.build(&options), (), ctx);
    }

    /// Makes the data of a group on the pool of threads. `permit` is dropped when they are made.
    fn build_on_pool(
        &mut self,
        group: Arc<Group>,
        job: impl FnOnce() -> Result<TrainingGroup, GroupOutcome> + Send + 'static,
        permit: impl Send + 'static,
        ctx: &mut Context<Self>,
    ) {
        self.links.board.update(NAME, |s| s.busy += 1);
        let pool = self.links.pool.clone();
        let building = async move {
            let built = pool.run(job).await;
            drop(permit);
            built
        };
        ctx.spawn(building.into_actor(self).map(move |built, stage, ctx| {
            stage.links.board.update(NAME, |s| s.busy -= 1);
            match built.unwrap_or_else(|e| Err(GroupOutcome::Failed(e.to_string()))) {
                Ok(ready) => stage.collect(ready, ctx),
                Err(outcome) => stage.give_up(&group, &outcome),
            }
        }));
    }

    /// Settles a group that will not be trained.
    fn give_up(&self, group: &Group, outcome: &GroupOutcome) {
        group.span.in_scope(|| match outcome {
            GroupOutcome::Unanswered(why) => {
                warn!(%why, "a service is unavailable for this group: its item will be resampled")
            }
            GroupOutcome::Lost(why) | GroupOutcome::Failed(why) => {
                warn!(why = %one_line(why), "group failed");
                self.links.board.update(NAME, |s| s.failed += 1);
            }
            GroupOutcome::Trained | GroupOutcome::Filtered | GroupOutcome::Dropped => {}
        });
        group.credit.settle(outcome);
    }

    fn collect(&mut self, ready: TrainingGroup, ctx: &mut Context<Self>) {
        self.links.board.update(NAME, |s| s.done += 1);
        ready.group.credit.ready(ready.members.clone());
        if ready.constant && self.options.constant == ConstantGroups::Replace {
            ready.group.credit.settle(&GroupOutcome::Filtered);
            return;
        }
        self.ready.add(ready);
        self.offer(ctx);
    }

    /// Sends the next minibatch as soon as the trainer has room. It is put together only then, so that it
    /// holds the oldest groups of that moment.
    fn offer(&mut self, ctx: &mut Context<Self>) {
        let BatcherOptions { groups_per_batch, minibatches, staleness, .. } = self.options;
        let count = groups_per_batch.get() / minibatches;
        if self.sending || self.ready.len() < count {
            return;
        }
        self.sending = true;
        let batches = self.links.batches.clone();
        let staleness_gate = self.staleness_gate.clone();
        let mut policy = self.links.policy.clone();
        let room = async move {
            let room = batches.reserve().await;
            let begun = Instant::now();
            match staleness {
                StalenessHandling::Wait => staleness_gate.wait(count).await,
                // Before the weights that can sample the replacement are published, no group is too stale.
                StalenessHandling::Drop => {
                    drop(policy.wait_for(|policy| !staleness_gate.too_old(policy.version)).await)
                }
            }
            let held = staleness == StalenessHandling::Wait && !begun.elapsed().is_zero();
            (room, held.then_some(begun))
        };
        ctx.spawn(room.into_actor(self).map(move |(room, held_since), stage, ctx| {
            stage.sending = false;
            // If there is never room again, the run is over: ready groups stay until the stage is dropped.
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
