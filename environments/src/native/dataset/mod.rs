//! Tasks from a data file: a template makes the prompt of each row, and a verifier compares the answer with the row's
//! reference. No code is needed.
//!
//! Every row is rendered and checked before the run starts, so a wrong row is an error that names its line, never a
//! rollout without a reward. The reward is `(1 - format_weight) * correct + format_weight * valid`.

mod columns;
mod extract;
mod parquet;
mod rows;
mod split;
mod verify;

use crate::args::{self, arguments};
use crate::error::EnvError;
use crate::native::{EnvInfo, flag, whole_answer};
use async_trait::async_trait;
use columns::ColumnTemplate;
use extract::{Extraction, without_thoughts};
use minds_core::chat::{Message, Role};
use minds_core::environment::{Environment, Item, ScoringContext};
use minds_core::reward::{Metrics, Reward, RewardError, Score};
use rows::{Columns, DataRow, kind};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use split::{DataSplit, Selection};
use std::num::NonZeroU64;
use std::sync::Arc;
use tracing::{info, warn};
use verify::{Finding, PercentMeaning, Verifier};

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
        verify: VerifierName = Choice(&["exact", "number", "choice", "regex", "contains", "json_schema"]),
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
    let verifier = verifier(&options)?;
    let task = RowTask::new(&options)?;
    let rows = rows::read(&options.data).map_err(|why| unusable("data", why))?;
    let read = rows.len();
    let rendered = rows.into_iter().map(|row| task.checked(row, &verifier));
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
        let (key, why) = ("held_out", "leaves no rows in the split");
        return Err(unusable(
            key,
            format!("{} of {read} rows {why} `{}`", options.held_out, options.split.name()),
        ));
    };
    Ok(Arc::new(Dataset {
        items,
        rows: selected.rows,
        task,
        extraction,
        verifier,
        format_weight: options.format_weight,
    }))
}

/// Refuses arguments that other arguments leave without effect.
fn check_effects(options: &DatasetOptions, given: &Map<String, Value>) -> Result<(), EnvError> {
    let has_case =
        matches!(options.verify, VerifierName::Exact | VerifierName::Contains | VerifierName::Regex);
    let rules = [
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

fn verifier(options: &DatasetOptions) -> Result<Verifier, EnvError> {
    let ignore_case = options.ignore_case;
    Ok(match options.verify {
        VerifierName::Exact => Verifier::Exact { ignore_case },
        VerifierName::Number => Verifier::number(options.tolerance, options.percent)
            .ok_or_else(|| unusable("tolerance", "it has too many digits"))?,
        VerifierName::Choice => Verifier::Choice { column: options.choices.clone() },
        VerifierName::Regex => Verifier::pattern(options.pattern.as_deref(), ignore_case)
            .map_err(|why| unusable("pattern", why))?,
        VerifierName::Contains => Verifier::Contains { ignore_case },
        VerifierName::JsonSchema => Verifier::JsonSchema,
    })
}

/// Where the prompt of a row comes from.
enum PromptSource {
    Templates { system: Option<ColumnTemplate>, user: ColumnTemplate },
    Column(String),
}

/// How a row becomes a task.
struct RowTask {
    prompt: PromptSource,
    reference: ColumnTemplate,
}

/// A row with its task.
struct RenderedRow {
    row: DataRow,
    prompt: Vec<Message>,
}

impl RowTask {
    fn new(options: &DatasetOptions) -> Result<Self, EnvError> {
        let template = |key: &'static str, source: &str| {
            ColumnTemplate::new(key, source).map_err(|why| unusable(key, why))
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
        let answer = options.answer.as_deref().ok_or_else(|| missing("answer", about))?;
        Ok(Self { prompt, reference: template("answer", answer)? })
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
    fn checked(&self, row: DataRow, verifier: &Verifier) -> Result<RenderedRow, EnvError> {
        let at = |(key, why)| unusable(key, format!("{}: {why}", row.place));
        let prompt = self.prompt(&row.columns).map_err(at)?;
        let reference = self.reference.render(&row.columns).map_err(|why| at(("answer", why)))?;
        verifier.check(&reference, &row.columns).map_err(|why| at(("answer", why)))?;
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
    verifier: Verifier,
    format_weight: f64,
}

impl Dataset {
    /// The part of an answer that is verified.
    fn extracted<'a>(&self, answer: &'a str) -> Option<&'a str> {
        without_thoughts(answer).and_then(|answer| self.extraction.apply(answer))
    }

    fn find(&self, item: &Item, answer: &str) -> Result<Option<Finding>, RewardError> {
        let wrong = |why: String| {
            RewardError::Environment(format!("item {} ({}): {why}", item.index, item.info["place"]))
        };
        let Some(part) = self.extracted(answer) else { return Ok(None) };
        let reference = item.answer.as_deref().ok_or_else(|| wrong("it has no reference".into()))?;
        let columns = item.info["row"].as_object().ok_or_else(|| wrong("it has no row".into()))?;
        self.verifier.find(part, reference, columns).map_err(wrong)
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
        let answer = self.task.reference.render(&row.columns).ok();
        let info = json!({ "place": row.place.to_string(), "row": row.columns });
        Item { index, prompt: prompt.clone(), answer, info }
    }

    fn parse(&self, item: &Item, answer: &str) -> Option<Value> {
        self.find(item, answer).ok().flatten().map(|found| found.value)
    }

    fn queries_policy(&self) -> bool {
        false
    }

    async fn score(&self, scene: ScoringContext<'_>) -> Result<Score, RewardError> {
        let found = match whole_answer(&scene) {
            Some(answer) => self.find(scene.item, answer)?,
            None => None,
        };
        let valid = flag(found.is_some());
        let correct = flag(found.is_some_and(|found| found.is_correct));
        let reward = (1.0 - self.format_weight) * correct + self.format_weight * valid;
        let metrics = Metrics::from([("valid".into(), valid), ("correct".into(), correct)]);
        Ok(Score { reward: Reward::new(reward as f32)?, metrics })
    }
}
