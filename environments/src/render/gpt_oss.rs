//! gpt-oss, which writes every turn in channels: thoughts in `analysis`, the answer in `final`.
//!
//! The system message is the model's own and names its reasoning effort; what a conversation says as system is the
//! developer's. The template puts today's date there; here it is a fixed one, because a prompt that changes at midnight
//! would change the task within a run. Tools are not offered, so a turn that calls one is malformed.

use super::RenderError;
use super::marker_renderer::{ChatDialect, MarkerLookup, MarkerRenderer, PromptBuilder};
use minds_core::chat::{Message, Role, Tokenizer};
use minds_core::ids::Token;
use std::sync::Arc;

/// Reasoning effort that the system message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReasoningEffort {
    /// Not specified: there is no system message.
    Unsaid,
    Low,
    Medium,
    High,
}

impl ReasoningEffort {
    fn name(self) -> &'static str {
        match self {
            Self::Unsaid => "gpt_oss_no_sysprompt",
            Self::Low => "gpt_oss_low_reasoning",
            Self::Medium => "gpt_oss_medium_reasoning",
            Self::High => "gpt_oss_high_reasoning",
        }
    }

    fn system(self) -> Option<String> {
        let effort = match self {
            Self::Unsaid => return None,
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        };
        Some(format!(
            "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n\
             Current date: 2025-08-05\n\nReasoning: {effort}\n\n\
             # Valid channels: analysis, commentary, final. Channel must be included for every message."
        ))
    }
}

pub(super) struct GptOss {
    effort: ReasoningEffort,
    start: Token,
    message: Token,
    channel: Token,
    end: Token,
    /// Ends a tool call.
    called: [Token; 1],
    /// Encoded role name `assistant`, which follows `start`.
    assistant: Vec<Token>,
    /// The marker sequence `<|channel|>final<|message|>`, which opens the answer.
    answering: Vec<Token>,
}

pub(super) fn renderer(
    tokenizer: Arc<dyn Tokenizer>,
    effort: ReasoningEffort,
) -> Result<MarkerRenderer<GptOss>, RenderError> {
    let lookup = MarkerLookup { renderer: effort.name(), family: "gpt-oss", tokenizer: &*tokenizer };
    let start = lookup.token("<|start|>")?;
    let message = lookup.token("<|message|>")?;
    let channel = lookup.token("<|channel|>")?;
    let end = lookup.token("<|end|>")?;
    let answered = lookup.token("<|return|>")?;
    let called = lookup.token("<|call|>")?;
    let assistant = tokenizer.encode("assistant");
    let answering = [&[channel][..], &tokenizer.encode("final"), &[message]].concat();
    let dialect = GptOss { effort, start, message, channel, end, called: [called], assistant, answering };
    // A turn has several parts, so `read` checks the markers between them.
    Ok(MarkerRenderer::new(tokenizer, answered, &[], dialect))
}

impl GptOss {
    fn message(&self, role: &str, content: &str, builder: &mut PromptBuilder<'_>) {
        builder.marker(self.start).text(role).marker(self.message).text(content).marker(self.end);
    }

    fn is_marker(&self, token: &Token) -> bool {
        [self.start, self.message, self.channel, self.end].contains(token)
    }
}

impl ChatDialect for GptOss {
    fn name(&self) -> &'static str {
        self.effort.name()
    }

    fn prompt(&self, messages: &[Message], builder: &mut PromptBuilder<'_>) {
        if let Some(system) = self.effort.system() {
            self.message("system", &system, builder);
        }
        for Message { role, content } in messages {
            match role {
                Role::System => {
                    self.message("developer", &format!("# Instructions\n\n{content}\n\n"), builder)
                }
                Role::User => self.message("user", content, builder),
                Role::Assistant => {
                    builder.marker(self.start).markers(&self.assistant).markers(&self.answering);
                    builder.text(content).marker(self.end);
                }
            }
        }
        builder.marker(self.start).markers(&self.assistant);
    }

    fn opening(&self) -> &[Token] {
        &self.answering
    }

    fn halts(&self) -> &[Token] {
        &self.called
    }

    /// Reads any number of thoughts, each in the channel `analysis` and followed by a new start of the assistant, then
    /// the answer in the channel `final`.
    fn read(&self, tokenizer: &dyn Tokenizer, turn: &[Token]) -> Option<String> {
        let mut rest = turn;
        loop {
            let after = rest.strip_prefix(&[self.channel])?;
            let (channel, content) = after.split_at(after.iter().position(|t| self.is_marker(t))?);
            let content = content.strip_prefix(&[self.message])?;
            let length = content.iter().position(|t| self.is_marker(t)).unwrap_or(content.len());
            let (said, next) = content.split_at(length);
            match &*tokenizer.decode(channel) {
                "final" if next.is_empty() => return Some(tokenizer.decode(said)),
                "analysis" => {
                    rest = next.strip_prefix(&[self.end, self.start])?.strip_prefix(&self.assistant[..])?;
                }
                _ => return None,
            }
        }
    }
}
