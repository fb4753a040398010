//! Tasks from a data file: a template makes the prompt of each row, and a verifier compares the answer with the row's
//! reference. No code is needed.
//!
//! Every row is rendered and checked before the run starts, so a wrong row is an error that names its line, never a
//! rollout without a reward. The reward is `(1 - format_weight) * correct + format_weight * valid`.

mod child;
mod code;
mod columns;
mod extract;
mod grade;
mod judge;
mod labels;
mod math;
mod split;
mod verify;

use crate::args::{self, arguments};
use crate::error::EnvError;
use crate::native::{EnvInfo, flag, whole_answer};
use crate::rows::{self, Columns, DataRow, kind};
use async_trait::async_trait;
use code::{CodeLimits, CodeVerifier, Isolation};
use columns::ColumnTemplate;
use extract::{Extraction, without_thoughts};
use grade::{Grader, Task};
use judge::{JudgeOptions, ModelJudge};
use labels::{LabelledAnswer, Labels};
use math::MathVerifier;
use minds_core::chat::{Message, Role};
use minds_core::environment::{Environment, Item, ScoringContext};
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use split::{DataSplit, Selection};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tracing::{info, warn};
use verify::{PercentMeaning, Verifier};

const ID: &str = "dataset";

/// Entry of this environment in the registry.
pub const INFO: EnvInfo = EnvInfo {
    id: ID,
    about: "tasks from a data file, verified without code; needs `data`, `prompt` and `answer`",
    args: ARGS,
    queries_model: false,
    load,
};

arguments! {
    DatasetOptions {
        data: String = RequiredText,
            "the file with one row per task, relative to the working directory: .jsonl, .jsonl.zst or .parquet";
        prompt: Option<String> = OptionalText,
            "template of the prompt over the columns of a row, such as \"Solve: {{ question }}\"";
        system: Option<String> = OptionalText,
            "template of a system message before the prompt";
        messages: Option<String> = OptionalText,
            "column with a list of chat messages, in the place of `prompt` and `system`";
        answer: Option<String> = OptionalText,
            "template of the reference that answers are compared with, such as \"{{ answer }}\"";
        verify: VerifierName =
            Choice(&["exact", "number", "choice", "regex", "contains", "json_schema", "math", "code", "judge"]),
            "how an answer is compared with the reference";
        extract: String = Text("whole"),
            "the part of the answer that is verified: whole, boxed, last_line, after:MARKER or tag:NAME";
        split: DataSplit = Choice(&["train", "held_out", "all"]),
            "which rows are used; rows are held out by a hash of their content";
        held_out: f64 = Number { default: 0.1, min: 0.0, max: 0.9 },
            "share of the rows that is held out; no effect with split = all";
        dedupe: bool = Flag(true),
            "whether rows whose prompt an earlier row has are dropped";
        limit: usize = Whole { default: 0, min: 0, max: 1_000_000_000 },
            "most rows that are used, the first ones of the split; 0 uses all";
        format_weight: f64 = Number { default: 0.0, min: 0.0, max: 0.9 },
            "share of the reward for an answer that can be read, right or wrong";
        ignore_case: bool = Flag(false),
            "whether case is ignored, by exact, contains and regex";
        tolerance: f64 = Number { default: 0.0, min: 0.0, max: 1e9 }, only with verify = "number",
            "largest difference between two numbers that count as equal";
        percent: PercentMeaning = Choice(&["value", "ignore"]), only with verify = "number",
            "whether 50% is read as 0.5 (value) or as 50 (ignore)";
        choices: Option<String> = OptionalText, only with verify = "choice",
            "column with the texts of the choices: a list, or an object with the keys A, B, C, …";
        pattern: Option<String> = OptionalText, only with verify = "regex",
            "pattern whose first group must equal the reference; without it, the reference is a pattern that must match";
        python: Option<String> = OptionalText,
            "interpreter for math and code; else that of .venv in the working directory, else python3";
        timeout_s: u64 = Whole { default: 10, min: 1, max: 600 },
            "seconds that math or code may take for one answer; code has them for each test case";
        parallel: usize = Whole { default: 4, min: 1, max: 1024 },
            "answers of math or code that are verified at a time";
        isolation: Isolation = Choice(&["namespaces", "limits"]), only with verify = "code",
            "what keeps code from the rest of the machine: namespaces of its own, or limits alone";
        memory_mib: u64 = Whole { default: 1024, min: 64, max: 1_048_576 }, only with verify = "code",
            "address space of each process, in MiB";
        judge: Map<String, Value> = Table, only with verify = "judge",
            "how a grader model is asked: url, model, rubric, and optionally key_env, structured, timeout_s, retries, \
             concurrency, max_requests, max_tokens and labels";
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum VerifierName {
    Exact,
    Number,
    Choice,
    Regex,
    Contains,
    JsonSchema,
    Math,
    Code,
    Judge,
}

fn unusable(key: &'static str, why: impl Into<String>) -> EnvError {
    EnvError::UnusableArg { env: ID, key, why: why.into() }
}

fn load(given: &Map<String, Value>, _seed: u64) -> Result<Arc<dyn Environment>, EnvError> {
    let options: DatasetOptions = args::read(ID, ARGS, given)?;
    check_effects(&options, given)?;
    let extraction = Extraction::parse(&options.extract).ok_or_else(|| EnvError::WrongArg {
        env: ID,
        key: "extract",
        value: json!(options.extract).to_string(),
        allowed: Extraction::ALLOWED.into(),
    })?;
    let task = RowTask::new(&options)?;
    let grader = grader(&options, &task)?;
    let rows = rows::read(&options.data).map_err(|why| unusable("data", why))?;
    let read = rows.len();
    let rendered = rows.into_iter().map(|row| task.checked(row, &grader));
    let rendered = rendered.collect::<Result<Vec<_>, _>>()?;
    let selection = Selection {
        split: options.split,
        held_out: options.held_out,
        dedupe: options.dedupe,
        limit: options.limit,
    };
    let selected = selection.apply(rendered);
    if selected.duplicates > 0 {
        warn!(
            data = options.data,
            dropped = selected.duplicates,
            rows = read,
            "rows with the prompt of an earlier row"
        );
    }
    info!(data = options.data, rows = read, items = selected.rows.len(), "data file is read");
    let Some(items) = NonZeroU64::new(selected.rows.len() as u64) else {
        let why = format!(
            "{} of {read} rows leaves no rows in the split `{}`",
            options.held_out,
            options.split.name()
        );
        return Err(unusable("held_out", why));
    };
    Ok(Arc::new(Dataset {
        items,
        rows: selected.rows,
        task,
        extraction,
        grader,
        format_weight: options.format_weight,
    }))
}

/// Refuses arguments that other arguments leave without effect.
fn check_effects(options: &DatasetOptions, given: &Map<String, Value>) -> Result<(), EnvError> {
    let has_case =
        matches!(options.verify, VerifierName::Exact | VerifierName::Contains | VerifierName::Regex);
    let has_processes = matches!(options.verify, VerifierName::Math | VerifierName::Code);
    let rules = [
        ("python", has_processes, "`verify` = math or code"),
        ("timeout_s", has_processes, "`verify` = math or code"),
        ("parallel", has_processes, "`verify` = math or code"),
        ("ignore_case", has_case, "`verify` = exact, contains or regex"),
        ("held_out", options.split != DataSplit::All, "`split` = train or held_out"),
        ("prompt", options.messages.is_none(), "no `messages`"),
        ("system", options.messages.is_none(), "no `messages`"),
    ];
    for (key, has_effect, needs) in rules {
        if given.contains_key(key) && !has_effect {
            return Err(EnvError::NoEffect { env: ID, key, needs: needs.into() });
        }
    }
    Ok(())
}

fn grader(options: &DatasetOptions, task: &RowTask) -> Result<Grader, EnvError> {
    let ignore_case = options.ignore_case;
    let verifier = match options.verify {
        VerifierName::Exact => Verifier::Exact { ignore_case },
        VerifierName::Number => Verifier::number(options.tolerance, options.percent)
            .ok_or_else(|| unusable("tolerance", "it has too many digits"))?,
        VerifierName::Choice => Verifier::Choice { column: options.choices.clone() },
        VerifierName::Regex => Verifier::pattern(options.pattern.as_deref(), ignore_case)
            .map_err(|why| unusable("pattern", why))?,
        VerifierName::Contains => Verifier::Contains { ignore_case },
        VerifierName::JsonSchema => Verifier::JsonSchema,
        VerifierName::Math => {
            let timeout = Duration::from_secs(options.timeout_s);
            let verifier = MathVerifier::new(python(options), timeout, options.parallel);
            return verifier.map(Grader::Math).map_err(|why| unusable("verify", why));
        }
        VerifierName::Code => {
            let limits = CodeLimits {
                seconds: options.timeout_s,
                memory_mib: options.memory_mib,
                parallel: options.parallel,
            };
            let verifier = CodeVerifier::new(python(options), limits, options.isolation);
            return verifier.map(Grader::Code).map_err(|why| unusable("verify", why));
        }
        VerifierName::Judge => {
            let failed = |why: String| unusable("judge", why);
            let judge = JudgeOptions::read(&options.judge).map_err(failed)?;
            let labels = judge.labels.as_deref().map(|file| labels(file, task)).transpose()?;
            let judge = ModelJudge::new(judge).map_err(failed)?;
            return Ok(Grader::Model(Box::new(judge), labels));
        }
    };
    Ok(Grader::Rules(verifier))
}

/// The labelled answers of a file, whose rows have the columns of the data and two more.
fn labels(file: &str, task: &RowTask) -> Result<Labels, EnvError> {
    let read = |row: DataRow| {
        let at = |why: String| unusable("judge", format!("`labels`: {}: {why}", row.place));
        let (completion, label) = LabelledAnswer::read(&row).map_err(at)?;
        let prompt = task.prompt(&row.columns).map_err(|(_, why)| at(why))?;
        let reference = task.reference(&row.columns).map_err(at)?.unwrap_or_default();
        Ok(LabelledAnswer { place: row.place, prompt, reference, completion, label })
    };
    let rows = rows::read(file).map_err(|why| unusable("judge", format!("`labels`: {why}")))?;
    rows.into_iter().map(read).collect::<Result<_, _>>().map(Labels::new)
}

/// The interpreter for programs.
fn python(options: &DatasetOptions) -> PathBuf {
    let named = options.python.as_ref().map(PathBuf::from);
    let own = || Some(PathBuf::from(".venv/bin/python")).filter(|python| python.is_file());
    let found = named.or_else(own).unwrap_or_else(|| "python3".into());
    // A program starts in a folder of its own, where a relative path would lead elsewhere.
    if found.components().count() > 1 { std::path::absolute(&found).unwrap_or(found) } else { found }
}

/// Where the prompt of a row comes from.
enum PromptSource {
    Templates { system: Option<Box<ColumnTemplate>>, user: Box<ColumnTemplate> },
    Column(String),
}

/// How a row becomes a task.
struct RowTask {
    prompt: PromptSource,
    /// Only a grader model can do without.
    reference: Option<Box<ColumnTemplate>>,
}

/// A row with its task.
struct RenderedRow {
    row: DataRow,
    prompt: Vec<Message>,
}

impl RowTask {
    fn new(options: &DatasetOptions) -> Result<Self, EnvError> {
        let template = |key: &'static str, source: &str| {
            ColumnTemplate::new(key, source).map(Box::new).map_err(|why| unusable(key, why))
        };
        let missing = |key, about| EnvError::MissingArg { env: ID, key, about };
        let prompt = match (&options.messages, &options.prompt) {
            (Some(column), _) => PromptSource::Column(column.clone()),
            (None, Some(prompt)) => PromptSource::Templates {
                system: options.system.as_deref().map(|system| template("system", system)).transpose()?,
                user: template("prompt", prompt)?,
            },
            (None, None) => {
                return Err(missing(
                    "prompt",
                    "write a template over the columns, or name a column in `messages`",
                ));
            }
        };
        let about = "write a template of the reference over the columns, such as \"{{ answer }}\"";
        if options.answer.is_none() && options.verify != VerifierName::Judge {
            return Err(missing("answer", about));
        }
        let reference = options.answer.as_deref().map(|answer| template("answer", answer)).transpose()?;
        Ok(Self { prompt, reference })
    }

    fn reference(&self, columns: &Columns) -> Result<Option<String>, String> {
        self.reference.as_ref().map(|template| template.render(columns)).transpose()
    }

    fn prompt(&self, columns: &Columns) -> Result<Vec<Message>, (&'static str, String)> {
        match &self.prompt {
            PromptSource::Column(name) => messages(name, columns).map_err(|why| ("messages", why)),
            PromptSource::Templates { system, user } => {
                let mut prompt = Vec::new();
                if let Some(system) = system {
                    prompt.push(Message::system(system.render(columns).map_err(|why| ("system", why))?));
                }
                let text = user.render(columns).map_err(|why| ("prompt", why))?;
                if text.trim().is_empty() {
                    return Err(("prompt", "the prompt is blank".into()));
                }
                prompt.push(Message::user(text));
                Ok(prompt)
            }
        }
    }

    /// Renders a row, and checks its reference.
    fn checked(&self, row: DataRow, grader: &Grader) -> Result<RenderedRow, EnvError> {
        let at = |(key, why)| unusable(key, format!("{}: {why}", row.place));
        let prompt = self.prompt(&row.columns).map_err(at)?;
        let reference = self.reference(&row.columns).map_err(|why| at(("answer", why)))?;
        let reference = reference.unwrap_or_default();
        let task = Task { prompt: &prompt, reference: &reference, columns: &row.columns };
        grader.check(task).map_err(|why| at(("answer", why)))?;
        Ok(RenderedRow { row, prompt })
    }
}

/// The chat messages in a column; the last one is the user's.
fn messages(name: &str, columns: &Columns) -> Result<Vec<Message>, String> {
    let value = columns::column("`messages`", name, columns)?;
    let Value::Array(list) = value else {
        return Err(format!("the column `{name}` is {}, not a list of messages", kind(value)));
    };
    let mut messages = Vec::new();
    for (i, message) in list.iter().enumerate() {
        let read: Message = serde_json::from_value(message.clone()).map_err(|error| {
            let n = i + 1;
            format!("message {n} of the column `{name}` has no text `content` with `role` system, user or assistant: {error}")
        })?;
        messages.push(read);
    }
    match messages.last() {
        Some(last) if last.role == Role::User => Ok(messages),
        Some(last) => Err(format!(
            "the last message of the column `{name}` is of the {}; it must be of the user, whom the policy answers",
            last.role.name()
        )),
        None => Err(format!("the column `{name}` has no messages")),
    }
}

struct Dataset {
    items: NonZeroU64,
    rows: Vec<RenderedRow>,
    task: RowTask,
    extraction: Extraction,
    grader: Grader,
    format_weight: f64,
}

impl Dataset {
    /// The part of an answer that is verified.
    fn extracted<'a>(&self, answer: &'a str) -> Option<&'a str> {
        without_thoughts(answer).and_then(|answer| self.extraction.apply(answer))
    }

    /// What the answers to an item are compared with.
    fn task(item: &Item) -> Option<Task<'_>> {
        let reference = item.answer.as_deref().unwrap_or_default();
        Some(Task { prompt: &item.prompt, reference, columns: item.info["row"].as_object()? })
    }
}

#[async_trait]
impl Environment for Dataset {
    fn id(&self) -> &str {
        ID
    }

    fn items(&self) -> NonZeroU64 {
        self.items
    }

    fn item(&self, index: u64) -> Item {
        let index = index % self.items;
        let RenderedRow { row, prompt } = &self.rows[index as usize];
        let answer = self.task.reference(&row.columns).ok().flatten();
        let info = json!({ "place": row.place.to_string(), "row": row.columns });
        Item { index, prompt: prompt.clone(), answer, info }
    }

    fn parse(&self, item: &Item, answer: &str) -> Option<Value> {
        self.grader.read(self.extracted(answer)?, Self::task(item)?)
    }

    fn queries_policy(&self) -> bool {
        false
    }

    async fn score(&self, scene: ScoringContext<'_>) -> Result<Score, RewardError> {
        let item = scene.item;
        let no_row = || RewardError::Environment(format!("item {} has no row", item.index));
        let task = Self::task(item).ok_or_else(no_row)?;
        let grade = match whole_answer(&scene).and_then(|answer| self.extracted(answer)) {
            Some(part) => self.grader.grade(part, task).await.map_err(|error| placed(error, item))?,
            None => None,
        };
        let valid = flag(grade.is_some());
        let correct = grade.map_or(0.0, |grade| grade.correct);
        let reward = (1.0 - self.format_weight) * correct + self.format_weight * valid;
        let metrics = Metrics::from([("valid".into(), valid), ("correct".into(), correct)]);
        Ok(Score { reward: Reward::new(reward as f32)?, metrics })
    }
}

/// Adds the row to an error that is its fault.
fn placed(error: RewardError, item: &Item) -> RewardError {
    match (error, item.info["place"].as_str()) {
        (RewardError::Environment(why), Some(place)) => RewardError::Environment(format!("{place}: {why}")),
        (error, _) => error,
    }
}
