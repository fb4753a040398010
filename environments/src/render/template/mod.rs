//! Renders conversations with the model's own chat template.
//!
//! The tokens are those that the model's tokenizer gives for the text of the template, as long as no message spells a control
//! token; a spelling within a message stays text. How a turn ends, what opens one, and whether a conversation that grows
//! keeps its prefix are found by rendering short conversations when the renderer is made, and an error then says what the
//! template lacks.

mod channels;
mod engine;
mod probes;
mod python_json;
mod python_methods;
mod spellings;
mod thinking;
mod tool_calls;
mod tool_renderer;

pub use engine::{TemplateEngine, TemplateError, TemplateInput};
pub use probes::HistoryForm;
pub use thinking::ThinkingSwitch;

use super::think_tags::ThinkTags;
use channels::channels;
use minds_core::chat::{
    Message, ParsedCompletion, PromptError, Renderer, Role, Termination, Tokenizer, ToolRenderer,
};
use minds_core::ids::Token;
use minds_core::sampling::{Completion, Stop};
use probes::TurnShape;
use serde_json::{Map, Value, json};
use spellings::ControlSpellings;
use std::sync::Arc;
use thiserror::Error;
use tool_calls::ToolForm;

/// Separates the letters of a control token's spelling within a message. Unicode reserves this character for use within
/// programs.
const PLAIN_MARK: char = '\u{FDD0}';

/// Why a model's chat template does not make a renderer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TemplateRendererError {
    /// The model's files hold none.
    #[error(
        "the model has no chat template: put one into its folder as chat_template.jinja (or as `chat_template` of \
         tokenizer_config.json)"
    )]
    Missing,
    /// It cannot be compiled, or its arguments are wrong.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer has to be given whole texts.
    #[error(
        "the model's tokenizer begins every text with a space (SentencePiece), so the parts of a rendered template \
         cannot be encoded one by one"
    )]
    WholeTexts,
    /// It refuses the shortest conversation.
    #[error("the chat template refuses a conversation of one user message: {0}")]
    RefusesUser(TemplateError),
    /// Sampling would not know where a turn ends.
    #[error(
        "no control token follows the assistant's turns in the chat template, and the model declares none that ends a turn"
    )]
    NoStop,
}

/// A renderer over the model's own chat template.
pub struct TemplateRenderer {
    tokenizer: Arc<dyn Tokenizer>,
    engine: TemplateEngine,
    spellings: ControlSpellings,
    thoughts: ThinkTags,
    shape: TurnShape,
    tool_form: Option<ToolForm>,
    offers_tools: bool,
}

impl TemplateRenderer {
    /// A renderer over the template that comes with a tokenizer. `arguments` are further variables of the template,
    /// such as `enable_thinking`.
    ///
    /// # Errors
    /// There is no template, or it does not work: see [`TemplateRendererError`].
    pub fn new(
        tokenizer: Arc<dyn Tokenizer>,
        arguments: &Map<String, Value>,
    ) -> Result<Self, TemplateRendererError> {
        let template = tokenizer.chat_template().ok_or(TemplateRendererError::Missing)?;
        if !tokenizer.splits_at_controls() {
            return Err(TemplateRendererError::WholeTexts);
        }
        let engine = TemplateEngine::new(template, arguments.clone())?;
        let spellings = ControlSpellings::new(tokenizer.controls());
        let shape = TurnShape::find(&engine, &spellings, &*tokenizer)?;
        let thoughts = ThinkTags::new(&*tokenizer);
        // A template that writes calls and never reads the tools leaves their description to a message.
        let reads_tools = engine.variables().iter().any(|name| name == "tools");
        let tool_form = ToolForm::of_template(&template.source);
        let offers_tools = reads_tools && tool_form.is_some();
        Ok(Self { thoughts, tool_form, offers_tools, engine, spellings, shape, tokenizer })
    }

    /// What a growing conversation does to the tokens before it.
    #[must_use]
    pub fn history(&self) -> &HistoryForm {
        &self.shape.history
    }

    /// Whether parsed turns are without their thoughts.
    pub(super) fn cuts_thoughts(&self) -> bool {
        self.shape.opens_thinking || self.shape.thinks
    }

    /// Tokens of a conversation in the form of transformers, with tools; see [`TemplateInput`].
    ///
    /// # Errors
    /// The template refuses the conversation.
    pub fn tokens(&self, input: TemplateInput<'_>) -> Result<Vec<Token>, TemplateError> {
        Ok(self.spellings.encode(&*self.tokenizer, &self.text(input)?))
    }

    /// The text of a conversation, in which what messages say is marked where it spells control tokens.
    fn text(&self, input: TemplateInput<'_>) -> Result<String, TemplateError> {
        let guard =
            |values: &[Value]| values.iter().map(|value| self.spellings.guard(value)).collect::<Vec<_>>();
        let messages = guard(input.messages);
        let tools = guard(input.tools);
        self.engine.render(TemplateInput { messages: &messages, tools: &tools, ..input })
    }

    /// A sampled turn without its stop, and how it ended.
    fn turn<'a>(&self, tokens: &'a [Token]) -> (&'a [Token], Termination) {
        let TurnShape { stops, structure, .. } = &self.shape;
        // A turn in channels has several parts, each with control tokens.
        let in_channels = self.tool_form == Some(ToolForm::Channels);
        let is_marker = |token: &Token| stops.contains(token) || (!in_channels && structure.contains(token));
        match tokens.split_last() {
            Some((last, turn)) if stops.contains(last) && !turn.iter().any(is_marker) => {
                (turn, Termination::Stop)
            }
            _ if tokens.iter().any(is_marker) => (tokens, Termination::Malformed),
            _ => (tokens, Termination::Truncated),
        }
    }

    /// A message in the form of transformers. A leading think block is the message's reasoning where its tags are control
    /// tokens, which a content cannot hold.
    fn message(&self, message: &Message) -> Value {
        let Message { role, content } = message;
        if *role == Role::Assistant
            && self.thoughts.are_controls()
            && let Some((reasoning, answer)) = ThinkTags::split(content)
        {
            return json!({ "role": role.name(), "content": answer, "reasoning_content": reasoning });
        }
        json!({ "role": role.name(), "content": content })
    }
}

impl Renderer for TemplateRenderer {
    fn name(&self) -> &str {
        super::TEMPLATE
    }

    fn prompt(&self, messages: &[Message]) -> Result<Vec<Token>, PromptError> {
        let messages: Vec<Value> = messages.iter().map(|message| self.message(message)).collect();
        let input = TemplateInput { messages: &messages, tools: &[], add_generation_prompt: true };
        self.tokens(input).map_err(|error| PromptError(error.to_string()))
    }

    fn answer(&self, text: &str) -> Vec<Token> {
        let text = format!("{}{}", self.shape.opening, self.spellings.guard_text(text));
        self.spellings.encode(&*self.tokenizer, &text)
    }

    fn stop(&self) -> Stop {
        Stop::Tokens(self.shape.stops.clone())
    }

    fn text(&self, tokens: &[Token]) -> String {
        self.tokenizer.decode(tokens)
    }

    /// One stop alone at the end is a [`Termination::Stop`]; a control token that structures conversations makes a turn
    /// [`Termination::Malformed`], because decoding leaves it out and the text would look right.
    fn parse(&self, sampled: &Completion) -> ParsedCompletion {
        let (turn, termination) = self.turn(&sampled.tokens);
        if termination == Termination::Stop && self.tool_form == Some(ToolForm::Channels) {
            let turn_in_channels = channels(&self.spellings.spell(&*self.tokenizer, turn));
            return match turn_in_channels.filter(|turn| turn.is_answer && turn.said.calls.is_empty()) {
                Some(turn) => ParsedCompletion { text: turn.said.content, termination },
                None => {
                    let text = self.tokenizer.decode(turn);
                    ParsedCompletion { text, termination: Termination::Malformed }
                }
            };
        }
        let text = match termination {
            Termination::Stop if self.shape.opens_thinking => self.thoughts.skip_open(&*self.tokenizer, turn),
            Termination::Stop if self.shape.thinks => self.thoughts.skip(&*self.tokenizer, turn),
            _ => self.tokenizer.decode(turn),
        };
        ParsedCompletion { text, termination }
    }

    fn tools(&self) -> Option<&dyn ToolRenderer> {
        self.offers_tools.then_some(self)
    }
}
