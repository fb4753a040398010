//! One row as a conversation, and its turns in the tokens of a model.

use super::TrainedTurns;
use crate::rows::{Columns, DataRow, RowPlace, kind};
use minds_core::chat::{Message, PromptError, Renderer, Role, ToolRenderer};
use minds_core::demonstration::ImitatedTurn;
use minds_core::ids::Token;
use minds_core::sampling::Stop;
use serde_json::{Value, json};

/// A row whose form was checked.
pub(super) struct Conversation {
    pub(super) place: RowPlace,
    pub(super) columns: Columns,
    messages: Vec<Value>,
    tools: Vec<Value>,
    /// Indices of the messages to imitate, in their order.
    imitated: Vec<usize>,
}

/// Why a conversation has no tokens to imitate.
#[derive(Debug)]
pub(super) enum TurnForm {
    Prompt(PromptError),
    Unlike(String),
}

impl From<PromptError> for TurnForm {
    fn from(error: PromptError) -> Self {
        Self::Prompt(error)
    }
}

impl Conversation {
    /// Reads the columns `messages`, or `prompt` and `completion`, and `tools` if there are any.
    ///
    /// # Errors
    /// What is wrong with the row.
    pub(super) fn of(row: DataRow, train_on: TrainedTurns) -> Result<Self, String> {
        let DataRow { place, columns } = row;
        let (messages, completion) =
            match (columns.get("messages"), columns.get("prompt"), columns.get("completion")) {
                (Some(messages), None, None) => (listed("messages", messages)?, None),
                (None, Some(prompt), Some(completion)) => {
                    let mut messages = as_messages("prompt", prompt, "user")?;
                    let from = messages.len();
                    messages.extend(as_messages("completion", completion, "assistant")?);
                    (messages, Some(from))
                }
                _ => {
                    let names: Vec<String> = columns.keys().map(|name| format!("`{name}`")).collect();
                    return Err(format!(
                        "the row needs `messages`, or `prompt` and `completion`; its columns are {}",
                        names.join(", ")
                    ));
                }
            };
        messages.iter().enumerate().try_for_each(|(at, message)| check_message(at, message))?;
        let tools = match columns.get("tools") {
            None | Some(Value::Null) => Vec::new(),
            Some(tools) => listed("tools", tools)?,
        };
        let of_assistant: Vec<usize> =
            (0..messages.len()).filter(|at| messages[*at]["role"] == "assistant").collect();
        let imitated: Vec<usize> = match (train_on, completion) {
            (TrainedTurns::AllAssistant, _) => of_assistant,
            (TrainedTurns::LastAssistant, _) => of_assistant.last().copied().into_iter().collect(),
            (TrainedTurns::Completion, Some(from)) => {
                of_assistant.into_iter().filter(|at| *at >= from).collect()
            }
            (TrainedTurns::Completion, None) => {
                return Err("train_on = \"completion\" needs the columns `prompt` and `completion`".into());
            }
        };
        if imitated.is_empty() {
            return Err("no message to imitate has the role `assistant`".into());
        }
        if imitated[0] == 0 {
            return Err("it begins with the assistant: a model answers to something".into());
        }
        Ok(Self { place, columns, messages, tools, imitated })
    }

    /// The messages before the first imitated one, for people.
    pub(super) fn opening(&self) -> Vec<Message> {
        self.messages[..self.imitated[0]].iter().map(plain).collect()
    }

    /// The imitated turns, as the model would have sampled them.
    pub(super) fn turns(&self, renderer: &dyn Renderer) -> Result<Vec<ImitatedTurn>, TurnForm> {
        if self.is_plain() {
            let messages: Vec<Message> = self.messages.iter().map(plain).collect();
            let turn = |at: &usize| {
                let prompt = renderer.prompt(&messages[..*at])?;
                Ok(ImitatedTurn { prompt, completion: completion(renderer, &messages[*at].content) })
            };
            return self.imitated.iter().map(turn).collect();
        }
        let unlike = "it has tools, tool calls or thoughts, which only a model's own chat template writes: use \
                      renderer_name = \"template\"";
        let tools = renderer.tools().ok_or_else(|| TurnForm::Unlike(unlike.into()))?;
        self.imitated.iter().map(|at| self.templated_turn(renderer, tools, *at)).collect()
    }

    /// All messages, if each is text alone.
    pub(super) fn plain_messages(&self) -> Option<Vec<Message>> {
        self.is_plain().then(|| self.messages.iter().map(plain).collect())
    }

    /// Whether every message is text alone.
    fn is_plain(&self) -> bool {
        let plain = |message: &Value| {
            message["role"] != "tool"
                && ["tool_calls", "reasoning_content", "tool_call_id"]
                    .iter()
                    .all(|key| is_absent(&message[*key]))
        };
        self.tools.is_empty() && self.messages.iter().all(plain)
    }

    /// A turn as the chat template writes it: what follows the prompt, up to the token that ends the turn.
    fn templated_turn(
        &self,
        renderer: &dyn Renderer,
        tools: &dyn ToolRenderer,
        at: usize,
    ) -> Result<ImitatedTurn, TurnForm> {
        let unlike = |why: &str| TurnForm::Unlike(format!("message {at}: {why}"));
        let prompt = tools.prompt(&self.messages[..at], &self.tools)?;
        // The template may write a turn differently once a user has answered to it, so nothing follows.
        let whole = tools.prompt(&self.messages[..=at], &self.tools)?;
        let written = whole.strip_prefix(&prompt[..]).ok_or_else(|| {
            unlike("the chat template does not write the turn behind its prompt, so that the model would never sample it")
        })?;
        let stops = match renderer.stop() {
            Stop::Tokens(stops) => stops,
            Stop::ModelDefault | Stop::Strings(_) => {
                return Err(unlike("the renderer has no token that ends a turn"));
            }
        };
        let end = written.iter().position(|token| stops.contains(token));
        let end = end.ok_or_else(|| unlike("the chat template does not end the turn with a stop token"))?;
        Ok(ImitatedTurn { completion: written[..=end].to_vec(), prompt })
    }
}

/// A plain turn with its stop.
fn completion(renderer: &dyn Renderer, text: &str) -> Vec<Token> {
    match renderer.stop() {
        Stop::Tokens(stops) => {
            let mut tokens = renderer.answer(text);
            tokens.extend(stops.first());
            tokens
        }
        Stop::Strings(stops) => {
            let stop = stops.first().map_or("", String::as_str);
            renderer.answer(&format!("{text}{stop}"))
        }
        Stop::ModelDefault => renderer.answer(text),
    }
}

/// A list of objects, which may be written as the text of one.
fn listed(column: &str, value: &Value) -> Result<Vec<Value>, String> {
    let parsed;
    let value = match value {
        Value::String(text) => {
            parsed = serde_json::from_str(text)
                .map_err(|error| format!("`{column}` is a text that is not JSON: {error}"))?;
            &parsed
        }
        value => value,
    };
    match value {
        Value::Array(items) if !items.is_empty() => Ok(items.clone()),
        Value::Array(_) => Err(format!("`{column}` is empty")),
        other => Err(format!("`{column}` is {}; it must be a list of objects", kind(other))),
    }
}

/// The messages of one side of a row: a text is one message of this role.
fn as_messages(column: &str, value: &Value, role: &str) -> Result<Vec<Value>, String> {
    match value {
        Value::String(text) => Ok(vec![json!({ "role": role, "content": text })]),
        value => listed(column, value),
    }
}

fn check_message(at: usize, message: &Value) -> Result<(), String> {
    let Value::Object(fields) = message else {
        return Err(format!(
            "message {at} is {}; it must be an object with `role` and `content`",
            kind(message)
        ));
    };
    let role = fields.get("role").and_then(Value::as_str).unwrap_or_default();
    if !["system", "user", "assistant", "tool"].contains(&role) {
        return Err(format!(
            "message {at} has the role `{role}`; it must be system, user, assistant or tool"
        ));
    }
    let calls = fields.get("tool_calls").is_some_and(|calls| !is_absent(calls));
    match fields.get("content") {
        Some(Value::String(_)) => Ok(()),
        None | Some(Value::Null) if calls => Ok(()),
        other => {
            let found = other.map_or("missing", kind);
            Err(format!("the content of message {at} is {found}; it must be a text"))
        }
    }
}

fn is_absent(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// The text of a message. What only a chat template can write is left out.
fn plain(message: &Value) -> Message {
    let content = message["content"].as_str().unwrap_or_default();
    let role = match message["role"].as_str() {
        Some("system") => Role::System,
        Some("assistant") => Role::Assistant,
        _ => Role::User,
    };
    Message { role, content: content.into() }
}
