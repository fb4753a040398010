//! Reads a line from outside, at any moment and from any thread, without a word to its stages.

use crate::activity::Activity;
use crate::kit::{Board, LaneGauge, LaneStats};
use crate::ledger::Ledger;
use crate::queries::Queries;
use std::sync::Arc;

/// Everything that can be read off a line. Cheap to clone; reads the last numbers of a line that has ended.
#[derive(Clone)]
pub struct Observer {
    /// The book of groups.
    pub ledger: Ledger,
    /// What every stage last said about itself.
    pub board: Board,
    /// Who is busy when.
    pub activity: Activity,
    /// How often rewards have asked.
    pub queries: Arc<Queries>,
    /// Most groups started and not yet settled.
    pub credits: u64,
    /// In the order of the stages.
    pub(crate) lanes: Arc<[LaneGauge]>,
}

impl Observer {
    /// Depth and traffic of the lanes, in the order of the stages.
    #[must_use]
    pub fn lanes(&self) -> Vec<LaneStats> {
        self.lanes.iter().map(LaneGauge::stats).collect()
    }
}
