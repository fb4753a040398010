//! Busy time of each stage in a step: the mean over all steps, and the slowest step.
//!
//! Metrics record how long each stage was busy within a step, not when. So the bars show durations side by side: two
//! stages with bars nearly as long as the step ran at the same time.

use super::metrics_table::MetricsTable;
use super::numbers::{count, percent, time};
use minds_core::mean::MeanEstimate;
use minds_core::record::{StepKeys, StepRecord};
use serde::Serialize;

const KEYS: StepKeys = StepRecord::KEYS;

/// Bars of one step, or of the mean of all steps.
#[derive(Debug, Serialize)]
pub struct StepBars {
    /// Heading: the mean or the slowest step.
    pub title: String,
    /// Busy times of the stages.
    pub bars: Vec<StageBar>,
}

/// Busy time of one stage.
#[derive(Debug, Serialize)]
pub struct StageBar {
    /// Label of the stage or activity.
    pub label: &'static str,
    /// Name of its color in the palette.
    pub ink: &'static str,
    /// Busy time, formatted with its unit.
    pub time: String,
    /// The same as a share of the step.
    pub share: String,
    /// The same as a share of the longest step, in percent.
    pub width: f64,
}

/// Label, color and metric. The last two appear only if weights were exported or gradient steps are measured.
const STAGES: [(&str, &str, &str); 8] = [
    ("the whole step", "line5", KEYS.time_total),
    ("sampling", "line0", KEYS.time_sampling_busy),
    ("scoring", "line1", KEYS.time_scoring_busy),
    ("training", "line2", KEYS.time_training_busy),
    ("its passes and optimizer", "faint2", KEYS.time_train),
    ("trainer waits for a batch", "faint5", KEYS.time_trainer_idle),
    ("export of the weights", "line3", KEYS.time_export),
    ("measuring gradient steps", "line4", KEYS.shadow_busy),
];

/// Bars of the mean step and of the slowest step.
pub fn steps(table: &MetricsTable) -> Vec<StepBars> {
    let slowest = table.points(KEYS.time_total).into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let Some((slowest, longest)) = slowest else { return Vec::new() };
    let row = table.steps().iter().position(|step| *step as f64 == slowest);
    let of_slowest = |key: &str| table.column(key).zip(row).map(|(column, row)| column[row]);
    let mean = |key: &str| Some(MeanEstimate::of(&table.values(key)).mean);
    let mut steps =
        vec![step(format!("mean of {} steps", count(table.steps().len() as u64)), longest, &mean)];
    if table.steps().len() > 1 {
        steps.push(step(format!("the slowest, step {}", count(slowest as u64)), longest, &of_slowest));
    }
    steps
}

fn step(title: String, longest: f64, of: &dyn Fn(&str) -> Option<f64>) -> StepBars {
    let whole = of(KEYS.time_total).unwrap_or(f64::NAN);
    let bars = STAGES.into_iter().filter_map(|(label, ink, key)| {
        let seconds = of(key).filter(|seconds| seconds.is_finite())?;
        // Work for a step may begin before it, and then takes longer than the step.
        let width = (100.0 * seconds / longest).clamp(0.0, 100.0);
        Some(StageBar { label, ink, time: time(seconds), share: percent(seconds, whole), width })
    });
    StepBars { title, bars: bars.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::metrics_table::tests::table;

    #[test]
    fn bars_are_shares_of_the_slowest_step() {
        let table = table(&[
            "{\"step\":1,\"time/total\":2,\"time/training_busy\":1}",
            "{\"step\":2,\"time/total\":8,\"time/training_busy\":2}",
        ]);
        let [mean, slowest] = &steps(&table)[..] else { panic!("a mean and a slowest step") };
        assert_eq!(slowest.title, "the slowest, step 2");
        let bars = |step: &StepBars| {
            step.bars.iter().map(|b| (b.label, b.share.clone(), b.width)).collect::<Vec<_>>()
        };
        assert_eq!(bars(mean), [("the whole step", "100%".into(), 62.5), ("training", "30%".into(), 18.75)]);
        assert_eq!(
            bars(slowest),
            [("the whole step", "100%".into(), 100.0), ("training", "25%".into(), 25.0)]
        );
        assert!(steps(&MetricsTable::default()).is_empty());
    }
}
