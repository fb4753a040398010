//! Reads a pipeline from outside, at any moment and from any thread, without messages to its stages.

use crate::ledger::Ledger;
use crate::mailbox::{MailboxGauge, MailboxStats};
use crate::policy::QueryBudget;
use crate::telemetry::StageBoard;
use crate::telemetry::activity::Activity;
use crate::telemetry::meters::PipelineMeters;
use std::sync::Arc;

/// Everything that can be read from a pipeline. Cheap to clone; after the end it returns the last values.
#[derive(Clone)]
pub struct Observer {
    /// The ledger of all groups.
    pub ledger: Ledger,
    /// The latest snapshot of every stage.
    pub board: StageBoard,
    /// Busy times of the stages.
    pub activity: Activity,
    /// Counters of the pipeline for Prometheus.
    pub meters: PipelineMeters,
    /// Counts of the rewards' queries.
    pub queries: Arc<QueryBudget>,
    /// Most groups started and not yet settled.
    pub credits: u64,
    /// Mailbox gauges, in the order of the stages.
    pub(crate) mailboxes: Arc<[MailboxGauge]>,
}

impl Observer {
    /// Depth and traffic of the mailboxes, in the order of the stages.
    #[must_use]
    pub fn mailboxes(&self) -> Vec<MailboxStats> {
        self.mailboxes.iter().map(MailboxGauge::stats).collect()
    }
}
