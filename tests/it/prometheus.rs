//! What operators are given: a real Prometheus reads real runs, and rules, alerts and the dashboard work on what it has read.

use crate::command::{checkpoints, config, metrics, run};
use crate::remote::{KEY, Served};
use crate::watched::{Prometheus, TOKEN, Watched, get, number, promtool, text};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// Rules of a file, by `record` or `alert`.
fn named(file: &str, kind: &str) -> Vec<String> {
    let text = text(file);
    let names = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- ")?.strip_prefix(kind)?.strip_prefix(": "));
    names.map(str::to_owned).collect()
}

/// Names of runs in these lines.
fn runs<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    lines.filter_map(|line| line.split_once(" run=\"")?.1.split('"').next()).collect()
}

#[test]
fn rules_give_what_was_worked_out_by_hand() {
    promtool(&["check", "config", "prometheus.yml"], "");
    promtool(&["test", "rules", "tests.yml"], "");

    let tests = text("prometheus/tests.yml");
    for record in named("prometheus/rules.yml", "record") {
        assert!(tests.contains(&format!("{record}{{")), "{record} has no test");
    }
    for alert in named("prometheus/alerts.yml", "alert") {
        let cases = tests.split("  - name: ").filter(|case| case.starts_with(&format!("{alert}\n")));
        let case: String = cases.collect();
        let fires = runs(case.lines().filter(|line| line.contains("labels: 'ALERTS{")));
        let all = runs(case.lines().filter(|line| line.contains("minds_run_info{")));
        assert!(!fires.is_empty() && all.len() > fires.len(), "{alert} fires for {fires:?} of {all:?}");
    }
}

/// Sampled tokens of the rollouts that were trained in a step.
fn tokens(dir: &Path, step: usize) -> usize {
    let rows = std::fs::read_to_string(dir.join(format!("rollouts/step_{step:06}.jsonl"))).unwrap();
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 8, "two groups of four");
    let turns = rows.iter().flat_map(|row| row["turns"].as_array().unwrap());
    turns.map(|turn| turn["logprobs"].as_array().unwrap().len()).sum()
}

#[tokio::test]
async fn prometheus_values_agree_with_the_run_folder() {
    let dir = tempfile::tempdir().unwrap();
    let sets = ["--set", "trainer.save_every=5", "--set", "metrics.token_env=THE_TOKEN"];
    let mut command = run(&config("ci_test.toml"), dir.path(), &sets);
    command.env("THE_TOKEN", TOKEN);
    let watched = Watched::start(command);
    let prometheus = Prometheus::start(&[&watched.addr]);
    let steps = prometheus
        .until("ten readings and forty steps", |prometheus| {
            let mut steps = prometheus.readings("minds_run_step");
            steps.retain(|(_, step)| *step >= 1.0);
            let (first, last) = (steps.first()?, steps.last()?);
            (steps.len() >= 10 && last.1 >= first.1 + 40.0).then_some(steps)
        })
        .await;
    assert_eq!(promtool(&["check", "metrics"], &get(&watched.addr, "/metrics")), "");
    let alerts = prometheus.alerts();
    assert!(alerts.iter().all(|(_, alert)| alert["labels"]["severity"] != "critical"), "{alerts:?}");
    assert_eq!(watched.end("-INT"), Some(0));

    let rows = metrics(dir.path());
    let [trained, played, sampled, backlog] = [
        "minds_pipeline_groups_settled_total{outcome=\"trained\"}",
        "minds_stage_done_total{stage=\"sampler\"}",
        "minds_trainer_tokens_total",
        "minds_scorer_backlog",
    ]
    .map(|series| prometheus.readings(series));
    let mut sums = vec![0];
    for step in 1..=rows.len() {
        sums.push(sums[step - 1] + tokens(dir.path(), step));
    }
    for (time, step) in &steps {
        // A step ends shortly before its metric is updated, and a scrape takes time: up to two steps of difference.
        let (step, after) = (*step as usize, (*step as usize + 2).min(rows.len()));
        let within = |readings: &[(f64, f64)], least: usize, most: usize| {
            let value = readings.iter().find(|(at, _)| at == time).unwrap().1;
            assert!(
                (least as f64..=most as f64).contains(&value),
                "{value} is not in {least}..={most}, step {step}"
            );
        };
        within(&trained, 2 * step, 2 * after);
        within(&sampled, sums[step], sums[after]);
        // Two groups of four a step, and four groups under way.
        within(&played, 8 * step, 8 * after + 16);
        within(&backlog, 0, 16);
    }

    // Samples per second, as the rule has it: over the time between two readings, and over the steps between them.
    let rules = prometheus.rules();
    let rule = rules.iter().find(|rule| rule["name"] == "instance:minds_sampler_rollouts:rate5m").unwrap();
    let ((begun, first), (ended, last)) = (steps[0], steps[steps.len() - 1]);
    let window = format!("[{}ms]", ((ended - begun) * 1000.0).round());
    let rate = prometheus.query(&rule["query"].as_str().unwrap().replace("[10s]", &window), Some(ended));
    let rate = number(&rate[0]["value"][1]);
    let seconds: f64 = rows[first as usize..last as usize].iter().map(|row| row["time/total"]).sum();
    let expected = 8.0 * (last - first) / seconds;
    // At both ends up to two batches more or less are on their way.
    let most = 0.05 + 4.0 / (last - first);
    assert!(
        (rate / expected - 1.0).abs() < most,
        "{rate} and {expected} a second over {} steps",
        last - first
    );

    let saved = checkpoints(dir.path()).pop().unwrap();
    assert_eq!(saved["groups"]["trained"].as_u64().unwrap(), 2 * rows.len() as u64);
}

/// What the dashboard asks, by panel, for this run.
fn asked(addr: &str) -> Vec<(String, String)> {
    fn collect(value: &Value, title: &str, out: &mut Vec<(String, String)>) {
        let title = value["title"].as_str().unwrap_or(title);
        match value {
            Value::Object(fields) => {
                if let Some(expr) = fields.get("expr") {
                    out.push((title.to_owned(), expr.as_str().unwrap().to_owned()));
                }
                fields.values().for_each(|field| collect(field, title, out));
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, title, out)),
            _ => {}
        }
    }
    let dashboard: Value = serde_json::from_str(&text("grafana/minds-actors.json")).unwrap();
    let mut out = Vec::new();
    collect(&dashboard["panels"], "", &mut out);
    collect(&dashboard["annotations"], "", &mut out);
    // `label_values(series, label)` of the variables.
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["query"]["query"].as_str() {
            let series =
                query.strip_prefix("label_values(").and_then(|rest| rest.rsplit_once(", ")).unwrap().0;
            out.push((variable["name"].as_str().unwrap().to_owned(), series.to_owned()));
        }
    }
    let filled = |expr: &str| {
        let interval = ["$__rate_interval", "$__interval", "$__range"].map(|name| (name, "10s"));
        let pairs = [("$instance", addr), ("$run", "faulty")].into_iter().chain(interval);
        pairs.fold(expr.to_owned(), |expr, (name, value)| expr.replace(name, value))
    };
    let out: Vec<_> = out.into_iter().map(|(title, expr)| (title, filled(&expr))).collect();
    assert!(out.iter().all(|(_, expr)| !expr.contains('$')), "{out:?}");
    out
}

/// Names of series in an expression.
fn series(expr: &str) -> impl Iterator<Item = &str> {
    let names = expr.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    names.filter(|name| {
        name.starts_with(char::is_alphabetic) && name.contains(':')
            || name.starts_with("minds_")
            || name.starts_with("process_")
    })
}

const BROKEN: &str = "
class Broken:
    def initial_observation(self):
        return 'Say a word.'

    def step(self, action):
        raise RuntimeError('there is no reward today')


def load_environment():
    return Broken()
";

/// A run on a server in which a fifth of the groups use a broken environment.
fn faulty(dir: &Path, served: &Served) -> Watched {
    let ci = std::fs::read_to_string(config("ci_test.toml")).unwrap();
    let broken = dir.join("broken.py");
    std::fs::write(&broken, BROKEN).unwrap();
    let text = ci.replace("\"gradient_prophet\"", &format!("{:?}", broken.to_str().unwrap()));
    let text =
        text.replace("[envs.args]\nshots = 1\n", "").replace("\"embedded\"", &format!("\"{}\"", served.url));
    let config = dir.join("faulty.toml");
    std::fs::write(&config, text).unwrap();
    let mut command = run(&config, &dir.join("run"), &[]);
    // Warnings about the broken environment are many; why a run ends is an error.
    command.env("TINKER_API_KEY", KEY).env("MINDS_LOG", "error");
    Watched::start(command)
}

/// What is only shown when it happens, and what this run has not.
const EMPTY: &[&str] = &["minds_service_failures_total", "minds_eval_", "mailbox=\"measures\""];

#[tokio::test]
async fn alerts_fire_and_every_question_has_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(&dir.path().join("data"));
    let watched = faulty(dir.path(), &served);
    let prometheus = Prometheus::start(&[&watched.addr]);
    let fires = async |name: &str| {
        let alert =
            prometheus.until(name, |now| now.alerts().into_iter().find(|(fires, _)| fires == name)).await.1;
        assert_eq!(alert["labels"]["run"], "faulty", "{alert}");
        assert!(
            alert["annotations"]["summary"].as_str().unwrap().starts_with("faulty on 127.0.0.1:"),
            "{alert}"
        );
        alert
    };
    let missing = fires("MindsMissingRewards").await;
    assert_eq!(missing["labels"]["severity"], "warning");
    fires("MindsFailedGroups").await;
    let firing: Vec<String> = prometheus.alerts().into_iter().map(|(name, _)| name).collect();
    assert!(!firing.iter().any(|name| ["MindsServiceAway", "MindsRunGone"].contains(&&**name)), "{firing:?}");

    // Every expression is evaluated and names existing metrics.
    let rules = prometheus.rules();
    let recorded: BTreeSet<&str> = rules
        .iter()
        .filter(|rule| rule["type"] == "recording")
        .map(|rule| rule["name"].as_str().unwrap())
        .collect();
    let asked = asked(&watched.addr);
    let told = include_str!("../../docs/metrics.md");
    let names = prometheus.names();
    let of_rules = rules.iter().map(|rule| rule["query"].as_str().unwrap());
    for expr in of_rules.chain(asked.iter().map(|(_, expr)| &**expr)) {
        prometheus.query(expr, None);
        for name in series(expr) {
            let plain =
                ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            let known =
                recorded.contains(name) || names.contains(name) || told.contains(&format!("| `{plain}` |"));
            assert!(known, "there is no {name}: {expr}");
        }
    }
    for rule in &rules {
        assert_eq!((&rule["health"], &rule["lastError"]), (&"ok".into(), &Value::Null), "{rule}");
    }
    for (panel, expr) in asked.iter().filter(|(_, expr)| !EMPTY.iter().any(|part| expr.contains(part))) {
        assert!(!prometheus.query(expr, None).is_empty(), "{panel} shows nothing: {expr}");
    }

    drop(served);
    fires("MindsServiceAway").await;
    assert_eq!(watched.end("-KILL"), None);
    fires("MindsRunGone").await;
}
