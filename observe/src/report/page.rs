//! The report page: collects the data of its template and renders it.
//!
//! The template escapes every text; only the generated drawings and the embedded style sheet are inserted unescaped.

use super::ReportError;
use super::cards::{self, ANSWER, MESSAGES, NAME};
use super::chart::{self, Chart};
use super::curves;
use super::numbers::{count, show};
use super::palette::{ChartColor, INKS};
use super::source::{ChosenRollouts, ReportSource};
use super::summary::{self, ReportFact, RewardChange};
use super::text::{TextPiece, cut};
use super::timeline;
use minds_core::chat::Tokenizer;
use minds_core::record::{EvaluationRecord, QuarantineRow, WrittenRollouts};
use minijinja::Environment;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::SystemTime;

/// Sizes of charts, in pixels.
const LARGE: (u32, u32) = (440, 210);
const SMALL: (u32, u32) = (300, 150);
/// Maximum number of rows shown of a table, the newest.
const ROWS: usize = 30;

/// Renders the page of a run.
///
/// # Errors
/// A drawing failed.
pub fn html(
    source: &ReportSource,
    chosen: &ChosenRollouts,
    tokenizer: Option<&dyn Tokenizer>,
) -> Result<String, ReportError> {
    let view = ReportView::new(source, chosen, tokenizer)?;
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    // The extension of its name turns on escaping.
    environment.add_template("page.html", include_str!("page.html"))?;
    Ok(environment.get_template("page.html")?.render(Serde(&view))?)
}

/// Data of the template.
#[derive(Serialize)]
struct ReportView {
    style: &'static str,
    name: String,
    status: String,
    written: Option<String>,
    made: String,
    version: &'static str,
    inks: [ChartColor; INKS.len()],
    notes: Vec<Vec<TextPiece>>,
    headline: Vec<ReportFact>,
    changes: Vec<RewardChange>,
    settings: Vec<ReportFact>,
    groups: Option<(u64, Vec<ReportFact>)>,
    sections: Vec<ChartSection>,
    smooth: Option<String>,
    steps: Vec<timeline::StepBars>,
    evaluations: Vec<EvaluationSection>,
    environments: Vec<cards::EnvironmentCards>,
    read: String,
    faults: Vec<ReportFact>,
    kinds: Vec<[String; 3]>,
    quarantined: Vec<QuarantinedRolloutCard>,
    checkpoints: Vec<[String; 4]>,
    checkpoint_count: String,
    config: Vec<TextPiece>,
}

/// Charts under a heading.
#[derive(Serialize)]
struct ChartSection {
    title: String,
    open: bool,
    charts: Vec<DrawnChart>,
}

/// A chart drawn for the page.
#[derive(Serialize)]
struct DrawnChart {
    title: String,
    unit: String,
    legend: Vec<(String, usize)>,
    width: u32,
    height: u32,
    drawing: String,
}

/// Evaluations of one environment, newest first.
#[derive(Serialize)]
struct EvaluationSection {
    name: String,
    chart: DrawnChart,
    /// Names of the metrics beside the reward.
    parts: Vec<String>,
    rows: Vec<EvaluationRow>,
    left_out: usize,
}

#[derive(Serialize)]
struct EvaluationRow {
    step: String,
    reward: String,
    interval: String,
    episodes: String,
    missing: String,
    parts: Vec<String>,
}

#[derive(Serialize)]
struct QuarantinedRolloutCard {
    environment: String,
    item: u64,
    policy: u64,
    kind: String,
    cause: Vec<TextPiece>,
    text: Vec<Vec<TextPiece>>,
}

impl ReportView {
    fn new(
        source: &ReportSource,
        chosen: &ChosenRollouts,
        tokenizer: Option<&dyn Tokenizer>,
    ) -> Result<Self, ReportError> {
        let table = &source.table;
        let length = table.steps().len();
        let smooth = chart::window(length).map(|window| count(window as u64));
        let states = source.checkpoints.iter().rev().take(ROWS);
        let quarantine = &source.quarantine;
        let warnings = source.settings.iter().flat_map(|settings| &settings.warnings);
        Ok(Self {
            style: include_str!("style.css"),
            name: source.name.clone(),
            status: summary::status(source),
            written: source.written.and_then(moment),
            made: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string(),
            version: env!("CARGO_PKG_VERSION"),
            inks: INKS,
            notes: source.notes.iter().chain(warnings).map(|note| cut(note, NAME)).collect(),
            headline: if length > 0 { summary::headline(source) } else { Vec::new() },
            changes: summary::changes(source),
            settings: source.settings.as_ref().map(summary::settings).unwrap_or_default(),
            groups: summary::groups(source),
            sections: sections(source)?,
            smooth,
            steps: timeline::steps(table),
            evaluations: source
                .evaluated
                .iter()
                .enumerate()
                .map(|(n, name)| evaluated(source, name, n))
                .collect::<Result<_, _>>()?,
            environments: cards::environments(chosen, tokenizer),
            read: reading(chosen, source.settings.as_ref().map(|settings| settings.rollouts)),
            faults: if length > 0 { summary::faults(source) } else { Vec::new() },
            kinds: quarantine
                .counts
                .iter()
                .map(|((name, kind), n)| [name.clone(), kind.clone(), count(*n)])
                .collect(),
            quarantined: quarantine.last.iter().rev().map(quarantine_card).collect(),
            checkpoints: states
                .map(|state| {
                    let sampler = state.sampler_path.clone().unwrap_or_default();
                    [count(state.step), state.name.clone(), state.state_path.clone(), sampler]
                })
                .collect(),
            checkpoint_count: count(source.checkpoints.len() as u64),
            config: cut(&source.config, 40_000),
        })
    }
}

fn moment(time: SystemTime) -> Option<String> {
    let time = jiff::Timestamp::try_from(time).ok()?;
    Some(time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string())
}

fn sections(source: &ReportSource) -> Result<Vec<ChartSection>, ReportError> {
    let table = &source.table;
    let names = source.environments();
    let section = |title: &str, charts: &[Chart], size, open| -> Result<Option<ChartSection>, ReportError> {
        let charts = charts
            .iter()
            .map(|chart| drawn(chart, size, table.steps()))
            .collect::<Result<Vec<_>, ReportError>>()?;
        Ok((!charts.is_empty()).then(|| ChartSection { title: title.into(), open, charts }))
    };
    let mut all = vec![
        section("Reward", &curves::rewards(source), LARGE, true)?,
        section("Learning", &curves::optimizer(table), LARGE, true)?,
        section("Speed", &curves::flow(table), LARGE, true)?,
    ];
    for name in names.iter().take(curves::MOST_ENVIRONMENTS) {
        let title = format!("Rewards and rollouts of {name}");
        all.push(section(&title, &curves::parts(table, name), SMALL, names.len() == 1)?);
    }
    Ok(all.into_iter().flatten().collect())
}

fn drawn(chart: &Chart, size: (u32, u32), steps: &[u64]) -> Result<DrawnChart, ReportError> {
    let named = chart.curves.iter().filter(|curve| !curve.name.is_empty());
    Ok(DrawnChart {
        title: chart.title.clone(),
        unit: chart.unit.clone(),
        legend: named.map(|curve| (curve.name.clone(), curve.colour)).collect(),
        width: size.0 * chart::SCALE,
        height: size.1 * chart::SCALE,
        drawing: chart::svg(chart, size, steps)?,
    })
}

fn evaluated(source: &ReportSource, name: &str, n: usize) -> Result<EvaluationSection, ReportError> {
    let all = &source.evaluations;
    let newest = || all.iter().rev().take(ROWS);
    let found = |row: &EvaluationRecord| row.environments.get(name).cloned().unwrap_or_default();
    let parts: BTreeSet<String> = newest().flat_map(|row| found(row).parts.into_keys()).collect();
    let parts: Vec<String> = parts.into_iter().take(8).collect();
    let number = |value: Option<f64>| value.map_or_else(|| "none".into(), show);
    let rows = newest().map(|row| {
        let found = found(row);
        let interval = found.reward_low.zip(found.reward_high);
        EvaluationRow {
            step: count(row.step),
            reward: number(found.reward),
            interval: interval
                .map(|(low, high)| format!("{} to {}", show(low), show(high)))
                .unwrap_or_default(),
            episodes: number(found.rollouts),
            missing: number(found.reward_errors),
            parts: parts.iter().map(|part| number(found.parts.get(part).copied())).collect(),
        }
    });
    Ok(EvaluationSection {
        name: name.into(),
        chart: drawn(&curves::evaluation(source, name, n), LARGE, source.table.steps())?,
        rows: rows.collect(),
        left_out: all.len().saturating_sub(ROWS),
        parts,
    })
}

/// States how much of the run the rollouts were chosen from, or why there are none.
fn reading(chosen: &ChosenRollouts, written: Option<WrittenRollouts>) -> String {
    let read = count(chosen.read as u64);
    let steps = count(chosen.steps as u64);
    let which = match written {
        Some(WrittenRollouts::Sample) => "one group of each environment in",
        Some(WrittenRollouts::All | WrittenRollouts::Off) | None => "the rollouts of",
    };
    match chosen.steps {
        _ if !chosen.environments.is_empty() && read == steps => {
            format!("Chosen among {which} all {steps} steps on record.")
        }
        _ if !chosen.environments.is_empty() => format!(
            "Chosen among {which} {read} steps out of {steps}, evenly spread; the others were not read."
        ),
        0 if written == Some(WrittenRollouts::Off) => {
            "None recorded: the config turns them off, with `rollouts = \"off\"` in `[log]`.".into()
        }
        _ => "None recorded.".into(),
    }
}

fn quarantine_card(stored: &QuarantineRow<'_>) -> QuarantinedRolloutCard {
    QuarantinedRolloutCard {
        environment: stored.environment.to_string(),
        item: stored.item,
        policy: stored.policy,
        kind: stored.kind.to_string(),
        cause: cut(&stored.cause, NAME),
        text: stored.text.iter().take(MESSAGES).map(|text| cut(text, ANSWER / 2)).collect(),
    }
}
