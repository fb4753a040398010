//! Selects the metrics that are drawn as charts.

use super::chart::{Chart, Curve, CurveStyle};
use super::metrics_table::MetricsTable;
use super::numbers::smooth;
use super::source::ReportSource;
use minds_core::record::{ALL_ENVIRONMENTS, EnvironmentRecord, StepKeys, StepRecord, environment_key};

const KEYS: StepKeys = StepRecord::KEYS;

/// Maximum number of environments drawn of a mixture.
pub const MOST_ENVIRONMENTS: usize = 12;
/// Maximum number of charts for the metrics of one environment.
const MOST_PARTS: usize = 16;

/// Rewards of each environment, and of all together if there are several; and the share of groups with signal.
pub fn rewards(source: &ReportSource) -> Vec<Chart> {
    let names = source.environments();
    let all = (names.len() > 1).then(|| reward(&source.table, ALL_ENVIRONMENTS, "All environments", 5));
    let each = names.iter().take(MOST_ENVIRONMENTS).enumerate();
    let each = each.map(|(n, name)| reward(&source.table, name, name, n));
    let mixed = environment_key(ALL_ENVIRONMENTS, EnvironmentRecord::KEYS.mixed_share);
    let mixed = share_of(source, "Groups with signal", "% whose rewards differ", &mixed);
    all.into_iter().chain(each).chain(mixed).collect()
}

/// Chart of a share in percent, if the metric exists.
fn share_of(source: &ReportSource, title: &str, unit: &str, key: &str) -> Option<Chart> {
    let points: Vec<_> =
        source.table.points(key).into_iter().map(|(step, share)| (step, 100.0 * share)).collect();
    (!points.is_empty()).then(|| chart(title, unit, &[("", points)]))
}

fn reward(table: &MetricsTable, name: &str, title: &str, colour: usize) -> Chart {
    let points = rewards_of(table, name);
    Chart { title: title.into(), unit: "mean reward".into(), curves: vec![Curve::new("", colour, points)] }
}

fn rewards_of(table: &MetricsTable, name: &str) -> Vec<(f64, f64)> {
    table.points(&environment_key(name, EnvironmentRecord::KEYS.reward))
}

/// Charts of the loss, its gradient and the policy.
pub fn optimizer(table: &MetricsTable) -> Vec<Chart> {
    let one = |title, unit, key| with(CurveStyle::Gaps, chart(title, unit, &[("", table.points(key))]));
    drawn([
        drift(table),
        entropy(table),
        one("Drift from the reference", "nats per token", KEYS.kl_reference),
        one("Gradient norm", "before clipping", KEYS.grad_norm),
        one("Loss", "sum over the batch", KEYS.loss_sum),
        chart("Learning rate", "", &[("", changing(table.points(KEYS.learning_rate)))]),
    ])
}

/// Steps without training lack these metrics, and a line across the gap would invent values.
fn with(course: CurveStyle, mut chart: Chart) -> Chart {
    chart.curves.iter_mut().for_each(|curve| curve.course = course);
    chart
}

fn drift(table: &MetricsTable) -> Chart {
    let curves = [
        ("½ mean squared gap", KEYS.kl_v2),
        ("mean gap", KEYS.kl_v1),
        ("½ mean squared gap, one version", KEYS.kl_one_version),
    ];
    let curves = curves.map(|(name, key)| (name, table.points(key)));
    with(CurveStyle::Gaps, chart("Sampler and trainer", "KL, nats per token", &curves))
}

fn entropy(table: &MetricsTable) -> Chart {
    chart("Entropy", "−mean logprob, nats per token", &[("", table.points(KEYS.entropy))])
}

/// Charts of the throughput and timing of the pipeline.
pub fn flow(table: &MetricsTable) -> Vec<Chart> {
    let seconds =
        [("step", KEYS.time_total), ("passes", KEYS.time_train), ("trainer waits", KEYS.time_trainer_idle)];
    let shares = [
        ("sampling", KEYS.time_sampling_busy),
        ("scoring", KEYS.time_scoring_busy),
        ("training", KEYS.time_training_busy),
    ];
    let busy = shares.map(|(name, key)| (name, per_second(table, key, 100.0)));
    let window = rate_window(table);
    let busy = chart("Busy", &format!("% of the time of {window} steps around each"), &busy);
    let shadow = [("wait", KEYS.shadow_wait), ("measuring", KEYS.shadow_service)];
    let queries = [("sent", KEYS.queries_used), ("from memory", KEYS.queries_cached)];
    let of = |keys: [(&'static str, &str); 2]| keys.map(|(name, key)| (name, table.points(key)));
    drawn([
        throughput(table),
        staleness(table),
        chart("Time of a step", "seconds", &seconds.map(|(name, key)| (name, table.points(key)))),
        with(CurveStyle::Plain, busy),
        chart("Logprob queries", "per step", &of(queries).map(|(name, points)| (name, changing(points)))),
        chart("Measured gradient steps", "mean seconds", &of(shadow)),
    ])
}

fn throughput(table: &MetricsTable) -> Chart {
    let sampled = per_second(table, KEYS.tokens_sampled, 1.0);
    let trained = per_second(table, KEYS.tokens_trained, 1.0);
    let unit = format!("tokens per second, over {} steps around each", rate_window(table));
    with(CurveStyle::Plain, chart("Throughput", &unit, &[("sampled", sampled), ("trained", trained)]))
}

fn staleness(table: &MetricsTable) -> Chart {
    let curves = [
        ("mean", KEYS.staleness_mean),
        ("oldest", KEYS.staleness_max),
        ("newest weights of a rollout, mean", KEYS.staleness_newest),
    ];
    chart("Staleness of the rollouts", "steps", &curves.map(|(name, key)| (name, table.points(key))))
}

/// Charts of the other metrics of an environment's rewards and rollouts.
pub fn parts(table: &MetricsTable, environment: &str) -> Vec<Chart> {
    let start = environment_key(environment, "");
    let reward = EnvironmentRecord::KEYS.reward;
    let names = table.names().filter_map(|key| key.strip_prefix(&start)).filter(|key| *key != reward);
    let charts = names.map(|name| {
        let points = table.points(&format!("{start}{name}"));
        chart(name, "", &[("", points)])
    });
    // Metrics that never change are not drawn.
    charts.filter(|chart| !changing(chart.curves[0].points.clone()).is_empty()).take(MOST_PARTS).collect()
}

/// The rewards of an evaluated environment with their 95% intervals.
pub fn evaluation(source: &ReportSource, environment: &str, colour: usize) -> Chart {
    let rows = || {
        let rows = source.evaluations.iter();
        rows.filter_map(|row| Some((row.step as f64, row.environments.get(environment)?)))
    };
    let points = rows().filter_map(|(step, found)| Some((step, found.reward?))).collect();
    let mut curve = Curve::new("", colour, points);
    curve.intervals =
        rows().filter_map(|(step, found)| Some((step, found.reward_low?..found.reward_high?))).collect();
    Chart { title: "Reward".into(), unit: "with its 95% interval".into(), curves: vec![curve] }
}

/// The four most informative charts, for a picture.
pub fn telling(source: &ReportSource) -> Vec<Chart> {
    let table = &source.table;
    let names = source.environments();
    let name = |name: &String| if names.len() > 1 { name.clone() } else { String::new() };
    let curves = names
        .iter()
        .take(MOST_ENVIRONMENTS)
        .enumerate()
        .map(|(n, environment)| Curve::new(&name(environment), n, rewards_of(table, environment)));
    let title = if let [only] = &names[..] { format!("Reward, {only}") } else { "Reward".into() };
    let reward = Chart { title, unit: "mean of a step".into(), curves: curves.collect() };
    let rest = drawn([entropy(table), drift(table), throughput(table)]);
    std::iter::once(reward).chain(rest).collect()
}

fn chart(title: &str, unit: &str, curves: &[(&str, Vec<(f64, f64)>)]) -> Chart {
    let curves = curves.iter().enumerate().filter(|(_, (_, points))| !points.is_empty());
    let curves = curves.map(|(n, (name, points))| Curve::new(name, n, points.clone()));
    Chart { title: title.into(), unit: unit.into(), curves: curves.collect() }
}

fn drawn<const N: usize>(charts: [Chart; N]) -> Vec<Chart> {
    charts.into_iter().filter(|chart| !chart.is_empty()).collect()
}

/// The points, or none if all values are equal.
fn changing(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    if points.windows(2).any(|pair| pair[0].1 != pair[1].1) { points } else { Vec::new() }
}

/// Number of steps that a rate is averaged over: a step with nothing to train takes almost no time, so its own rate
/// is meaningless.
fn rate_window(table: &MetricsTable) -> usize {
    let window = (table.steps().len() / 20).max(5) | 1;
    window.min(table.steps().len())
}

/// A metric per second: its sum over the window around each step, divided by the time of these steps.
fn per_second(table: &MetricsTable, key: &str, factor: f64) -> Vec<(f64, f64)> {
    let (Some(values), Some(seconds)) = (table.column(key), table.column(KEYS.time_total)) else {
        return Vec::new();
    };
    let both = table.steps().iter().zip(values).zip(seconds);
    let known = both.filter(|((_, value), seconds)| value.is_finite() && seconds.is_finite());
    let (values, times): (Vec<_>, Vec<_>) =
        known.map(|((step, value), seconds)| ((*step as f64, value), (*step as f64, seconds))).unzip();
    let window = rate_window(table);
    // Both means are over the same steps, so their quotient equals that of the sums.
    let means = smooth(&values, window).into_iter().zip(smooth(&times, window));
    let rates = means.map(|((step, value), (_, seconds))| (step, factor * value / seconds));
    rates.filter(|(_, rate)| rate.is_finite()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::metrics_table::tests::table;

    /// Of 1000 tokens each: two steps of 1 s, one of 1 ms, two of 1 s. Five tokens' thousands in 4.001 s in the middle;
    /// at the start three in 2.001 s.
    #[test]
    fn a_step_of_no_time_does_not_make_the_rate() {
        let row = |step: u64, seconds: f64| {
            format!("{{\"step\":{step},\"tokens/sampled\":1000,\"time/total\":{seconds}}}")
        };
        let rows = [row(1, 1.0), row(2, 1.0), row(3, 0.001), row(4, 1.0), row(5, 1.0)];
        let table = table(&rows.each_ref().map(String::as_str));
        let rates = per_second(&table, "tokens/sampled", 1.0);
        let near = |n: usize, rate: f64| (rates[n].1 - rate).abs() < 1e-6 * rate;
        assert!(near(0, 3000.0 / 2.001) && near(2, 5000.0 / 4.001), "{rates:?}");
        assert_eq!(throughput(&table).unit, "tokens per second, over 5 steps around each");
    }
}
