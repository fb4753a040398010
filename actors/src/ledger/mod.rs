//! Credits and outcomes: the only flow control of the pipeline.
//!
//! A group is opened with a credit and leaves with exactly one outcome, whatever happens to the tasks and messages
//! that carry it: a credit that is dropped without an outcome gets the outcome "failed: lost". So credits are
//! conserved across errors, panics and cancellations by construction.

mod counts;
mod postponed;

pub use counts::{GroupCounts, SettledPositions, count};
use minds_core::ids::{GroupId, PolicyVersion};
use minds_core::rollout::TrainingRollout;
use postponed::{PostponedGroups, PostponedOutcome};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A cause in one line: for a traceback its first line and its last, which names the exception.
#[must_use]
pub fn one_line(cause: &str) -> Cow<'_, str> {
    match cause.trim_end().split_once('\n') {
        None => Cow::Borrowed(cause),
        Some((first, rest)) => {
            Cow::Owned(format!("{first} … {}", rest.rsplit('\n').next().unwrap_or(rest).trim()))
        }
    }
}

/// Outcome of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", content = "why", rename_all = "snake_case")]
pub enum GroupOutcome {
    /// It was part of an optimizer step.
    Trained,
    /// It had no learning signal.
    Filtered,
    /// It was too stale. Its item is sampled again.
    Dropped,
    /// A service could not answer; the cause. Its item is sampled again, and the group counts as dropped; as failed
    /// once this lasts longer than the run's limit.
    Unanswered(String),
    /// The service has lost what was to sample or score it, such as its session; the cause. The group counts as failed.
    Lost(String),
    /// An error ended it; the first cause.
    Failed(String),
}

/// A group that was ready and not yet trained, as a checkpoint stores it. Its item comes from the schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedGroup {
    /// Id of the group, which is its position in the schedule.
    pub group: GroupId,
    /// Members with a reward.
    pub members: Arc<[TrainingRollout]>,
}

/// Credits and outcomes of all groups. Cheap to clone.
#[derive(Clone)]
pub struct Ledger {
    state: Arc<Mutex<LedgerState>>,
    counts: watch::Sender<GroupCounts>,
    /// Batches that made no optimizer step.
    refused: Arc<AtomicU64>,
    /// Sampled tokens that were discarded.
    discarded: Arc<DiscardedTokens<AtomicU64>>,
    /// How long a group may go without an answer from a service.
    unanswered_limit: Duration,
}

/// How long a group may go without an answer from a service, unless the run says otherwise.
pub const UNANSWERED: Duration = Duration::from_secs(15 * 60);

/// Tokens of rollouts that had their reward and were not trained, by the outcome of their group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiscardedTokens<T = u64> {
    /// Tokens of groups without a learning signal.
    pub filtered: T,
    /// Tokens of groups dropped as stale.
    pub dropped: T,
    /// Tokens of groups that failed.
    pub failed: T,
}

/// A group that is not yet part of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupProgress {
    /// The weights that sample it.
    pub version: PolicyVersion,
    /// Whether all its members have been sampled and scored.
    pub ready: bool,
}

#[derive(Default)]
struct LedgerState {
    settled: SettledPositions,
    /// Positions that are to be sampled again.
    again: VecDeque<GroupId>,
    /// Groups that no service answered for.
    postponed: PostponedGroups,
    /// Cause of the latest unanswered group.
    last_unanswered: Option<String>,
    /// Groups that are being sampled or wait for their batch.
    stamped: BTreeMap<GroupId, GroupProgress>,
    /// Groups that are ready and not settled.
    ready: BTreeMap<GroupId, Arc<[TrainingRollout]>>,
    /// Number of groups that have become ready.
    readied: u64,
    first_failure: Option<String>,
    /// Cause of the first group of the series in which every reward raised.
    first_raised: Option<String>,
    last_failure: Option<(GroupId, String)>,
    /// Whether the latest failure is one of the service, which has lost what was to sample or score the group.
    is_lost: bool,
}

impl Ledger {
    /// A ledger that starts where `settled` of an earlier run ended.
    #[must_use]
    pub fn new(settled: SettledPositions) -> Self {
        let state = LedgerState { settled, ..LedgerState::default() };
        Self {
            state: Arc::new(Mutex::new(state)),
            counts: watch::Sender::new(GroupCounts::default()),
            refused: Arc::default(),
            discarded: Arc::default(),
            unanswered_limit: UNANSWERED,
        }
    }

    /// The same with another limit on how long a group may go without an answer from a service.
    #[must_use]
    pub fn with_unanswered_limit(self, unanswered_limit: Duration) -> Self {
        Self { unanswered_limit, ..self }
    }

    /// Opens a group and returns its credit.
    #[must_use]
    pub fn open(&self, group: GroupId) -> Credit {
        self.counts.send_modify(|counts| counts.opened += 1);
        Credit {
            group,
            ledger: self.clone(),
            readied_before: self.lock().readied,
            tokens: 0.into(),
            raised: 0.into(),
            all_raised: false.into(),
            ready: false.into(),
            settled: false.into(),
        }
    }

    /// The first position that was dropped and is to be opened again.
    #[must_use]
    pub fn reopened(&self) -> Option<GroupId> {
        let mut state = self.lock();
        state.again.pop_front().or_else(|| state.postponed.take())
    }

    /// Until when no group is opened, because no service has answered recently.
    #[must_use]
    pub fn paused_until(&self) -> Option<Instant> {
        self.lock().postponed.paused_until()
    }

    /// Time since the last ready group and the cause, once a service has left groups unanswered for longer than the limit.
    #[must_use]
    pub fn unanswered(&self) -> Option<(Duration, String)> {
        let state = self.lock();
        let lasts = state.postponed.lasts().filter(|lasts| *lasts >= self.unanswered_limit)?;
        Some((lasts, state.last_unanswered.clone()?))
    }

    /// Records that a batch made no optimizer step.
    pub fn refuse_batch(&self) {
        self.refused.fetch_add(1, Ordering::AcqRel);
    }

    /// Batches that made no optimizer step.
    #[must_use]
    pub fn refused_batches(&self) -> u64 {
        self.refused.load(Ordering::Acquire)
    }

    /// Sampled tokens that were discarded.
    #[must_use]
    pub fn discarded(&self) -> DiscardedTokens {
        let DiscardedTokens { filtered, dropped, failed } = &*self.discarded;
        let read = |tokens: &AtomicU64| tokens.load(Ordering::Relaxed);
        DiscardedTokens { filtered: read(filtered), dropped: read(dropped), failed: read(failed) }
    }

    /// A receiver that follows every change of the counts.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<GroupCounts> {
        self.counts.subscribe()
    }

    /// The counts at this moment.
    #[must_use]
    pub fn counts(&self) -> GroupCounts {
        *self.counts.borrow()
    }

    /// Which positions are settled now, for a checkpoint.
    #[must_use]
    pub fn settled(&self) -> SettledPositions {
        self.lock().settled.clone()
    }

    /// Groups that are ready and not settled, for a checkpoint: they are not sampled again.
    #[must_use]
    pub fn saved_groups(&self) -> Vec<SavedGroup> {
        let saved_group = |(group, members): (&GroupId, &Arc<[TrainingRollout]>)| SavedGroup {
            group: *group,
            members: members.clone(),
        };
        self.lock().ready.iter().map(saved_group).collect()
    }

    /// The oldest version that samples a group which is not yet part of a batch.
    #[must_use]
    pub fn oldest_version(&self) -> Option<PolicyVersion> {
        self.lock().stamped.values().map(|stamp| stamp.version).min()
    }

    /// Waits until the groups that are not yet part of a batch satisfy a condition.
    pub async fn until(&self, holds: impl Fn(&[GroupProgress]) -> bool) {
        let mut counts = self.watch();
        let met = |_: &GroupCounts| holds(&self.lock().stamped.values().copied().collect::<Vec<_>>());
        // The sender lives in `self`, so the wait cannot fail.
        drop(counts.wait_for(met).await);
    }

    /// Cause of the first and of the latest failure.
    #[must_use]
    pub fn failures(&self) -> Option<(String, GroupId, String)> {
        let state = self.lock();
        let (group, last) = state.last_failure.clone()?;
        Some((state.first_failure.clone()?, group, last))
    }

    /// Whether the latest failure is one of the service, which has lost what was to sample or score the group.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lock().is_lost
    }

    /// Cause of the first group of a series in which every reward failed in the environment's own code.
    #[must_use]
    pub fn first_raised(&self) -> Option<String> {
        self.lock().first_raised.clone()
    }

    fn settle(&self, credit: &Credit, outcome: &GroupOutcome) {
        let group = credit.group;
        let ready = credit.ready.load(Ordering::Acquire);
        // Slow failures of one environment come at the same time although the groups of others became ready meanwhile: those
        // are no series.
        let in_a_row = self.lock().readied == credit.readied_before;
        let all_raised = in_a_row && !ready && credit.all_raised.load(Ordering::Acquire);
        let tokens = credit.tokens.load(Ordering::Relaxed);
        let mut outcome = outcome;
        let failed;
        if let GroupOutcome::Unanswered(why) = outcome {
            let mut state = self.lock();
            state.last_unanswered = Some(why.clone());
            if state.postponed.add(group, self.unanswered_limit) == PostponedOutcome::Failed {
                failed = GroupOutcome::Failed(why.clone());
                outcome = &failed;
            }
        }
        let discarded = match outcome {
            GroupOutcome::Trained => None,
            GroupOutcome::Filtered => Some(&self.discarded.filtered),
            GroupOutcome::Dropped | GroupOutcome::Unanswered(_) => Some(&self.discarded.dropped),
            GroupOutcome::Lost(_) | GroupOutcome::Failed(_) => Some(&self.discarded.failed),
        };
        if let Some(discarded) = discarded {
            discarded.fetch_add(tokens, Ordering::Relaxed);
        }
        {
            let mut state = self.lock();
            match outcome {
                GroupOutcome::Dropped => state.again.push_back(group),
                GroupOutcome::Unanswered(_) => {}
                GroupOutcome::Trained
                | GroupOutcome::Filtered
                | GroupOutcome::Lost(_)
                | GroupOutcome::Failed(_) => state.settled.insert(group.0),
            }
            if !matches!(outcome, GroupOutcome::Unanswered(_)) {
                state.postponed.settled(group);
            }
            state.stamped.remove(&group);
            state.ready.remove(&group);
            if let GroupOutcome::Lost(why) | GroupOutcome::Failed(why) = outcome {
                state.is_lost = matches!(outcome, GroupOutcome::Lost(_));
                state.first_failure.get_or_insert_with(|| why.clone());
                state.last_failure = Some((group, why.clone()));
                if all_raised {
                    state.first_raised.get_or_insert_with(|| why.clone());
                }
            }
        }
        self.counts.send_modify(|counts| match outcome {
            GroupOutcome::Trained => {
                counts.trained += 1;
                counts.filtered_in_a_row = 0;
            }
            GroupOutcome::Filtered => {
                counts.filtered += 1;
                counts.filtered_in_a_row += 1;
            }
            GroupOutcome::Dropped | GroupOutcome::Unanswered(_) => counts.dropped += 1,
            GroupOutcome::Lost(_) | GroupOutcome::Failed(_) => {
                counts.failed += 1;
                counts.failed_in_a_row += u64::from(!ready);
                counts.raised_in_a_row += u64::from(all_raised);
            }
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, LedgerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to be in flight. Lives inside its group.
pub struct Credit {
    group: GroupId,
    ledger: Ledger,
    /// Groups that had become ready when it was opened.
    readied_before: u64,
    /// Tokens sampled for the group so far.
    tokens: AtomicU64,
    /// Members whose reward failed in the environment's own code.
    raised: AtomicU32,
    all_raised: AtomicBool,
    ready: AtomicBool,
    settled: AtomicBool,
}

impl Credit {
    /// Records which weights sample the group.
    pub fn sampling_started(&self, version: PolicyVersion) {
        self.ledger.lock().stamped.insert(self.group, GroupProgress { version, ready: false });
    }

    /// Records tokens that were sampled for the group.
    pub fn add_tokens(&self, tokens: usize) {
        self.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    /// Records that the reward of one of `members` failed in the environment's own code.
    pub fn add_environment_error(&self, members: u32) {
        if self.raised.fetch_add(1, Ordering::AcqRel) + 1 == members {
            self.all_raised.store(true, Ordering::Release);
        }
    }

    /// Records that all members of the group have been sampled and scored.
    pub fn ready(&self, members: Arc<[TrainingRollout]>) {
        self.ready.store(true, Ordering::Release);
        {
            let mut state = self.ledger.lock();
            if let Some(stamp) = state.stamped.get_mut(&self.group) {
                stamp.ready = true;
            }
            state.ready.insert(self.group, members);
            state.readied += 1;
            state.first_raised = None;
            state.postponed.answered();
        }
        self.ledger.counts.send_modify(|counts| {
            counts.failed_in_a_row = 0;
            counts.raised_in_a_row = 0;
        });
    }

    /// Records that the group is part of a batch.
    pub fn batched(&self) {
        self.ledger.lock().stamped.remove(&self.group);
    }

    /// Sets the outcome. Only the first one counts; returns whether this was it.
    pub fn settle(&self, outcome: &GroupOutcome) -> bool {
        let first = !self.settled.swap(true, Ordering::AcqRel);
        if first {
            self.ledger.settle(self, outcome);
        }
        first
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        self.settle(&GroupOutcome::Failed("lost on the way".into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As when one environment of a mixture is broken and slow: its groups fail together.
    #[test]
    fn failures_during_which_another_group_became_ready_are_not_in_a_row() {
        let ledger = Ledger::new(SettledPositions::default());
        let raise = |credit: &Credit| {
            credit.add_environment_error(1);
            credit.settle(&GroupOutcome::Failed("raised".into()));
        };
        let slow = [0, 5, 10].map(|group| ledger.open(GroupId(group)));
        let other = ledger.open(GroupId(1));
        other.ready(Arc::from([]));
        other.settle(&GroupOutcome::Trained);
        slow.iter().for_each(raise);
        assert_eq!((ledger.counts().raised_in_a_row, ledger.counts().failed), (0, 3));

        let next = [15, 20].map(|group| ledger.open(GroupId(group)));
        next.iter().for_each(raise);
        assert_eq!(ledger.counts().raised_in_a_row, 2);
        assert_eq!(ledger.first_raised().as_deref(), Some("raised"));
    }

    #[test]
    fn a_credit_returns_exactly_once() {
        let ledger = Ledger::new(SettledPositions::default());
        let credits: Vec<Credit> = (0..4).map(|n| ledger.open(GroupId(n))).collect();
        credits.iter().zip([10, 20, 40, 80]).for_each(|(credit, tokens)| credit.add_tokens(tokens));
        assert_eq!(ledger.counts().in_flight(), 4);
        assert!(credits[0].settle(&GroupOutcome::Trained));
        assert!(!credits[0].settle(&GroupOutcome::Dropped), "the first outcome stands");
        credits[1].settle(&GroupOutcome::Filtered);
        drop(credits);
        let counts = ledger.counts();
        assert_eq!((counts.trained, counts.filtered, counts.dropped, counts.failed), (1, 1, 0, 2));
        assert_eq!((counts.opened, counts.in_flight()), (4, 0));
        assert_eq!(ledger.failures().unwrap().0, "lost on the way");
        // All but the ten tokens of the group that was trained.
        assert_eq!(ledger.discarded(), DiscardedTokens { filtered: 20, dropped: 0, failed: 40 + 80 });
    }

    #[test]
    fn a_dropped_item_is_resampled_and_not_settled() {
        let ledger = Ledger::new(SettledPositions::default());
        for (n, outcome) in (0..).zip([GroupOutcome::Dropped, GroupOutcome::Trained, GroupOutcome::Dropped]) {
            ledger.open(GroupId(n)).settle(&outcome);
        }
        assert_eq!((0..3).map(|n| ledger.settled().contains(n)).collect::<Vec<_>>(), [false, true, false]);
        let again: Vec<GroupId> = std::iter::from_fn(|| ledger.reopened()).collect();
        assert_eq!(again, [GroupId(0), GroupId(2)]);
        ledger.open(GroupId(0)).settle(&GroupOutcome::Trained);
        assert!(ledger.settled().contains(1) && ledger.counts().dropped == 2);
    }

    #[test]
    fn a_row_of_failures_ends_with_a_group_that_is_ready_and_a_refused_one_adds_nothing() {
        let ledger = Ledger::new(SettledPositions::default());
        let failed = |n| drop(ledger.open(GroupId(n)));
        (0..3).for_each(failed);
        assert_eq!(ledger.counts().failed_in_a_row, 3);
        let good = ledger.open(GroupId(3));
        good.ready(Arc::default());
        assert_eq!(ledger.saved_groups().len(), 1);
        assert_eq!(ledger.counts().failed_in_a_row, 0, "though it is not trained yet");
        failed(4);
        good.settle(&GroupOutcome::Failed("the batch was refused".into()));
        assert_eq!((ledger.counts().failed_in_a_row, ledger.counts().failed), (1, 5));
        assert!(ledger.saved_groups().is_empty(), "it is settled");
    }
}
