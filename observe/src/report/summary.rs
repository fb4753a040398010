//! Summary of a run in a few numbers.

use super::metrics_table::MetricsTable;
use super::numbers::{count, percent, several, show, show_mean, time};
use super::source::{ReportSource, ReportedConfig};
use crate::dashboard::EnvironmentShare;
use minds_core::mean::MeanEstimate;
use minds_core::record::{ALL_ENVIRONMENTS, EnvironmentRecord, StepKeys, StepRecord, environment_key};
use minds_core::service::SamplerWeights;
use minds_stages::batcher::StalenessHandling;
use minds_stages::pipeline::PipelineOptions;
use serde::Serialize;
use serde_json::json;

const KEYS: StepKeys = StepRecord::KEYS;

/// Number of steps compared at each end of the run.
const WINDOW: usize = 10;
/// Maximum number of steps that a note lists.
const NAMED: usize = 12;

/// A labeled value with a note.
#[derive(Debug, Serialize)]
pub struct ReportFact {
    /// Label of the value.
    pub label: String,
    /// The value, formatted for display.
    pub value: String,
    /// Note beside the value; may be empty.
    pub note: String,
}

/// Creates a fact with its note.
pub fn fact(label: &str, value: impl Into<String>, note: impl Into<String>) -> ReportFact {
    ReportFact { label: label.into(), value: value.into(), note: note.into() }
}

/// How the reward of an environment changed.
#[derive(Debug, Serialize)]
pub struct RewardChange {
    /// Name of the environment, or `all`.
    pub environment: String,
    /// Number of steps in which it was trained.
    pub steps: String,
    /// Mean reward of the first steps, with its standard error.
    pub first: String,
    /// Mean reward of the last steps, with its standard error.
    pub last: String,
    /// Last mean minus first mean, with its standard error.
    pub difference: String,
    /// `up` or `down` if the difference exceeds twice its standard error, else empty.
    pub direction: &'static str,
    /// Number of steps averaged at each end.
    pub window: usize,
}

/// Status of the run in a phrase.
pub fn status(source: &ReportSource) -> String {
    let done = source.table.steps().last().copied();
    let total = source.settings.as_ref().map(|settings| settings.pipeline.train.max_steps);
    let of = total.map(|total| format!(" of {}", count(total))).unwrap_or_default();
    let Some(done) = done else { return format!("no step yet{of}") };
    let steps = format!("{}{of} steps", count(done));
    let saved = source.checkpoints.last();
    match saved {
        Some(saved) if total.is_some_and(|total| saved.step >= total) => format!("finished: {steps}"),
        Some(saved) if saved.name.ends_with("-stop") && saved.step == done => {
            format!("stopped, with a checkpoint saved: {steps}")
        }
        // The lock would distinguish the two, but taking it could keep a run from starting.
        _ => format!("in progress or interrupted: {steps}"),
    }
}

/// Key figures at the top of the page.
pub fn headline(source: &ReportSource) -> Vec<ReportFact> {
    let table = &source.table;
    let seconds = table.sum(KEYS.time_total);
    let mut facts = Vec::new();
    if let Some(change) = change(table, ALL_ENVIRONMENTS) {
        let note = format!("mean of the last {} steps; {} over the first", change.window, change.first);
        facts.push(fact("Reward", change.last, note));
    }
    let mean = MeanEstimate::of(&table.values(KEYS.time_total)).mean;
    facts.push(fact(
        "Steps",
        count(table.steps().last().copied().unwrap_or(0)),
        format!("{} each", time(mean)),
    ));
    facts.push(fact("Time", time(seconds), "sum over the steps on record"));
    let tokens = |key: &str| {
        let sum = table.sum(key);
        (count(sum as u64), format!("{} per second", show(sum / seconds)))
    };
    let (sampled, rate) = tokens(KEYS.tokens_sampled);
    let (trained, trained_rate) = tokens(KEYS.tokens_trained);
    facts.push(fact("Tokens sampled", sampled, rate));
    facts.push(fact("Tokens trained", trained, trained_rate));
    let busy = |key: &str| percent(table.sum(key), seconds);
    let sampling = busy(KEYS.time_sampling_busy);
    let scoring = busy(KEYS.time_scoring_busy);
    let note = format!("sampling {sampling}, scoring {scoring} of the time");
    facts.push(fact("Training busy", busy(KEYS.time_training_busy), note));
    facts
}

/// Change of the reward of each environment, and of all together if there are several.
pub fn changes(source: &ReportSource) -> Vec<RewardChange> {
    let names = source.environments();
    let all = (names.len() > 1).then(|| ALL_ENVIRONMENTS.to_owned());
    names.into_iter().chain(all).filter_map(|name| change(&source.table, &name)).collect()
}

fn change(table: &MetricsTable, environment: &str) -> Option<RewardChange> {
    let rewards = table.values(&environment_key(environment, EnvironmentRecord::KEYS.reward));
    if rewards.is_empty() {
        return None;
    }
    // The two windows must not overlap in a short run.
    let window = WINDOW.min(rewards.len().div_ceil(2));
    let first = MeanEstimate::of(&rewards[..window]);
    let last = MeanEstimate::of(&rewards[rewards.len() - window..]);
    let difference = last.minus(&first);
    let direction = match difference.error {
        Some(error) if difference.mean > 2.0 * error => "up",
        Some(error) if difference.mean < -2.0 * error => "down",
        _ => "",
    };
    Some(RewardChange {
        environment: environment.into(),
        steps: count(rewards.len() as u64),
        first: show_mean(first),
        last: show_mean(last),
        difference: show_mean(difference),
        direction,
        window,
    })
}

/// Step of the last checkpoint, and its groups by outcome.
pub fn groups(source: &ReportSource) -> Option<(u64, Vec<ReportFact>)> {
    let last = source.checkpoints.last().filter(|last| last.groups.opened > 0)?;
    let counts = last.groups;
    let share = |label, number: u64, note: &str| {
        fact(label, count(number), format!("{}, {note}", percent(number as f64, counts.opened as f64)))
    };
    Some((
        last.step,
        vec![
            fact("Opened", count(counts.opened), "groups"),
            share("Trained", counts.trained, "in a batch of the trainer"),
            share("Filtered", counts.filtered, "nothing to teach"),
            share("Dropped", counts.dropped, "too stale or without an answer, resampled"),
            share("Failed", counts.failed, "something went wrong"),
            share("In flight", counts.in_flight(), "at the last checkpoint"),
        ],
    ))
}

/// Errors and skipped work in the recorded steps.
pub fn faults(source: &ReportSource) -> Vec<ReportFact> {
    let table = &source.table;
    let in_steps = |steps: &[u64]| {
        let named: Vec<String> = steps.iter().take(NAMED).map(u64::to_string).collect();
        let more = if steps.len() > NAMED { ", …" } else { "" };
        if steps.is_empty() { "in no step".into() } else { format!("step {}{more}", named.join(", ")) }
    };
    let of_steps = |label: &str, steps: Vec<u64>, none: &str, some: &str| {
        let note = if steps.is_empty() { none.into() } else { format!("{}; {some}", in_steps(&steps)) };
        fact(label, count(steps.len() as u64), note)
    };
    let missing = environment_key(ALL_ENVIRONMENTS, EnvironmentRecord::KEYS.reward_errors);
    let steps = table.points(&missing).into_iter().filter(|point| point.1 > 0.0);
    let steps: Vec<u64> = steps.map(|(step, _)| step as u64).collect();
    let quarantined: u64 = source.quarantine.counts.values().sum();
    let alarm = source.settings.as_ref().and_then(|settings| settings.pipeline.train.kl_alarm);
    let limit =
        alarm.map_or_else(|| "no limit is set".into(), |limit| format!("the limit is {} nats", show(limit)));
    vec![
        fact("Rollouts without a reward", count(table.sum(&missing) as u64), in_steps(&steps)),
        fact("In quarantine", count(quarantined), "rewards that failed after all retries"),
        of_steps(
            "Batches without an optimizer step",
            table.steps_where(KEYS.stepped, 0.0),
            "every batch changed the weights",
            "the weights are unchanged, because there was no gradient",
        ),
        of_steps("KL alarms", table.steps_where(KEYS.kl_alarm, 1.0), &limit, &limit),
    ]
}

/// Main settings of the config.
pub fn settings(settings: &ReportedConfig) -> Vec<ReportFact> {
    let ReportedConfig { pipeline, sampling, lora, environments, .. } = settings;
    let PipelineOptions { batch, train, .. } = pipeline;
    // If the config sets no threads, their number depended on the machine of the run.
    let threads = settings.threads.map(|threads| several(threads.get() as u64, "thread"));
    let environment = |env: &EnvironmentShare| match env.weight {
        0.0 => format!("{} (only evaluated)", env.name),
        weight if environments.len() > 1 => format!("{} ({})", env.name, show(weight)),
        _ => env.name.clone(),
    };
    let environments: Vec<String> = environments.iter().map(environment).collect();
    let groups = several(batch.groups_per_batch.get() as u64, "group");
    let answers = format!("up to {}", several(sampling.max_tokens as u64, "token"));
    vec![
        fact("Model", &settings.base_model, settings.renderer.clone().unwrap_or_default()),
        fact("Service", &settings.service, threads.unwrap_or_default()),
        fact("Environments", environments.join(", "), ""),
        fact("Batch", format!("{groups} of {}", settings.group_size), ""),
        fact(
            "Off policy",
            format!("rollouts are at most {} stale", several(pipeline.max_staleness, "step")),
            match (batch.staleness, train.weights) {
                (StalenessHandling::Wait, SamplerWeights::Snapshot) => "the trainer waits for stragglers",
                (StalenessHandling::Drop, SamplerWeights::Snapshot) => "staler ones are dropped",
                (StalenessHandling::Wait, SamplerWeights::InFlight) => {
                    "in-flight weights; the trainer waits for stragglers"
                }
                (StalenessHandling::Drop, SamplerWeights::InFlight) => {
                    "in-flight weights; staler ones are dropped"
                }
            },
        ),
        fact("Loss", train.loss.name(), format!("advantage {}", name(batch.estimator))),
        fact("Learning rate", show(train.adam.learning_rate), name(train.rate.decay)),
        fact("Adapter", format!("LoRA, rank {}", lora.rank), format!("alpha {}", show(lora.alpha))),
        fact("Answers", answers, format!("temperature {}", show(f64::from(sampling.temperature)))),
        fact("Seed", pipeline.seed.to_string(), ""),
    ]
}

/// Name of a choice, as configs write it.
fn name(choice: impl Serialize) -> String {
    json!(choice).as_str().unwrap_or_default().to_owned()
}
