//! What a run costs: kept in its folder while it runs, and its cap.

use crate::commands::cost::cost_line;
use crate::commands::print_line;
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::run_folder::RunFolder;
use anyhow::anyhow;
use minds_stages::usage::usage_meter::{RequestStop, UsageCounts, UsageMeter};

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
        if let Some(line) = cost_line(&self.meter) {
            print_line!("{line}");
        }
    }

    /// The error of a run that has saved this step after its requests were stopped.
    pub(super) fn stopped(
        &self,
        stop: RequestStop,
        folder: &RunFolder,
        step: u64,
    ) -> Result<(), CommandError> {
        if let RequestStop::Denied(error) = stop {
            let saved = format!("stopped after step {step}, which is saved in {}", folder.path().display());
            return Err(anyhow::Error::new(error).context(saved)).or_exit(ProcessExit::Account);
        }
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
