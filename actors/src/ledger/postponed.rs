//! Groups that no service answered for: when each is opened again, and when it counts as failed.
//!
//! A service that fails at once would otherwise receive the same groups without a pause. Each group waits longer with
//! each attempt. While no group becomes ready, no other one is opened either, so that an outage costs a few samples and
//! not as many as the run can sample meanwhile.

use minds_core::ids::GroupId;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Pause after the first attempt; it doubles with each.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Upper bound of the doubling pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Exponential back-off since the first unanswered attempt of a series.
#[derive(Clone, Copy, Debug)]
struct Backoff {
    since: Instant,
    pause: Duration,
    /// Earliest time of the next attempt.
    due: Instant,
}

impl Backoff {
    fn begin(now: Instant) -> Self {
        Self { since: now, pause: FIRST_PAUSE, due: now + FIRST_PAUSE }
    }

    /// Records another unanswered attempt. One that fails before the pause is over had already started.
    fn again(&mut self, now: Instant, limit: Duration) {
        if now >= self.due {
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            // The last attempt is made when the limit is over, not before.
            self.due = (now + self.pause).min((self.since + limit).max(now));
        }
    }
}

/// Groups that no service answered for.
#[derive(Default)]
pub(super) struct PostponedGroups {
    groups: BTreeMap<GroupId, (Backoff, bool)>,
    /// Attempts since the last group that became ready.
    all: Option<Backoff>,
}

/// What becomes of a group that no service answered for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PostponedOutcome {
    /// The group is opened again.
    Later,
    /// The group has been unanswered for too long.
    Failed,
}

impl PostponedGroups {
    /// Adds a group that no service answered for.
    pub(super) fn add(&mut self, group: GroupId, limit: Duration) -> PostponedOutcome {
        let now = Instant::now();
        match &mut self.all {
            Some(row) => row.again(now, limit),
            None => self.all = Some(Backoff::begin(now)),
        }
        let (row, waits) = self.groups.entry(group).or_insert_with(|| (Backoff::begin(now), true));
        if now - row.since >= limit {
            self.groups.remove(&group);
            return PostponedOutcome::Failed;
        }
        if !*waits {
            row.again(now, limit);
            *waits = true;
        }
        PostponedOutcome::Later
    }

    /// A group that may be opened again by now.
    pub(super) fn take(&mut self) -> Option<GroupId> {
        let now = Instant::now();
        let (group, (_, waits)) =
            self.groups.iter_mut().find(|(_, (row, waits))| *waits && row.due <= now)?;
        *waits = false;
        Some(*group)
    }

    /// Records that a group became ready, which ends the pause of all groups.
    pub(super) fn answered(&mut self) {
        self.all = None;
    }

    /// Removes a group that has its outcome.
    pub(super) fn settled(&mut self, group: GroupId) {
        self.groups.remove(&group);
    }

    /// Until when no group is opened.
    pub(super) fn paused_until(&self) -> Option<Instant> {
        self.all.map(|row| row.due).filter(|due| *due > Instant::now())
    }

    /// Time since the last ready group, if groups have been unanswered since.
    pub(super) fn lasts(&self) -> Option<Duration> {
        self.all.map(|row| row.since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

    const LIMIT: Duration = Duration::from_secs(600);

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    /// A group that fails as soon as it is opened, and the times at which it is.
    #[tokio::test(start_paused = true)]
    async fn a_postponed_group_returns_after_doubling_pauses_and_fails_at_its_limit() {
        let mut postponed = PostponedGroups::default();
        let begun = Instant::now();
        let mut opened = Vec::new();
        while postponed.add(GroupId(3), LIMIT) == PostponedOutcome::Later {
            assert_eq!(postponed.take(), None, "not at once");
            advance(postponed.paused_until().unwrap() - Instant::now()).await;
            assert_eq!(postponed.take(), Some(GroupId(3)));
            opened.push(begun.elapsed().as_secs());
        }
        assert_eq!(opened[..8], [1, 3, 7, 15, 31, 63, 123, 183]);
        assert_eq!(begun.elapsed(), LIMIT);
        assert_eq!(postponed.lasts(), Some(LIMIT));
    }

    #[tokio::test(start_paused = true)]
    async fn groups_that_fail_together_count_once_and_a_success_ends_the_series() {
        let mut postponed = PostponedGroups::default();
        assert!((0..8).all(|n| postponed.add(GroupId(n), LIMIT) == PostponedOutcome::Later));
        assert_eq!(postponed.paused_until(), Some(Instant::now() + seconds(1)));
        advance(seconds(1)).await;
        assert_eq!(postponed.take(), Some(GroupId(0)));
        postponed.settled(GroupId(0));
        postponed.answered();
        assert_eq!((postponed.paused_until(), postponed.lasts()), (None, None));
        assert_eq!(postponed.take(), Some(GroupId(1)), "the others still come");
    }
}
