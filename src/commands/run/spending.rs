//! What a run costs: kept in its folder while it runs, and its cap.

use crate::commands::print_line;
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::run_folder::RunFolder;
use anyhow::anyhow;
use minds_stages::usage::usage_meter::{UsageCounts, UsageMeter};

/// Counts of a run, and its cap.
pub(super) struct Spending {
    pub(super) meter: UsageMeter,
    max_usd: Option<f64>,
    /// Counts in the run folder.
    written: UsageCounts,
}

impl Spending {
    pub(super) fn new(meter: UsageMeter, max_usd: Option<f64>) -> Self {
        Self { meter, max_usd, written: UsageCounts::default() }
    }

    /// Writes the counts into the run folder if they have changed.
    pub(super) fn write(&mut self, folder: &RunFolder) -> Result<(), CommandError> {
        let Some(counts) = self.meter.counts().filter(|counts| *counts != self.written) else {
            return Ok(());
        };
        folder.write_usage(&counts).or_exit(ProcessExit::Failed)?;
        self.written = counts;
        Ok(())
    }

    /// Prints the counts of the whole run.
    pub(super) fn print(&self) {
        let Some(counts) = self.meter.counts() else { return };
        let tokens = counts.most();
        let usd =
            self.meter.usd(&counts).map_or_else(|| "price unknown".into(), |usd| format!("{usd:.4} USD"));
        print_line!(
            "cost         {usd}: {} tokens prefilled, {} cached, {} sampled, {} trained",
            tokens.prefill_uncached,
            tokens.prefill_cached,
            tokens.sampled,
            tokens.trained
        );
    }

    /// The error of a run that was stopped below its cap.
    pub(super) fn cap_reached(&self, folder: &RunFolder, step: u64) -> Result<(), CommandError> {
        let counts = self.meter.counts().unwrap_or_default();
        let usd = self.meter.usd(&counts).unwrap_or_default();
        let cap = self.max_usd.unwrap_or_default();
        Err(anyhow!(
            "stopped after step {step}: the run has cost {usd:.4} USD, and its next requests could pass \
             `[budget] max_usd` = {cap}; raise it and run the same config with --output-dir {} to resume",
            folder.path().display()
        ))
        .or_exit(ProcessExit::Budget)
    }
}
