//! Holds the tables of `docs/metrics.md` to the doc comments of [`crate::record`] and the rows of [`crate::telemetry`].
//! `UPDATE_DOCS=1 cargo test -p minds-core documentation` writes the tables anew.

use crate::record::{EnvironmentRecord, EvaluatedEnvironment, NumberInfo, STEP, StepRecord};
use crate::telemetry::{MetricKind, MetricSpec, SECTIONS};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");

fn numbers(out: &mut String, start: &str, numbers: &[NumberInfo]) {
    for NumberInfo { key, unit, meaning } in numbers {
        writeln!(out, "| `{start}{key}` | {unit} | {} |", meaning.trim()).unwrap();
    }
}

fn records(step: &'static str) -> String {
    let step = NumberInfo { key: STEP, unit: "steps", meaning: step };
    let mut table = "| name | unit | meaning |\n|---|---|---|\n".to_owned();
    numbers(&mut table, "", &[step]);
    table
}

fn prometheus(metrics: &[MetricSpec]) -> String {
    let mut table = "| name | labels | meaning | how to read it |\n|---|---|---|---|\n".to_owned();
    for MetricSpec { name, help, labels, kind, reading } in metrics {
        let histogram = if matches!(kind, MetricKind::Histogram(_)) { " (histogram)" } else { "" };
        writeln!(table, "| `{name}` | {} | {help}{histogram} | {reading} |", labels.join(", ")).unwrap();
    }
    table
}

/// All tables, by the heading above each.
fn tables() -> Vec<(String, String)> {
    let mut tables: Vec<_> =
        SECTIONS.iter().map(|(heading, metrics)| ((*heading).to_owned(), prometheus(metrics))).collect();
    let mut steps = records("Optimizer steps done, this one included.");
    numbers(&mut steps, "", StepRecord::NUMBERS);
    numbers(&mut steps, "env/<name>/", EnvironmentRecord::NUMBERS);
    let mut evaluations = records("Optimizer steps behind the weights.");
    numbers(&mut evaluations, "eval/<name>/", EvaluatedEnvironment::NUMBERS);
    tables.push(("The rows of `metrics.json`".to_owned(), steps));
    tables.push(("The rows of `evals.jsonl`".to_owned(), evaluations));
    tables
}

/// The page with another table under a heading.
fn with_table(page: &str, heading: &str, table: &str) -> String {
    let heading = format!("\n## {heading}\n");
    let at = page.find(&heading).unwrap_or_else(|| panic!("there is no heading{heading}")) + heading.len();
    let begin = at + page[at..].find('|').unwrap();
    let end = page[begin..].find("\n\n").map_or(page.len(), |end| begin + end + 1);
    format!("{}{table}{}", &page[..begin], &page[end..])
}

#[test]
fn every_number_and_every_metric_is_explained_and_nothing_else() {
    let page = fs::read_to_string(PAGE).unwrap();
    let mut expected = page.clone();
    for (heading, table) in tables() {
        expected = with_table(&expected, &heading, &table);
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(PAGE, &expected).unwrap();
    } else if let Some((found, expected)) = page.lines().zip(expected.lines()).find(|(a, b)| a != b) {
        panic!("docs/metrics.md has\n{found}\nand not\n{expected}\nset UPDATE_DOCS=1 to write it anew");
    } else {
        assert_eq!(page.len(), expected.len(), "docs/metrics.md: set UPDATE_DOCS=1 to write it anew");
    }
    let rows = || expected.lines().filter(|line| line.starts_with("| `"));
    let names: BTreeSet<&str> = rows().map(|row| row.split('`').nth(1).unwrap()).collect();
    assert_eq!(names.len(), rows().count() - 1, "only `step` stands twice: of steps and of evaluations");
    assert!(rows().all(|row| !row.split('|').nth(3).unwrap().trim().is_empty()), "each has a meaning");
}
