//! Conversations with tools for models whose chat template has a form for them.
//!
//! Messages go to the template as transformers takes them. Thoughts of earlier completions of the rollout go with them, so
//! that the template keeps or drops them as the model was trained.

use super::message::{ChatMessage, ToolCall, ToolFunction};
use super::tools::{text, with_calls};
use minds_core::chat::{Message, RequestedCall};
use serde_json::{Map, Value, json};

/// Whether a request is about tools.
pub(super) fn uses_tools(messages: &[ChatMessage], tools: &[Value]) -> bool {
    !tools.is_empty() || messages.iter().any(|message| message.role == "tool" || message.tool_calls.is_some())
}

/// The messages as a chat template reads them. `reasoning` gives the thoughts of an earlier completion, by one of its calls.
pub(super) fn template_messages(
    all: &[ChatMessage],
    reasoning: impl Fn(&str) -> Option<String>,
) -> Vec<Value> {
    let calls = || all.iter().flat_map(|message| message.tool_calls.iter().flatten());
    let name_of = |id: &str| calls().find(|call| call.id == id).map(|call| call.function.name.clone());
    let convert = |message: &ChatMessage| {
        let mut fields = Map::new();
        fields.insert("role".into(), json!(role(message)));
        fields.insert("content".into(), json!(text(&message.content)));
        if let Some(calls) = message.tool_calls.as_deref().filter(|calls| !calls.is_empty()) {
            fields.insert("tool_calls".into(), calls.iter().map(template_call).collect());
            if let Some(thoughts) = reasoning(&calls[0].id) {
                fields.insert("reasoning_content".into(), json!(thoughts));
            }
        }
        if let Some(id) = &message.tool_call_id {
            fields.insert("tool_call_id".into(), json!(id));
            if let Some(name) = name_of(id) {
                fields.insert("name".into(), json!(name));
            }
        }
        Value::Object(fields)
    };
    all.iter().map(convert).collect()
}

fn role(message: &ChatMessage) -> &str {
    match message.role.as_str() {
        "developer" => "system",
        known @ ("system" | "assistant" | "tool") => known,
        _ => "user",
    }
}

/// Templates take arguments as objects; what is no JSON stays the text that the model wrote.
fn template_call(call: &ToolCall) -> Value {
    let ToolFunction { name, arguments } = &call.function;
    let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!(arguments));
    json!({ "type": "function", "id": call.id, "function": { "name": name, "arguments": arguments } })
}

/// The messages by which a rollout recognizes a conversation that continues, one for each.
pub(super) fn recorded_messages(all: &[ChatMessage]) -> Vec<Message> {
    let convert = |message: &ChatMessage| {
        let content = text(&message.content);
        match role(message) {
            "system" => Message::system(content),
            "assistant" => recorded_answer(content, message.tool_calls.as_deref().unwrap_or_default()),
            "tool" => Message::user(format!("<tool_response>\n{content}\n</tool_response>")),
            _ => Message::user(content),
        }
    };
    all.iter().map(convert).collect()
}

/// The message by which a rollout recognizes its own completion.
pub(super) fn recorded_answer(content: String, calls: &[ToolCall]) -> Message {
    Message::assistant(with_calls(content, calls))
}

/// Calls with ids, for the environment. `turn` names the completion, and so its calls.
pub(super) fn numbered(calls: Vec<RequestedCall>, turn: &str) -> Vec<ToolCall> {
    let number = |(at, RequestedCall { name, arguments }): (usize, RequestedCall)| ToolCall {
        id: format!("call_{turn}_{at}"),
        kind: "function".into(),
        function: ToolFunction { name, arguments },
    };
    calls.into_iter().enumerate().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str, arguments: &str) -> ToolCall {
        let function = ToolFunction { name: "add".into(), arguments: arguments.into() };
        ToolCall { id: id.into(), kind: "function".into(), function }
    }

    #[test]
    fn messages_have_the_form_of_transformers() {
        let said = ChatMessage {
            role: "assistant".into(),
            tool_calls: Some(vec![call("c1", "{\"a\": 1}"), call("c2", "{oops")]),
            ..ChatMessage::default()
        };
        let result = ChatMessage {
            role: "tool".into(),
            content: json!([{"type": "text", "text": "3"}]),
            tool_call_id: Some("c1".into()),
            ..ChatMessage::default()
        };
        let found = template_messages(&[said.clone(), result], |id| (id == "c1").then(|| "hm".into()));
        assert_eq!(
            found,
            [
                json!({"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [
                    {"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"a": 1}}},
                    {"type": "function", "id": "c2", "function": {"name": "add", "arguments": "{oops"}},
                ]}),
                json!({"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"}),
            ]
        );
        assert_eq!(
            recorded_messages(std::slice::from_ref(&said))[0],
            recorded_answer(String::new(), &said.tool_calls.unwrap())
        );
    }
}
