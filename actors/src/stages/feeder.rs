//! Opens groups while credits last.
//!
//! The item at a position is a function of seed and position alone, so what is opened never depends on timing. A
//! dropped position is opened again before new ones. While no service answers, no group is opened for a while. No
//! more groups are opened than the remaining steps can train.

use crate::ledger::{GroupCounts, Ledger, SettledPositions};
use crate::mailbox::MailboxSender;
use crate::messages::{Group, MixtureComponent};
use minds_core::ids::GroupId;
use minds_core::schedule::Schedule;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::sleep_until;
use tracing::info_span;

/// The first stage: opens groups in the order of the schedule. A task and not an actor, for nothing is sent to it.
pub struct Feeder {
    /// The item at each position.
    pub schedule: Schedule,
    /// The environments, by index in the schedule.
    pub components: Arc<[Arc<MixtureComponent>]>,
    /// The ledger that opens groups.
    pub ledger: Ledger,
    /// Positions that an earlier part of the run has settled.
    pub skip: SettledPositions,
    /// How many groups may be open.
    pub allowance: Allowance,
    /// Turns true when the run stops.
    pub stop: watch::Receiver<bool>,
    /// Mailbox of the sampler.
    pub groups: MailboxSender<Arc<Group>>,
}

impl Feeder {
    /// Opens groups until the run stops or the sampler has gone.
    pub async fn run(mut self) {
        let mut counts = self.ledger.watch();
        let mut fresh = self.skip.rest().map(GroupId);
        loop {
            tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => return,
                open = counts.wait_for(|counts| self.allowance.allows(counts)) => if open.is_err() { return },
            }
            while let Some(until) = self.ledger.paused_until() {
                tokio::select! {
                    biased;
                    _ = self.stop.wait_for(|stop| *stop) => return,
                    () = sleep_until(until) => {}
                }
            }
            let Some(id) = self.ledger.reopened().or_else(|| fresh.next()) else { return };
            let group = open(id, &self.schedule, &self.components, &self.ledger);
            if self.groups.send(Arc::new(group)).await.is_err() {
                return;
            }
        }
    }
}

/// How many groups may be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// Most groups started and not settled.
    pub credits: u64,
    /// Groups that the remaining steps can train.
    pub wanted: u64,
    /// Whether groups without a learning signal count toward `wanted`.
    pub filtered_too: bool,
}

impl Allowance {
    /// Whether one more may be opened.
    #[must_use]
    pub fn allows(&self, counts: &GroupCounts) -> bool {
        let placed = counts.trained + if self.filtered_too { counts.filtered } else { 0 };
        counts.in_flight() < self.credits && placed + counts.in_flight() < self.wanted
    }
}

/// Opens the group at a position of the schedule.
pub(crate) fn open(
    id: GroupId,
    schedule: &Schedule,
    components: &[Arc<MixtureComponent>],
    ledger: &Ledger,
) -> Group {
    let key = schedule.item(id.0);
    let component = components[usize::from(key.component)].clone();
    let item = component.environment.item(key.item);
    let span = info_span!(parent: None, "group", %id, environment = component.name, item = key.item);
    Group { id, key, component, item, credit: ledger.open(id), span }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_and_the_end_of_the_run_both_bound_what_is_open() {
        let allowance = Allowance { credits: 4, wanted: 10, filtered_too: false };
        let counts =
            |opened, trained, failed| GroupCounts { opened, trained, failed, ..GroupCounts::default() };
        assert!(allowance.allows(&counts(3, 0, 0)));
        assert!(!allowance.allows(&counts(4, 0, 0)), "four are in flight");
        assert!(allowance.allows(&counts(9, 9, 0)));
        assert!(!allowance.allows(&counts(10, 9, 0)), "nine trained and one in flight make ten");
        assert!(allowance.allows(&counts(10, 8, 1)), "a failed group is replaced");
        let filtered = GroupCounts { filtered: 1, ..counts(10, 9, 0) };
        assert!(allowance.allows(&filtered), "so is one without signal");
        assert!(!Allowance { filtered_too: true, ..allowance }.allows(&filtered), "unless it took its place");
    }
}
