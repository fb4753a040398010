//! Credits and verdicts: the only flow control of the line.
//!
//! A group is opened with a credit and leaves with exactly one verdict, whatever happens to the tasks and messages
//! that carry it: a credit that is dropped without a verdict gives the verdict "failed: lost". So credits are
//! conserved across errors, panics and cancellations by construction.

mod postponed;
mod tally;

use crate::parcels::{Member, Spare};
use minds_core::ids::{GroupId, PolicyVersion};
use postponed::{Fate, Postponed};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
pub use tally::{Counts, Settled, count};
use tokio::sync::watch;
use tokio::time::Instant;

/// A cause in one line: of one with a traceback its first line and its last, which names the exception.
#[must_use]
pub fn one_line(cause: &str) -> Cow<'_, str> {
    match cause.trim_end().split_once('\n') {
        None => Cow::Borrowed(cause),
        Some((first, rest)) => {
            Cow::Owned(format!("{first} … {}", rest.rsplit('\n').next().unwrap_or(rest).trim()))
        }
    }
}

/// How a group ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", content = "why", rename_all = "snake_case")]
pub enum Verdict {
    /// It was part of an optimizer step.
    Trained,
    /// It had nothing to teach.
    Filtered,
    /// It was too old. Its item comes again.
    Dropped,
    /// A service could not answer; why. Its item comes again, and counts as dropped; as failed if that goes on for longer
    /// than the run's limit.
    Unanswered(String),
    /// Something went wrong; the first cause.
    Failed(String),
}

/// The book of all groups. Cheap to clone.
#[derive(Clone)]
pub struct Ledger {
    book: Arc<Mutex<Book>>,
    counts: watch::Sender<Counts>,
    /// Batches that were no optimizer step.
    refused: Arc<AtomicU64>,
    /// Tokens that were sampled for nothing.
    discarded: Arc<Tokens<AtomicU64>>,
    /// How long a group may go without an answer from a service.
    unanswered_limit: Duration,
}

/// How long a group may go without an answer from a service, unless the run says otherwise.
pub const UNANSWERED: Duration = Duration::from_secs(15 * 60);

/// Tokens of rollouts that had their reward and were not trained, by the verdict on their group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens<T = u64> {
    /// Groups without signal.
    pub filtered: T,
    /// Groups dropped as stale.
    pub dropped: T,
    /// Groups that failed.
    pub failed: T,
}

/// A group that is not yet part of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The weights that play it.
    pub version: PolicyVersion,
    /// Whether it has come through playing and scoring.
    pub ready: bool,
}

#[derive(Default)]
struct Book {
    settled: Settled,
    /// Positions that are to be played once more.
    again: VecDeque<GroupId>,
    /// Those that no service answered for.
    postponed: Postponed,
    /// Why not, the latest time.
    last_unanswered: Option<String>,
    /// Groups that play or wait for their batch.
    stamped: BTreeMap<GroupId, Stamp>,
    /// Groups that are ready and not settled.
    ready: BTreeMap<GroupId, Arc<[Member]>>,
    first_failure: Option<String>,
    /// Cause of the first group of the row in which every reward raised.
    first_raised: Option<String>,
    last_failure: Option<(GroupId, String)>,
}

impl Ledger {
    /// A book that starts where `settled` of an earlier run ended.
    #[must_use]
    pub fn new(settled: Settled) -> Self {
        let book = Book { settled, ..Book::default() };
        Self {
            book: Arc::new(Mutex::new(book)),
            counts: watch::Sender::new(Counts::default()),
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

    /// Opens a group.
    #[must_use]
    pub fn open(&self, group: GroupId) -> Credit {
        self.counts.send_modify(|counts| counts.opened += 1);
        Credit {
            group,
            ledger: self.clone(),
            paid: 0.into(),
            raised: 0.into(),
            all_raised: false.into(),
            ready: false.into(),
            settled: false.into(),
        }
    }

    /// A position that was dropped and is to be opened once more, the first one first.
    #[must_use]
    pub fn reopened(&self) -> Option<GroupId> {
        let mut book = self.lock();
        book.again.pop_front().or_else(|| book.postponed.take())
    }

    /// Until when no group is to be opened: no service has answered for any of late.
    #[must_use]
    pub fn paused_until(&self) -> Option<Instant> {
        self.lock().postponed.paused_until()
    }

    /// Time since the last ready group and the cause, once a service has left groups unanswered for longer than the limit.
    #[must_use]
    pub fn unanswered(&self) -> Option<(Duration, String)> {
        let book = self.lock();
        let lasts = book.postponed.lasts().filter(|lasts| *lasts >= self.unanswered_limit)?;
        Some((lasts, book.last_unanswered.clone()?))
    }

    /// Notes that a batch was no optimizer step.
    pub fn refuse_batch(&self) {
        self.refused.fetch_add(1, Ordering::AcqRel);
    }

    /// Batches that were no optimizer step.
    #[must_use]
    pub fn refused_batches(&self) -> u64 {
        self.refused.load(Ordering::Acquire)
    }

    /// Tokens that were sampled for nothing.
    #[must_use]
    pub fn discarded(&self) -> Tokens {
        let Tokens { filtered, dropped, failed } = &*self.discarded;
        let read = |tokens: &AtomicU64| tokens.load(Ordering::Relaxed);
        Tokens { filtered: read(filtered), dropped: read(dropped), failed: read(failed) }
    }

    /// Follows the counts.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Counts> {
        self.counts.subscribe()
    }

    /// The counts now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        *self.counts.borrow()
    }

    /// Which positions are settled now, for a checkpoint.
    #[must_use]
    pub fn settled(&self) -> Settled {
        self.lock().settled.clone()
    }

    /// Groups that are ready and not settled, for a checkpoint: what was paid for them is not paid twice.
    #[must_use]
    pub fn spares(&self) -> Vec<Spare> {
        let spare =
            |(group, members): (&GroupId, &Arc<[Member]>)| Spare { group: *group, members: members.clone() };
        self.lock().ready.iter().map(spare).collect()
    }

    /// The oldest version that samples a group which is not yet part of a batch.
    #[must_use]
    pub fn oldest_version(&self) -> Option<PolicyVersion> {
        self.lock().stamped.values().map(|stamp| stamp.version).min()
    }

    /// Waits until the groups that are not yet part of a batch satisfy a condition.
    pub async fn until(&self, holds: impl Fn(&[Stamp]) -> bool) {
        let mut counts = self.watch();
        let met = |_: &Counts| holds(&self.lock().stamped.values().copied().collect::<Vec<_>>());
        // The sender lives in `self`, so the wait cannot fail.
        drop(counts.wait_for(met).await);
    }

    /// Cause of the first and of the latest failure.
    #[must_use]
    pub fn failures(&self) -> Option<(String, GroupId, String)> {
        let book = self.lock();
        let (group, last) = book.last_failure.clone()?;
        Some((book.first_failure.clone()?, group, last))
    }

    /// Cause of the first group of a row in which every reward failed in the environment's own code.
    #[must_use]
    pub fn first_raised(&self) -> Option<String> {
        self.lock().first_raised.clone()
    }

    fn settle(&self, credit: &Credit, verdict: &Verdict) {
        let group = credit.group;
        let ready = credit.ready.load(Ordering::Acquire);
        let all_raised = !ready && credit.all_raised.load(Ordering::Acquire);
        let paid = credit.paid.load(Ordering::Relaxed);
        let mut verdict = verdict;
        let failed;
        if let Verdict::Unanswered(why) = verdict {
            let mut book = self.lock();
            book.last_unanswered = Some(why.clone());
            if book.postponed.add(group, self.unanswered_limit) == Fate::Failed {
                failed = Verdict::Failed(why.clone());
                verdict = &failed;
            }
        }
        let discarded = match verdict {
            Verdict::Trained => None,
            Verdict::Filtered => Some(&self.discarded.filtered),
            Verdict::Dropped | Verdict::Unanswered(_) => Some(&self.discarded.dropped),
            Verdict::Failed(_) => Some(&self.discarded.failed),
        };
        if let Some(discarded) = discarded {
            discarded.fetch_add(paid, Ordering::Relaxed);
        }
        {
            let mut book = self.lock();
            match verdict {
                Verdict::Dropped => book.again.push_back(group),
                Verdict::Unanswered(_) => {}
                Verdict::Trained | Verdict::Filtered | Verdict::Failed(_) => book.settled.insert(group.0),
            }
            if !matches!(verdict, Verdict::Unanswered(_)) {
                book.postponed.settled(group);
            }
            book.stamped.remove(&group);
            book.ready.remove(&group);
            if let Verdict::Failed(why) = verdict {
                book.first_failure.get_or_insert_with(|| why.clone());
                book.last_failure = Some((group, why.clone()));
                if all_raised {
                    book.first_raised.get_or_insert_with(|| why.clone());
                }
            }
        }
        self.counts.send_modify(|counts| match verdict {
            Verdict::Trained => {
                counts.trained += 1;
                counts.filtered_in_a_row = 0;
            }
            Verdict::Filtered => {
                counts.filtered += 1;
                counts.filtered_in_a_row += 1;
            }
            Verdict::Dropped | Verdict::Unanswered(_) => counts.dropped += 1,
            Verdict::Failed(_) => {
                counts.failed += 1;
                counts.failed_in_a_row += u64::from(!ready);
                counts.raised_in_a_row += u64::from(all_raised);
            }
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to be in flight. Lives inside its group.
pub struct Credit {
    group: GroupId,
    ledger: Ledger,
    /// Tokens sampled for it.
    paid: AtomicU64,
    /// Members whose reward failed in the environment's own code.
    raised: AtomicU32,
    all_raised: AtomicBool,
    ready: AtomicBool,
    settled: AtomicBool,
}

impl Credit {
    /// Notes which weights play the group.
    pub fn playing(&self, version: PolicyVersion) {
        self.ledger.lock().stamped.insert(self.group, Stamp { version, ready: false });
    }

    /// Notes tokens that were sampled for the group.
    pub fn paid(&self, tokens: usize) {
        self.paid.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    /// Notes that the reward of one of `members` failed in the environment's own code.
    pub fn raised(&self, members: u32) {
        if self.raised.fetch_add(1, Ordering::AcqRel) + 1 == members {
            self.all_raised.store(true, Ordering::Release);
        }
    }

    /// Notes that the group has come through playing and scoring.
    pub fn ready(&self, members: Arc<[Member]>) {
        self.ready.store(true, Ordering::Release);
        {
            let mut book = self.ledger.lock();
            if let Some(stamp) = book.stamped.get_mut(&self.group) {
                stamp.ready = true;
            }
            book.ready.insert(self.group, members);
            book.first_raised = None;
            book.postponed.answered();
        }
        self.ledger.counts.send_modify(|counts| {
            counts.failed_in_a_row = 0;
            counts.raised_in_a_row = 0;
        });
    }

    /// Notes that the group is part of a batch.
    pub fn batched(&self) {
        self.ledger.lock().stamped.remove(&self.group);
    }

    /// Gives the verdict. Only the first one counts; tells whether this was it.
    pub fn settle(&self, verdict: &Verdict) -> bool {
        let first = !self.settled.swap(true, Ordering::AcqRel);
        if first {
            self.ledger.settle(self, verdict);
        }
        first
    }
}

impl Drop for Credit {
    fn drop(&mut self) {
        self.settle(&Verdict::Failed("lost on the way".into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credit_comes_back_exactly_once() {
        let ledger = Ledger::new(Settled::default());
        let credits: Vec<Credit> = (0..4).map(|n| ledger.open(GroupId(n))).collect();
        credits.iter().zip([10, 20, 40, 80]).for_each(|(credit, tokens)| credit.paid(tokens));
        assert_eq!(ledger.counts().in_flight(), 4);
        assert!(credits[0].settle(&Verdict::Trained));
        assert!(!credits[0].settle(&Verdict::Dropped), "the first verdict stands");
        credits[1].settle(&Verdict::Filtered);
        drop(credits);
        let counts = ledger.counts();
        assert_eq!((counts.trained, counts.filtered, counts.dropped, counts.failed), (1, 1, 0, 2));
        assert_eq!((counts.opened, counts.in_flight()), (4, 0));
        assert_eq!(ledger.failures().unwrap().0, "lost on the way");
        // All but the ten tokens of the group that was trained.
        assert_eq!(ledger.discarded(), Tokens { filtered: 20, dropped: 0, failed: 40 + 80 });
    }

    #[test]
    fn what_was_dropped_comes_again_and_is_not_settled() {
        let ledger = Ledger::new(Settled::default());
        for (n, verdict) in (0..).zip([Verdict::Dropped, Verdict::Trained, Verdict::Dropped]) {
            ledger.open(GroupId(n)).settle(&verdict);
        }
        assert_eq!((0..3).map(|n| ledger.settled().contains(n)).collect::<Vec<_>>(), [false, true, false]);
        let again: Vec<GroupId> = std::iter::from_fn(|| ledger.reopened()).collect();
        assert_eq!(again, [GroupId(0), GroupId(2)]);
        ledger.open(GroupId(0)).settle(&Verdict::Trained);
        assert!(ledger.settled().contains(1) && ledger.counts().dropped == 2);
    }

    #[test]
    fn a_row_of_failures_ends_with_a_group_that_is_ready_and_a_refused_one_adds_nothing() {
        let ledger = Ledger::new(Settled::default());
        let failed = |n| drop(ledger.open(GroupId(n)));
        (0..3).for_each(failed);
        assert_eq!(ledger.counts().failed_in_a_row, 3);
        let good = ledger.open(GroupId(3));
        good.ready(Arc::default());
        assert_eq!(ledger.spares().len(), 1);
        assert_eq!(ledger.counts().failed_in_a_row, 0, "though it is not trained yet");
        failed(4);
        good.settle(&Verdict::Failed("the batch was refused".into()));
        assert_eq!((ledger.counts().failed_in_a_row, ledger.counts().failed), (1, 5));
        assert!(ledger.spares().is_empty(), "it is settled");
    }
}
