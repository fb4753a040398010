//! `minds-actors models show`: how a model reads conversations.

use crate::cli::ShowModelArgs;
use crate::commands::print_line;
use crate::exit::{CommandError, OrExit, ProcessExit};
use crate::progress;
use crate::recommended;
use anyhow::{Context as _, anyhow};
use minds_core::architecture::Architecture;
use minds_core::chat::{ChatTemplate, ControlToken, Message, Tokenizer};
use minds_core::ids::Token;
use minds_core::sampling::Stop;
use minds_environments::render::template::{HistoryForm, TemplateEngine, ThinkingSwitch};
use minds_environments::render::{RendererRequest, SelectedRenderer, select};
use minds_models::{FetchSources, ModelCache, PublishedSettings, TINY_RANDOM};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::sync::Arc;

/// Variables that every rendering sets, besides the texts of special tokens.
const USUAL_VARIABLES: [&str; 5] =
    ["messages", "tools", "documents", "add_generation_prompt", "strftime_now"];

/// Runs the command.
///
/// # Errors
/// The model cannot be found or fetched (3), or no renderer fits it (2).
pub(super) fn run(asked: &ShowModelArgs, cache: &ModelCache) -> Result<(), CommandError> {
    let sources = FetchSources::from_env();
    let tokenizer = minds_models::tokenizer(&asked.name, cache, &sources, &progress::bars())
        .or_exit(ProcessExit::Unavailable)?;
    let arguments = arguments(&asked.arguments).or_exit(ProcessExit::Config)?;
    let request = RendererRequest {
        base_model: &asked.name,
        name: asked.renderer.as_deref(),
        arguments: &arguments,
        tokenizer: tokenizer.clone(),
    };
    let published = PublishedSettings::read(&asked.name, cache).or_exit(ProcessExit::Unavailable)?;
    let template = tokenizer.chat_template().map(TemplateFacts::of).transpose()?;
    let selected = select(&request).or_exit(ProcessExit::Config)?;
    let facts = ModelFacts {
        name: asked.name.clone(),
        vocab: tokenizer.vocab(),
        context: context(&asked.name, &published),
        template,
        recommended_sampling: recommended::sampling_line(&published),
        recommended_learning_rate: recommended::learning_rate_line(&asked.name, &published),
        renderer: RendererFacts::of(&selected, &Spellings::of(tokenizer.clone()))?,
    };
    if asked.json {
        print_line!("{:#}", json!(facts));
        return Ok(());
    }
    facts.show();
    if asked.template
        && let Some(template) = &facts.template
    {
        print_line!("\n{}", template.source);
    }
    Ok(())
}

/// What is known of a model without its weights.
#[derive(Debug, Serialize)]
struct ModelFacts {
    name: String,
    /// Tokens in the vocabulary.
    vocab: usize,
    /// Longest sequence in tokens, where the model's files are on this machine.
    context: Option<usize>,
    template: Option<TemplateFacts>,
    recommended_sampling: Option<String>,
    recommended_learning_rate: Option<String>,
    renderer: RendererFacts,
}

/// What a chat template reads.
#[derive(Debug, Serialize)]
struct TemplateFacts {
    /// Variables that `[model] template_args` can set.
    arguments: Vec<String>,
    /// The variable that turns thinking on and off, and its default.
    thinking: Option<ThinkingFacts>,
    source: String,
}

#[derive(Debug, Serialize)]
struct ThinkingFacts {
    variable: String,
    is_on: bool,
}

/// How the renderer of a run turns conversations into tokens.
#[derive(Debug, Serialize)]
struct RendererFacts {
    name: String,
    tools: &'static str,
    stop: String,
    /// What becomes of earlier turns.
    history: Option<String>,
    warnings: Vec<String>,
    sample: SampleFacts,
}

/// A short conversation as the renderer writes it.
#[derive(Debug, Serialize)]
struct SampleFacts {
    tokens: usize,
    text: String,
}

impl ModelFacts {
    fn show(&self) {
        print_line!("model        {}, {} tokens in the vocabulary", self.name, self.vocab);
        let context = self.context.map(|context| format!("{context} tokens"));
        let unknown = || "unknown: the files of the model are not on this machine, or do not name it".into();
        print_line!("context      {}", context.unwrap_or_else(unknown));
        match &self.template {
            Some(template) => template.show(),
            None => print_line!("template     none"),
        }
        if let Some(sampling) = &self.recommended_sampling {
            print_line!("answers      {sampling}; training samples at temperature 1");
        }
        if let Some(rate) = &self.recommended_learning_rate {
            print_line!("learning     {rate}");
        }
        self.renderer.show();
    }
}

impl TemplateFacts {
    fn of(template: &ChatTemplate) -> Result<Self, CommandError> {
        let engine = TemplateEngine::new(template, Map::new()).or_exit(ProcessExit::Config)?;
        let is_usual = |name: &String| {
            USUAL_VARIABLES.contains(&name.as_str()) || template.special_tokens.contains_key(name.as_str())
        };
        let arguments = engine.variables().into_iter().filter(|name| !is_usual(name)).collect();
        let switch = ThinkingSwitch::of(template).or_exit(ProcessExit::Config)?;
        let thinking = switch.map(|ThinkingSwitch { variable, is_on }| {
            let variable = variable.to_owned();
            ThinkingFacts { variable, is_on }
        });
        Ok(Self { arguments, thinking, source: template.source.clone() })
    }

    fn show(&self) {
        print_line!("template     {} characters, `--template` prints it", self.source.chars().count());
        if !self.arguments.is_empty() {
            print_line!("arguments    {} (`[model] template_args` of a config)", self.arguments.join(", "));
        }
        if let Some(ThinkingFacts { variable, is_on }) = &self.thinking {
            let (now, other) = if *is_on { ("on", "off") } else { ("off", "on") };
            print_line!("thinking     {now}; {variable} = {} turns it {other}", !is_on);
        }
    }
}

impl RendererFacts {
    fn of(selected: &SelectedRenderer, spellings: &Spellings) -> Result<Self, CommandError> {
        let renderer = &selected.renderer;
        let conversation =
            [Message::user("Hi!"), Message::assistant("Hello."), Message::user("What is 2 + 2?")];
        let sample = renderer.prompt(&conversation).or_else(|_| renderer.prompt(&conversation[..1]));
        let sample = sample.or_exit(ProcessExit::Config)?;
        Ok(Self {
            name: renderer.name().to_owned(),
            tools: match renderer.tools() {
                Some(_) => "described and called in the form of the template",
                None => "described in the system message, called in <tool_call> tags",
            },
            stop: match renderer.stop() {
                Stop::Tokens(tokens) => {
                    let named = |token: &Token| format!("{} ({token})", spellings.spell(&[*token]));
                    tokens.iter().map(named).collect::<Vec<_>>().join(", ")
                }
                Stop::Strings(texts) => format!("the text {texts:?}, or a stop token of the model"),
                Stop::ModelDefault => "those of the model".into(),
            },
            history: selected.history.as_ref().map(history_line),
            warnings: selected.warnings.iter().map(ToString::to_string).collect(),
            sample: SampleFacts { tokens: sample.len(), text: spellings.spell(&sample) },
        })
    }

    fn show(&self) {
        print_line!("renderer     {}", self.name);
        print_line!("tools        {}", self.tools);
        print_line!("stops        {}", self.stop);
        if let Some(history) = &self.history {
            print_line!("history      {history}");
        }
        for warning in &self.warnings {
            print_line!("warning      {warning}");
        }
        print_line!("sample       {} tokens\n\n{}", self.sample.tokens, self.sample.text);
    }
}

fn history_line(history: &HistoryForm) -> String {
    match history {
        HistoryForm::Extends => "a longer conversation begins with the tokens of the shorter one".into(),
        HistoryForm::DropsThoughts => {
            "the thoughts of earlier turns are left out; without them a longer conversation \
                                       begins with the tokens of the shorter one"
                .into()
        }
        HistoryForm::Rewrites(reason) => format!("earlier turns are rewritten: {reason}"),
        HistoryForm::Refuses(error) => format!("a second turn is refused: {error}"),
    }
}

/// The longest sequence that the model reads, where its files are on this machine.
fn context(name: &str, published: &PublishedSettings) -> Option<usize> {
    let tiny = (name == TINY_RANDOM).then(|| Architecture::tiny().context);
    published.context.or(tiny)
}

/// The variables of a template, from `key=value`.
fn arguments(written: &[String]) -> anyhow::Result<Map<String, Value>> {
    let mut arguments = Map::new();
    for argument in written {
        let (key, value) = argument
            .split_once('=')
            .ok_or_else(|| anyhow!("`--arg {argument}` has no value: write --arg key=value"))?;
        let parsed = format!("value = {value}").parse::<toml::Table>().ok();
        let parsed = parsed.and_then(|mut table| table.remove("value"));
        let value = parsed.unwrap_or_else(|| toml::Value::String(value.to_owned()));
        let value = serde_json::to_value(value).context("failed to read an argument")?;
        arguments.insert(key.trim().to_owned(), value);
    }
    Ok(arguments)
}

/// Spells tokens, control tokens by their names.
struct Spellings {
    tokenizer: Arc<dyn Tokenizer>,
    controls: HashMap<Token, String>,
}

impl Spellings {
    fn of(tokenizer: Arc<dyn Tokenizer>) -> Self {
        let controls = tokenizer.controls().into_iter();
        let controls = controls.map(|ControlToken { name, token, .. }| (token, name)).collect();
        Self { tokenizer, controls }
    }

    fn spell(&self, tokens: &[Token]) -> String {
        let runs = tokens.chunk_by(|a, b| self.controls.contains_key(a) == self.controls.contains_key(b));
        let spelled = runs.map(|run| match self.controls.contains_key(&run[0]) {
            true => run.iter().filter_map(|token| self.controls.get(token).map(String::as_str)).collect(),
            false => self.tokenizer.decode(run),
        });
        spelled.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn arguments_are_toml_or_text() {
        let written = ["enable_thinking=false", "reasoning_effort=high", "n = 3"].map(str::to_owned);
        let expected = json!({"enable_thinking": false, "reasoning_effort": "high", "n": 3});
        assert_eq!(Value::from(arguments(&written).unwrap()), expected);
        assert!(arguments(&["x".to_owned()]).unwrap_err().to_string().contains("--arg key=value"));
    }
}
