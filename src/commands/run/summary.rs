//! Sums over a run, and the text of its summary.

use minds_core::mean::MeanEstimate;
use minds_core::record::StepRecord;
use minds_stages::messages::CommittedStep;
use minds_stages::telemetry::activity::BusyTimes;
use minds_stages::trainer::StalenessHistogram;
use std::time::Duration;

/// Number of first and last steps that are compared.
pub(super) const WINDOW: usize = 10;

/// Steps after which a flat reward is reported.
const STANDSTILL: usize = 50;

/// Share of the time from which waiting for stragglers is reported at the end.
const WAITED_LONG: f64 = 0.05;

/// Sums over the run.
#[derive(Default)]
pub(super) struct RunSummary {
    sampled: f64,
    trained: f64,
    rewards: Vec<f64>,
    /// Mean negative logprob of each step's imitated tokens, in a supervised run.
    nll: Vec<f64>,
    /// Steps before this start of the run.
    before: usize,
    /// Staleness of the last step, as [`staleness`] writes it.
    staleness: String,
    /// Mean staleness of each step's rollouts by the newest weights that sampled them, where weights are in flight.
    newest: Vec<f64>,
    /// Mean staleness of each step's tokens, where the service tells which weights sampled them.
    of_tokens: Vec<f64>,
    /// Staleness of all groups trained since this start of the run.
    histogram: StalenessHistogram,
    /// Seconds in which a complete batch was held back for stragglers while the trainer was idle.
    held: f64,
}

impl RunSummary {
    /// Creates the sums of a run that resumes after these steps.
    pub(super) fn after(rows: &[StepRecord]) -> Self {
        let rewards = rows.iter().filter_map(StepRecord::reward).collect();
        let nll = rows.iter().filter_map(|row| row.train_nll).collect();
        Self { rewards, nll, before: rows.len(), ..Self::default() }
    }

    /// Adds a step to the sums.
    pub(super) fn add(&mut self, done: &CommittedStep) {
        let CommittedStep { record, groups } = done;
        self.histogram.add(record.step, groups);
        self.sampled += record.tokens_sampled.unwrap_or(0.0);
        self.trained += record.tokens_trained.unwrap_or(0.0);
        match record.train_nll {
            Some(nll) => self.nll.push(nll),
            None => self.rewards.push(record.reward().unwrap_or(0.0)),
        }
        self.staleness = staleness(record);
        self.newest.extend(record.staleness_newest);
        self.of_tokens.extend(record.staleness_token);
        self.held += record.time_waits_for_stragglers.unwrap_or(0.0);
    }

    /// Whether the reward has not moved by more than its noise since the run began; true at most once.
    pub(super) fn is_reward_flat(&self) -> bool {
        if self.rewards.len() != STANDSTILL {
            return false;
        }
        let first = MeanEstimate::of(&self.rewards[..WINDOW]);
        let last = MeanEstimate::of(&self.rewards[STANDSTILL - WINDOW..]);
        let change = last.minus(&first);
        // A constant reward is either perfect or hopeless; both are worth reporting.
        change.error.is_some_and(|error| change.mean.abs() <= 2.0 * error)
    }

    /// Short text about the last step.
    pub(super) fn progress_line(&self) -> String {
        match (self.rewards.last(), self.nll.last()) {
            (Some(reward), _) => format!("reward {reward:.3} · staleness {}", self.staleness),
            (None, Some(nll)) => format!("nll {nll:.3}"),
            (None, None) => "no step yet".into(),
        }
    }

    /// Advice if the trainer waited for stragglers for more than 5% of the time.
    pub(super) fn straggler_note(&self, max_staleness: u64, shares: &BusyTimes) -> Option<String> {
        let share = self.held / shares.wall;
        (share > WAITED_LONG).then(|| {
            format!(
                "for {:.0}% of the time a complete batch was held back until stragglers finished, so that no \
                 rollout is more than {} steps stale: a larger `trainer.max_staleness` is faster, and with `trainer.staleness \
                 = \"drop\"` such rollouts are resampled",
                100.0 * share,
                max_staleness
            )
        })
    }

    /// The last lines of a run that ended after `step` of `max_steps` steps without an error.
    pub(super) fn summary(&self, step: u64, max_steps: u64, took: Duration, shares: &BusyTimes) -> String {
        let seconds = took.as_secs_f64();
        let rewards = progress(&self.rewards);
        let here = match self.before as u64 {
            0 => String::new(),
            before => format!(", {} of them since the resume", step.saturating_sub(before)),
        };
        let end = match step < max_steps {
            true => format!("stopped      after {step} of {max_steps} steps"),
            false => format!("done         {step} steps"),
        };
        if !self.nll.is_empty() {
            let trained = self.trained / seconds;
            let nll = progress(&self.nll);
            return format!("{end}{here}; {seconds:.0} s, {trained:.1} tokens/s trained\nnll          {nll}");
        }
        format!(
            "{end}{here}; {:.0} s, {:.1} tokens/s sampled, {:.1} tokens/s trained\n\
             busy         sampling {:.0}%, scoring {:.0}%, training {:.0}% of the time; \
             {:.0}% of the training time overlapped with sampling or scoring\n\
             staleness    {:.2} steps on average, {} for half of the groups, {} for 99 of 100, {} at most{}\n\
             reward       {rewards}",
            seconds,
            self.sampled / seconds,
            self.trained / seconds,
            100.0 * shares.sampling / shares.wall,
            100.0 * shares.scoring / shares.wall,
            100.0 * shares.training / shares.wall,
            100.0 * shares.overlap_share(),
            self.histogram.mean(),
            self.histogram.percentile(0.5),
            self.histogram.percentile(0.99),
            self.histogram.percentile(1.0),
            self.in_flight_staleness(),
        )
    }

    /// What the staleness of groups, which is that of their oldest weights, leaves out where weights are in flight.
    fn in_flight_staleness(&self) -> String {
        if self.newest.is_empty() {
            return String::new();
        }
        let newest = mean(&self.newest);
        let of_tokens = match self.of_tokens.len() == self.newest.len() {
            true => format!(", that of its tokens {:.2}", mean(&self.of_tokens)),
            false => String::new(),
        };
        format!("; that of a rollout's newest weights {newest:.2}{of_tokens}")
    }
}

/// The means of the first and of the last steps.
fn progress(of_steps: &[f64]) -> String {
    match of_steps.len() {
        0 => "no step was done".into(),
        all if all < 2 * WINDOW => format!("{:.3} over all steps", mean(of_steps)),
        all => format!(
            "{:.3} over the first {WINDOW} steps, {:.3} over the last {WINDOW}",
            mean(&of_steps[..WINDOW]),
            mean(&of_steps[all - WINDOW..])
        ),
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Mean staleness of a step's groups; where weights are in flight, the range from the newest weights of the rollouts to
/// the oldest.
fn staleness(record: &StepRecord) -> String {
    let oldest = record.staleness_mean.unwrap_or(f64::NAN);
    match record.staleness_newest {
        Some(newest) => format!("{newest:.1}–{oldest:.1}"),
        None => format!("{oldest:.1}"),
    }
}

/// The main numbers of a step as one line.
pub(super) fn step_line(record: &StepRecord) -> String {
    let known = |number: Option<f64>| number.unwrap_or(f64::NAN);
    if let Some(nll) = record.train_nll {
        return format!(
            "step {:<7} nll {nll:<7.3} tokens {:<6} train {:.2} s, step {:.2} s",
            record.step,
            known(record.tokens_trained),
            known(record.time_train),
            known(record.time_total),
        );
    }
    // Absent if nothing was trained.
    let kl = record.kl_v2.map_or("–".into(), |kl| format!("{kl:.2e}"));
    format!(
        "step {:<7} reward {:<7.3} kl {kl:<9} entropy {:<6.3} stale {:<4} sampled {:<5} train {:.2} s, step {:.2} s, overlap {:.0}%",
        record.step,
        known(record.reward()),
        known(record.entropy),
        staleness(record),
        known(record.tokens_sampled),
        known(record.time_train),
        known(record.time_total),
        100.0 * known(record.overlap_share),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_flight_staleness_is_shown_as_a_range() {
        let mut summary = RunSummary::default();
        let line = |newest| {
            let record = StepRecord {
                step: 1,
                staleness_mean: Some(2.0),
                staleness_newest: newest,
                staleness_token: Some(1.0),
                ..StepRecord::default()
            };
            (step_line(&record), CommittedStep { record, groups: Vec::new() })
        };
        let (snapshot, step) = line(None);
        assert!(snapshot.contains("stale 2.0  sampled"), "{snapshot}");
        summary.add(&step);
        assert!(!summary.in_flight_staleness().contains("newest"));
        let (in_flight, step) = line(Some(0.5));
        assert!(in_flight.contains("stale 0.5–2.0 sampled"), "{in_flight}");
        let mut summary = RunSummary::default();
        summary.add(&step);
        assert!(summary.progress_line().ends_with("staleness 0.5–2.0"), "{}", summary.progress_line());
        assert_eq!(
            summary.in_flight_staleness(),
            "; that of a rollout's newest weights 0.50, that of its tokens 1.00"
        );
    }

    // H20: a published run had not learnt anything, and nothing said so.
    #[test]
    fn h20_a_constant_reward_is_reported_once() {
        let told = |reward: fn(usize) -> f64| -> Vec<usize> {
            let mut totals = RunSummary::default();
            (1..=100)
                .filter(|step| {
                    totals.rewards.push(reward(*step));
                    totals.is_reward_flat()
                })
                .collect()
        };
        // Noise of ±0.1 about a level, and about a line.
        assert_eq!(told(|n| if n % 2 == 0 { 0.4 } else { 0.6 }), [50]);
        assert_eq!(told(|n| 0.01 * n as f64 + if n % 2 == 0 { 0.4 } else { 0.6 }), [0; 0]);
        assert_eq!(told(|_| 0.5), [50]);
    }
}
