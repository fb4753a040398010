//! Conversations with tools, in the form of the model's template.

use super::channels::channels;
use super::tool_calls::{ToolForm, ToolText};
use super::{TemplateInput, TemplateRenderer};
use minds_core::chat::{PromptError, Termination, ToolRenderer, ToolTurn};
use minds_core::ids::Token;
use minds_core::sampling::Completion;
use serde_json::{Value, json};

/// A text that no conversation contains, which shows where a message ends.
const LANDMARK: &str = "qzLandmark7";

impl ToolRenderer for TemplateRenderer {
    fn prompt(&self, messages: &[Value], tools: &[Value]) -> Result<Vec<Token>, PromptError> {
        let input = TemplateInput { messages, tools, add_generation_prompt: true };
        self.tokens(input).map_err(|error| PromptError(error.to_string()))
    }

    fn after_turn(&self, messages: &[Value], tools: &[Value], at: usize) -> Option<Vec<Token>> {
        let mut changed = messages.to_vec();
        let message = changed.get_mut(at)?;
        // The last thing that a turn with calls contains are the arguments of the last one.
        match message["tool_calls"].as_array_mut().and_then(|calls| calls.last_mut()) {
            Some(call) => call["function"]["arguments"] = json!({ "x": LANDMARK }),
            None => message["content"] = json!(LANDMARK),
        }
        let input = TemplateInput { messages: &changed, tools, add_generation_prompt: true };
        let text = self.text(input).ok()?;
        let (_, mut rest) = text.split_once(LANDMARK)?;
        loop {
            let (start, token) = self.spellings.first(rest)?;
            rest = &rest[start..];
            if self.shape.ends.contains(&token) {
                return Some(self.spellings.encode(&*self.tokenizer, rest));
            }
            let first = rest.chars().next()?;
            rest = &rest[first.len_utf8()..];
        }
    }

    fn parse(&self, sampled: &Completion, tools: &[Value]) -> ToolTurn {
        let (turn, termination) = self.turn(&sampled.tokens);
        let text = self.spellings.spell(&*self.tokenizer, turn);
        let plain = |text: String, termination| ToolTurn {
            content: text.clone(),
            text,
            reasoning: None,
            calls: Vec::new(),
            termination,
        };
        let Some(form) = self.tool_form.filter(|_| termination != Termination::Malformed) else {
            return plain(text, termination);
        };
        let (reasoning, said) = match form {
            ToolForm::Channels => match channels(&text) {
                Some(turn) => (turn.reasoning, turn.said),
                None if termination == Termination::Truncated => return plain(text, termination),
                None => return plain(text, Termination::Malformed),
            },
            form => {
                let (reasoning, rest) = self.thoughts_of(&text);
                (reasoning.to_owned(), form.split(rest, tools))
            }
        };
        let ToolText { content, calls } = said;
        let reasoning = Some(reasoning).filter(|reasoning| !reasoning.is_empty());
        ToolTurn { content, reasoning, calls, termination, text }
    }
}

impl TemplateRenderer {
    /// The thoughts of a turn, and the text after them.
    fn thoughts_of<'a>(&self, text: &'a str) -> (&'a str, &'a str) {
        let leading = text.trim_start().strip_prefix("<think>");
        let inside = if self.shape.opens_thinking { Some(leading.unwrap_or(text)) } else { leading };
        let found = inside.and_then(|inside| inside.split_once("</think>"));
        found.map_or(("", text), |(thoughts, rest)| {
            (thoughts.trim_matches('\n'), rest.trim_start_matches('\n'))
        })
    }
}
