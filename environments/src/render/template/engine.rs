//! Runs chat templates as transformers runs them.
//!
//! The text equals that of Jinja2 with `trim_blocks`, `lstrip_blocks`, `break` and `continue`, and with what transformers
//! adds: `tojson` writes JSON as Python does, `raise_exception` fails the rendering, `strftime_now` formats the date, and
//! `generation` tags only group. The operator `%` on texts is not supported; the filter `format` is. A template has no other
//! access to this process, and its work is bounded.

use super::{python_json, python_methods};
use crate::jinja::{describe, object, value};
use minds_core::chat::ChatTemplate;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde_json::{Map, Value as Json};
use thiserror::Error;

/// Steps that one rendering may take; a conversation of a thousand messages takes fewer than a million.
const FUEL: u64 = 20_000_000;

/// The date of `strftime_now`. It is fixed: a prompt that changes at midnight would change the task within a run.
const DATE: &str = "2025-08-05";

/// Template argument that sets another date.
const DATE_ARGUMENT: &str = "strftime_now";

/// A chat template that cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TemplateError {
    /// The template is not valid Jinja, or uses what is not supported.
    #[error("the chat template cannot be compiled: {0}")]
    Invalid(String),
    /// The template refuses a conversation, or fails on it.
    #[error("the chat template fails: {0}")]
    Failed(String),
    /// The date in the template's arguments cannot be read.
    #[error("`{DATE_ARGUMENT}` is `{0}`; it must be a date such as 2026-01-31 or 2026-01-31T08:00:00")]
    Date(String),
}

/// A conversation as a template reads it.
#[derive(Clone, Copy, Debug)]
pub struct TemplateInput<'a> {
    /// Messages in the form of transformers: `role`, `content`, and what the family knows besides.
    pub messages: &'a [Json],
    /// JSON schemas of the tools.
    pub tools: &'a [Json],
    /// Whether the text ends where the assistant's next turn begins.
    pub add_generation_prompt: bool,
}

/// A compiled chat template with its arguments.
///
/// ```
/// use minds_core::chat::ChatTemplate;
/// use minds_environments::render::template::{TemplateEngine, TemplateInput};
/// use serde_json::{Map, json};
///
/// let source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}{% endfor %}".to_owned();
/// let template = ChatTemplate { source, special_tokens: Default::default() };
/// let engine = TemplateEngine::new(&template, Map::new()).unwrap();
/// let messages = [json!({"role": "user", "content": " Hi "})];
/// let input = TemplateInput { messages: &messages, tools: &[], add_generation_prompt: false };
/// assert_eq!(engine.render(input).unwrap(), "<|user|>Hi");
/// ```
#[derive(Debug)]
pub struct TemplateEngine {
    environment: Environment<'static>,
    arguments: Value,
    source: String,
}

impl TemplateEngine {
    /// Compiles a template. `arguments` are further variables that it reads, such as `enable_thinking`.
    ///
    /// # Errors
    /// See [`TemplateError`].
    pub fn new(template: &ChatTemplate, mut arguments: Map<String, Json>) -> Result<Self, TemplateError> {
        let invalid = |error: Error| TemplateError::Invalid(describe(&error));
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(invalid)?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(python_methods::call);
        environment.add_filter("tojson", python_json::tojson);
        environment.add_filter("trim", python_methods::trim);
        environment.add_filter("string", |value: &Value| python_json::printed(value));
        environment
            .set_formatter(|out, _, value| out.write_str(&python_json::printed(value)).map_err(Error::from));
        // As in Python: texts and mappings have a length and an index, and there is nothing in `None` to go through.
        environment.add_test("sequence", |value: &Value| {
            matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
        });
        environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        let now = date(arguments.remove(DATE_ARGUMENT))?;
        environment.add_function("strftime_now", move |format: &str| -> Result<String, Error> {
            let formatted = jiff::fmt::strtime::format(format, now);
            formatted.map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
        });
        for (name, text) in &template.special_tokens {
            environment.add_global(name.clone(), text.clone());
        }
        let source = without_generation_tags(&template.source);
        environment.add_template_owned("chat", source).map_err(invalid)?;
        let arguments = object(&arguments);
        Ok(Self { environment, arguments, source: template.source.clone() })
    }

    /// Names that the template reads without setting them, sorted: what its arguments may be, and what every rendering
    /// sets.
    #[must_use]
    pub fn variables(&self) -> Vec<String> {
        let known =
            ["raise_exception", "namespace", "range", "dict", "loop", "caller", "cycler", "joiner", "lipsum"];
        let names = self.environment.get_template("chat").map(|chat| chat.undeclared_variables(false));
        let names = names.unwrap_or_default().into_iter();
        let mut names: Vec<String> =
            names.filter(|name| !known.contains(&name.as_str()) && !self.is_own(name)).collect();
        names.sort();
        names
    }

    /// Whether the template sets a variable itself, other than as a default of one that was not given.
    fn is_own(&self, name: &str) -> bool {
        let tests = ["is defined", "is not defined", "is undefined", "| default", "|default"];
        let may_be_given = tests.iter().any(|test| self.mentions(&format!("{name} {test}")));
        self.mentions(&format!("set {name} =")) && !may_be_given
    }

    /// Whether the template's source contains a text.
    pub(super) fn mentions(&self, text: &str) -> bool {
        self.source.contains(text)
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// The template refuses the conversation, or fails on it.
    pub fn render(&self, input: TemplateInput<'_>) -> Result<String, TemplateError> {
        let TemplateInput { messages, tools, add_generation_prompt } = input;
        let messages: Vec<Value> = messages.iter().map(message).collect();
        let tools =
            if tools.is_empty() { Value::from(()) } else { Value::from_iter(tools.iter().map(value)) };
        let variables = context! {
            messages, tools, add_generation_prompt,
            documents => (),
            ..self.arguments.clone(),
        };
        let chat = self.environment.get_template("chat");
        let text = chat.and_then(|chat| chat.render(variables));
        text.map_err(|error| TemplateError::Failed(describe(&error)))
    }
}

/// A message without keys that are null, and with its reasoning under the names that templates know.
fn message(message: &Json) -> Value {
    let Some(fields) = message.as_object() else { return value(message) };
    let mut fields: Map<String, Json> =
        fields.iter().filter(|(_, value)| !value.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
    let names = ["reasoning_content", "thinking", "reasoning"];
    if let Some(reasoning) = names.into_iter().find_map(|name| fields.get(name)).cloned() {
        fields.entry("thinking").or_insert_with(|| reasoning.clone());
        fields.insert("reasoning_content".into(), reasoning);
    }
    object(&fields)
}

fn date(argument: Option<Json>) -> Result<jiff::civil::DateTime, TemplateError> {
    let written = match argument {
        None => DATE.to_owned(),
        Some(Json::String(text)) => text,
        Some(other) => other.to_string(),
    };
    let date = written.parse::<jiff::civil::Date>().map(|date| date.at(0, 0, 0, 0));
    let parsed = written.parse::<jiff::civil::DateTime>().or(date);
    parsed.map_err(|_| TemplateError::Date(written))
}

/// The source with `{% generation %}` blocks as blocks that only group: their scope and whitespace stay.
fn without_generation_tags(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        text.push_str(before);
        let inner = tag.trim_start_matches(['-', '+']);
        let name = inner.trim_start();
        let replacement =
            [("generation", "with"), ("endgeneration", "endwith")].into_iter().find(|(word, _)| {
                let after = name.strip_prefix(word);
                after.is_some_and(|after| after.trim_start().trim_start_matches(['-', '+']).starts_with("%}"))
            });
        let Some((word, instead)) = replacement else {
            rest = tag;
            continue;
        };
        text.push_str(&tag[..tag.len() - name.len()]);
        text.push_str(instead);
        rest = &name[word.len()..];
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::without_generation_tags;

    #[test]
    fn only_generation_tags_are_rewritten() {
        for (source, expected) in [
            ("a{%- generation -%}b{% endgeneration %}c", "a{%- with -%}b{% endwith %}c"),
            ("{% set generation = 1 %}{{ generation }}", "{% set generation = 1 %}{{ generation }}"),
            ("{% if generation %}x{% endif %}", "{% if generation %}x{% endif %}"),
            ("{%generation%}{%", "{%with%}{%"),
        ] {
            assert_eq!(without_generation_tags(source), expected);
        }
    }
}
