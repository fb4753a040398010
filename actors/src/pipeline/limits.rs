//! Series of groups without success after which a run is given up.

use super::PipelineOptions;
use crate::error::PipelineError;
use crate::ledger::{GroupCounts, Ledger, one_line};
use crate::stages::batcher::ConstantGroups;

/// Most groups in a row that may end without teaching anything.
pub(super) struct SeriesLimits {
    failed: u64,
    raised: u64,
    /// No bound unless constant groups are replaced.
    replaced: u64,
}

impl SeriesLimits {
    pub(super) fn new(options: &PipelineOptions) -> Self {
        let replaced = match options.batch.constant {
            ConstantGroups::Replace => options.max_replaced_in_a_row,
            ConstantGroups::Keep | ConstantGroups::Drop => u64::MAX,
        };
        Self { failed: options.max_failed_in_a_row, raised: options.max_raised_in_a_row, replaced }
    }

    /// Waits until a series has become too long.
    pub(super) async fn exceeded(&self, ledger: &Ledger) -> PipelineError {
        let mut counts = ledger.watch();
        loop {
            let now = *counts.borrow_and_update();
            if let Some(error) = self.check(&now, ledger) {
                return error;
            }
            // The sender lives in the ledger, so the wait cannot fail.
            drop(counts.changed().await);
        }
    }

    fn check(&self, counts: &GroupCounts, ledger: &Ledger) -> Option<PipelineError> {
        let groups = counts.raised_in_a_row;
        if groups >= self.raised
            && let Some(first) = ledger.first_raised()
        {
            return Some(PipelineError::EnvironmentFailed { groups, first });
        }
        let groups = counts.filtered_in_a_row;
        if groups >= self.replaced {
            return Some(PipelineError::NothingToLearn { groups });
        }
        if let Some((lasts, why)) = ledger.unanswered() {
            return Some(PipelineError::Unanswered { seconds: lasts.as_secs(), why });
        }
        if counts.failed_in_a_row < self.failed {
            return None;
        }
        let groups = self.failed;
        let lost = ledger.is_lost();
        let (first, group, last) = ledger.failures()?;
        Some(if first == last {
            PipelineError::GroupsFailed { groups, group, last, first: None, lost }
        } else {
            let last = one_line(&last).into_owned();
            PipelineError::GroupsFailed { groups, group, last, first: Some(first), lost }
        })
    }
}
