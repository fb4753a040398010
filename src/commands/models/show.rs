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
use serde_json::{Map, Value};
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
    let spellings = Spellings::of(tokenizer.clone());

    print_line!("model        {}, {} tokens in the vocabulary", asked.name, tokenizer.vocab());
    let published = PublishedSettings::read(&asked.name, cache).or_exit(ProcessExit::Unavailable)?;
    print_line!("context      {}", context(&asked.name, &published));
    match tokenizer.chat_template() {
        Some(template) => show_template(template)?,
        None => print_line!("template     none"),
    }
    let selected = select(&request).or_exit(ProcessExit::Config)?;
    show_recommended(&asked.name, &published);
    show_renderer(&selected, &spellings)?;
    if asked.template
        && let Some(template) = tokenizer.chat_template()
    {
        print_line!("\n{}", template.source);
    }
    Ok(())
}

fn show_template(template: &ChatTemplate) -> Result<(), CommandError> {
    let engine = TemplateEngine::new(template, Map::new()).or_exit(ProcessExit::Config)?;
    let variables = engine.variables();
    let own: Vec<&str> = variables
        .iter()
        .map(String::as_str)
        .filter(|name| !USUAL_VARIABLES.contains(name) && !template.special_tokens.contains_key(*name))
        .collect();
    print_line!("template     {} characters, `--template` prints it", template.source.chars().count());
    if !own.is_empty() {
        print_line!("arguments    {} (`[model] template_args` of a config)", own.join(", "));
    }
    let switch = ThinkingSwitch::of(template).or_exit(ProcessExit::Config)?;
    if let Some(ThinkingSwitch { variable, is_on }) = switch {
        let (now, other) = if is_on { ("on", "off") } else { ("off", "on") };
        print_line!("thinking     {now}; {variable} = {} turns it {other}", !is_on);
    }
    Ok(())
}

fn show_renderer(selected: &SelectedRenderer, spellings: &Spellings) -> Result<(), CommandError> {
    let renderer = &selected.renderer;
    print_line!("renderer     {}", renderer.name());
    let tools = match renderer.tools() {
        Some(_) => "described and called in the form of the template",
        None => "described in the system message, called in <tool_call> tags",
    };
    print_line!("tools        {tools}");
    let stop = match renderer.stop() {
        Stop::Tokens(tokens) => {
            let named: Vec<String> =
                tokens.iter().map(|token| format!("{} ({token})", spellings.spell(&[*token]))).collect();
            named.join(", ")
        }
        Stop::Strings(texts) => format!("the text {texts:?}, or a stop token of the model"),
        Stop::ModelDefault => "those of the model".into(),
    };
    print_line!("stops        {stop}");
    let history = match &selected.history {
        None => None,
        Some(HistoryForm::Extends) => Some("a longer conversation begins with the tokens of the shorter one".into()),
        Some(HistoryForm::DropsThoughts) => {
            Some("the thoughts of earlier turns are left out; without them a longer conversation begins with the tokens of \
                  the shorter one"
                .to_owned())
        }
        Some(HistoryForm::Rewrites(reason)) => Some(format!("earlier turns are rewritten: {reason}")),
        Some(HistoryForm::Refuses(error)) => Some(format!("a second turn is refused: {error}")),
    };
    if let Some(history) = history {
        print_line!("history      {history}");
    }
    for warning in &selected.warnings {
        print_line!("warning      {warning}");
    }
    let conversation = [Message::user("Hi!"), Message::assistant("Hello."), Message::user("What is 2 + 2?")];
    let sample = renderer.prompt(&conversation).or_else(|_| renderer.prompt(&conversation[..1]));
    let sample = sample.or_exit(ProcessExit::Config)?;
    print_line!("sample       {} tokens\n\n{}", sample.len(), spellings.spell(&sample));
    Ok(())
}

/// The longest sequence that the model reads, where its files are on this machine.
fn context(name: &str, published: &PublishedSettings) -> String {
    let tiny = (name == TINY_RANDOM).then(|| Architecture::tiny().context);
    let known = published.context.or(tiny).map(|context| format!("{context} tokens"));
    known.unwrap_or_else(|| "not known, the model's files on this machine do not tell it".into())
}

/// What the publisher of the model and tinker-cookbook recommend.
fn show_recommended(name: &str, published: &PublishedSettings) {
    if let Some(sampling) = recommended::sampling_line(published) {
        print_line!("answers      {sampling}; training samples at temperature 1");
    }
    if let Some(rate) = recommended::learning_rate_line(name, published) {
        print_line!("learning     {rate}");
    }
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
