//! Capacity of each mailbox of a pipeline: enough that no mailbox blocks before the credits do.

use super::PipelineOptions;
use std::num::NonZeroUsize;

/// The capacity of each mailbox, in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxCapacities {
    /// Groups on their way to the sampler: as many as there are credits.
    pub groups: NonZeroUsize,
    /// Rollouts on their way to the scorer, which is as many as it scores at a time: more would only wait there.
    pub rollouts: NonZeroUsize,
    /// Scores on their way to the batcher: those of every member of every group in flight.
    pub scored: NonZeroUsize,
    /// Batches on their way to the trainer: one that is trained and one that is ready.
    pub batches: NonZeroUsize,
}

impl MailboxCapacities {
    /// Capacities for these options and a largest group of `members` rollouts.
    #[must_use]
    pub fn of(options: &PipelineOptions, members: u32) -> Self {
        let some = |n: usize| NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN);
        let groups = some(options.credits() as usize);
        Self {
            groups,
            rollouts: options.scorers,
            scored: groups.saturating_mul(some(members as usize)),
            batches: NonZeroUsize::MIN.saturating_add(1),
        }
    }

    /// Each with the name of its mailbox, in the order of the stages.
    #[must_use]
    pub fn named(&self) -> [(&'static str, NonZeroUsize); 4] {
        [
            ("groups", self.groups),
            ("rollouts", self.rollouts),
            ("scored", self.scored),
            ("batches", self.batches),
        ]
    }
}
