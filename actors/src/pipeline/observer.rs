//! Reads a line from outside, at any moment and from any thread, without a word to its stages.

use crate::ledger::Ledger;
use crate::mailbox::{MailboxGauge, MailboxStats};
use crate::policy::QueryBudget;
use crate::telemetry::StageBoard;
use crate::telemetry::activity::Activity;
use std::sync::Arc;

/// Everything that can be read off a line. Cheap to clone; reads the last numbers of a line that has ended.
#[derive(Clone)]
pub struct Observer {
    /// The book of groups.
    pub ledger: Ledger,
    /// What every stage last said about itself.
    pub board: StageBoard,
    /// Who is busy when.
    pub activity: Activity,
    /// How often rewards have asked.
    pub queries: Arc<QueryBudget>,
    /// Most groups started and not yet settled.
    pub credits: u64,
    /// In the order of the stages.
    pub(crate) mailboxes: Arc<[MailboxGauge]>,
}

impl Observer {
    /// Depth and traffic of the mailboxes, in the order of the stages.
    #[must_use]
    pub fn mailboxes(&self) -> Vec<MailboxStats> {
        self.mailboxes.iter().map(MailboxGauge::stats).collect()
    }
}
