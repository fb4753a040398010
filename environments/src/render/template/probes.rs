//! What short conversations tell about a template: where turns end, what opens them, and what happens to history.

use super::spellings::ControlSpellings;
use super::{TemplateEngine, TemplateError, TemplateInput, TemplateRendererError};
use minds_core::chat::Tokenizer;
use minds_core::ids::Token;
use serde_json::{Value, json};

/// Contents of the probes, which no template writes itself.
const QUESTION: &str = "qzQuestion7";
const ANSWER: &str = "qzAnswer7";
const FOLLOW_UP: &str = "qzFollowUp7";

/// Control tokens that end a turn with tool calls, in the families whose turns end otherwise then.
const TOOL_STOPS: [&str; 3] = ["<|call|>", "<|observation|>", "<|eom_id|>"];

/// What a conversation that grows does to the tokens before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryForm {
    /// The prompt of the next turn begins with the prompt and the completion of this one.
    Extends,
    /// The same, but for turns with thoughts: history leaves those out, so each of these turns becomes a datum of its own.
    DropsThoughts,
    /// The template writes earlier turns otherwise than they were sampled: each turn of a rollout becomes a datum of its
    /// own. The text says where.
    Rewrites(String),
    /// The template refuses a second turn, with this error.
    Refuses(TemplateError),
}

/// How one template writes a turn.
pub(super) struct TurnShape {
    /// Tokens that stand at the end of a turn in a conversation, the sampled stops among them.
    pub(super) ends: Vec<Token>,
    /// Tokens that end a turn during sampling; the first is the one that the template writes.
    pub(super) stops: Vec<Token>,
    /// Other control tokens of a plain conversation, which no turn may contain.
    pub(super) structure: Vec<Token>,
    /// Text between a prompt and the answer in the turn that follows, such as an empty think block.
    pub(super) opening: String,
    /// Whether prompts end inside a think block.
    pub(super) opens_thinking: bool,
    /// Whether the template knows think blocks.
    pub(super) thinks: bool,
    pub(super) history: HistoryForm,
}

impl TurnShape {
    pub(super) fn find(
        engine: &TemplateEngine,
        spellings: &ControlSpellings,
        tokenizer: &dyn Tokenizer,
    ) -> Result<Self, TemplateRendererError> {
        let render = |messages: &[Value], add_generation_prompt: bool| {
            engine.render(TemplateInput { messages, tools: &[], add_generation_prompt })
        };
        let asked = [json!({"role": "user", "content": QUESTION})];
        let answered = [asked[0].clone(), json!({"role": "assistant", "content": ANSWER})];
        let more = [answered[0].clone(), answered[1].clone(), json!({"role": "user", "content": FOLLOW_UP})];

        let prompt = render(&asked, true).map_err(TemplateRendererError::RefusesUser)?;
        let closed = render(&answered, false).ok();
        let continued = render(&more, true);
        let stops = stops(closed.as_deref(), continued.as_deref().ok(), spellings, tokenizer);
        if stops.is_empty() {
            return Err(TemplateRendererError::NoStop);
        }
        let opening = closed.as_deref().and_then(|closed| {
            closed.strip_prefix(&*prompt).and_then(|turn| turn.split_once(ANSWER)).map(|(opening, _)| opening)
        });
        let opening = opening.unwrap_or_default().to_owned();
        let opens_thinking = match (prompt.rfind("<think>"), prompt.rfind("</think>")) {
            (Some(open), Some(close)) => open > close,
            (open, _) => open.is_some(),
        };
        let thinks = engine.mentions("</think>");
        let structure = continued.as_deref().unwrap_or(&prompt);
        let history = match &continued {
            Err(error) => HistoryForm::Refuses(error.clone()),
            Ok(continued) => match history(&prompt, continued, &opening, opens_thinking, &stops, spellings) {
                HistoryForm::Extends if thinks || !opening.is_empty() => HistoryForm::DropsThoughts,
                form => form,
            },
        };
        let end = continued.as_deref().ok().and_then(|text| after_answer(text, spellings));
        let ends = stops.iter().copied().chain(end).collect();
        Ok(Self {
            ends,
            structure: structure_tokens(structure, spellings, &stops),
            thinks,
            stops,
            opening,
            opens_thinking,
            history,
        })
    }
}

/// The control token that follows the answer of a probe.
fn after_answer(text: &str, spellings: &ControlSpellings) -> Option<Token> {
    let (_, rest) = text.split_once(ANSWER)?;
    spellings.first(rest).map(|(_, token)| token)
}

/// The control token that follows an answer, then those that the model's files declare.
fn stops(
    closed: Option<&str>,
    continued: Option<&str>,
    spellings: &ControlSpellings,
    tokenizer: &dyn Tokenizer,
) -> Vec<Token> {
    let after_answer = |text: &str| after_answer(text, spellings);
    // Where the last turn is left open, the start of the next turn ends it.
    let written = closed.and_then(after_answer).or_else(|| continued.and_then(after_answer));
    let tools = TOOL_STOPS.iter().filter_map(|name| spellings.token(name));
    let mut found = Vec::new();
    for token in written.into_iter().chain(tokenizer.stop_tokens()).chain(tools) {
        if !found.contains(&token) {
            found.push(token);
        }
    }
    found
}

/// The control tokens of a text without those that end a turn and without think tags.
fn structure_tokens(text: &str, spellings: &ControlSpellings, stops: &[Token]) -> Vec<Token> {
    let thoughts = ["<think>", "</think>"].map(|tag| spellings.token(tag));
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((at, token)) = spellings.first(rest) {
        if !found.contains(&token) && !stops.contains(&token) && !thoughts.contains(&Some(token)) {
            found.push(token);
        }
        let width = rest[at..].chars().next().map_or(1, char::len_utf8);
        rest = &rest[at + width..];
    }
    found
}

fn history(
    prompt: &str,
    continued: &str,
    opening: &str,
    opens_thinking: bool,
    stops: &[Token],
    spellings: &ControlSpellings,
) -> HistoryForm {
    if opens_thinking {
        let reason =
            "prompts open a think block, and the thoughts of earlier turns are left out or written otherwise";
        return HistoryForm::Rewrites(reason.into());
    }
    let Some(turn) = continued.strip_prefix(prompt) else {
        return HistoryForm::Rewrites(
            "the start of an earlier turn differs from the end of its prompt".into(),
        );
    };
    let Some((before, after)) = turn.split_once(ANSWER) else {
        return HistoryForm::Rewrites("earlier answers are left out".into());
    };
    // What stands between a prompt and an answer is sampled if the last turn has it as well: an empty think block, or the
    // name of a channel.
    if !before.is_empty() && before != opening {
        let reason = format!("earlier answers follow {before:?}, which the model does not sample");
        return HistoryForm::Rewrites(reason);
    }
    match spellings.first(after) {
        Some((0, token)) if stops.contains(&token) => HistoryForm::Extends,
        _ => HistoryForm::Rewrites("earlier turns end otherwise than sampled ones".into()),
    }
}
