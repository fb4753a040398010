//! Tools as text: how the prompt describes them, how calls are parsed, and how results come back.
//!
//! The form is the one that Qwen's models were trained with (`<tools>`, `<tool_call>`, `<tool_response>`); written into
//! ordinary messages, it works under every renderer. It serves where the renderer has no form of its own
//! ([`Renderer::tools`](minds_core::chat::Renderer::tools)).

use super::message::{ChatMessage, ToolCall, ToolFunction};
use minds_core::chat::{Message, Role};
use serde::Serialize;
use serde_json::{Value, json};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// JSON as Python writes it by default, which is how the models saw it: a space after each comma and colon.
fn spaced(value: &Value) -> String {
    struct Spaced;
    impl serde_json::ser::Formatter for Spaced {
        fn begin_array_value<W: ?Sized + std::io::Write>(
            &mut self,
            w: &mut W,
            first: bool,
        ) -> std::io::Result<()> {
            if first { Ok(()) } else { w.write_all(b", ") }
        }
        fn begin_object_key<W: ?Sized + std::io::Write>(
            &mut self,
            w: &mut W,
            first: bool,
        ) -> std::io::Result<()> {
            if first { Ok(()) } else { w.write_all(b", ") }
        }
        fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, w: &mut W) -> std::io::Result<()> {
            w.write_all(b": ")
        }
    }
    let mut bytes = Vec::new();
    let written = value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, Spaced));
    written.expect("JSON can be written to memory");
    String::from_utf8(bytes).expect("JSON is UTF-8")
}

/// The text about tools in the system message.
fn announcement(tools: &[Value]) -> String {
    let list: Vec<String> = tools.iter().map(spaced).collect();
    format!(
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function \
         signatures within <tools></tools> XML tags:\n<tools>\n{}\n</tools>\n\nFor each function call, return a json \
         object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{{\"name\": \
         <function-name>, \"arguments\": <args-json-object>}}\n</tool_call>",
        list.join("\n")
    )
}

/// Converts chat messages from the common form. `said` gives the text of an earlier completion, by one of its calls.
pub(super) fn messages(
    all: &[ChatMessage],
    tools: &[Value],
    said: impl Fn(&str) -> Option<String>,
) -> Vec<Message> {
    let mut found: Vec<Message> = Vec::new();
    for message in all {
        let content = text(&message.content);
        match message.role.as_str() {
            "system" | "developer" => found.push(Message::system(content)),
            "assistant" => {
                let calls = message.tool_calls.as_deref().unwrap_or_default();
                let before = calls.first().and_then(|call| said(&call.id));
                found.push(Message::assistant(before.unwrap_or_else(|| with_calls(content, calls))));
            }
            "tool" => {
                let response = format!("<tool_response>\n{content}\n</tool_response>");
                // Consecutive results are one user turn.
                match found.last_mut() {
                    Some(last) if last.role == Role::User && last.content.ends_with("</tool_response>") => {
                        last.content = format!("{}\n{response}", last.content);
                    }
                    _ => found.push(Message::user(response)),
                }
            }
            _ => found.push(Message::user(content)),
        }
    }
    if !tools.is_empty() {
        match found.first_mut() {
            Some(first) if first.role == Role::System => {
                first.content = format!("{}\n\n{}", first.content, announcement(tools));
            }
            _ => found.insert(0, Message::system(announcement(tools))),
        }
    }
    found
}

pub(super) fn with_calls(content: String, calls: &[ToolCall]) -> String {
    calls.iter().fold(content, |text, call| {
        let ToolFunction { name, arguments } = &call.function;
        // What is no JSON stays the text that the model wrote.
        let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|_| json!(arguments));
        let call = spaced(&json!({ "name": name, "arguments": arguments }));
        let gap = if text.is_empty() { "" } else { "\n" };
        format!("{text}{gap}{OPEN}\n{call}\n{CLOSE}")
    })
}

/// The text of a content: a text, or the texts of its parts.
pub(super) fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part.as_str().or_else(|| part["text"].as_str())).collect()
        }
        _ => String::new(),
    }
}

/// The type of the first part of a message that is not text, if there is one.
pub(super) fn no_text(all: &[ChatMessage]) -> Option<&str> {
    let mut parts = all.iter().filter_map(|message| message.content.as_array()).flatten();
    let part = parts.find(|part| !part.is_string() && !part["text"].is_string())?;
    Some(part["type"].as_str().unwrap_or("unknown"))
}

/// The calls in a completion, and the text before them. An unreadable call is a call with its text as arguments, which the
/// environment answers with an error; one that does not end stays text. `id` names the completion, and so its calls.
pub(super) fn calls(answer: &str, id: &str) -> (String, Vec<ToolCall>) {
    let mut calls = Vec::new();
    let mut rest = answer;
    let mut content = String::new();
    while let Some((before, (inside, after))) =
        rest.split_once(OPEN).and_then(|(before, rest)| Some((before, rest.split_once(CLOSE)?)))
    {
        let unreadable = || ToolFunction { name: String::new(), arguments: inside.trim().to_owned() };
        let function = call(inside).unwrap_or_else(unreadable);
        content.push_str(before);
        calls.push(ToolCall { id: format!("call_{id}_{}", calls.len()), kind: "function".into(), function });
        rest = after;
    }
    if calls.is_empty() {
        return (answer.to_owned(), calls);
    }
    content.push_str(rest);
    (content.trim().to_owned(), calls)
}

fn call(text: &str) -> Option<ToolFunction> {
    let value: Value = serde_json::from_str(text.trim()).ok()?;
    let arguments = match &value["arguments"] {
        Value::Null => "{}".to_owned(),
        Value::String(text) => text.clone(),
        arguments => spaced(arguments),
    };
    Some(ToolFunction { name: value["name"].as_str()?.to_owned(), arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(role: &str, content: Value) -> ChatMessage {
        ChatMessage { role: role.into(), content, ..ChatMessage::default() }
    }

    /// The text is what Qwen3's own chat template writes for this conversation (transformers' `apply_chat_template`
    /// with `tools`), between `<|im_start|>system\n` and `<|im_end|>`.
    #[test]
    fn tools_are_in_the_system_message_as_in_qwens_template() {
        let tool = json!({"type": "function", "function": {"name": "add", "parameters": {"a": 1, "b": []}}});
        let found =
            messages(&[said("system", json!("Be brief.")), said("user", json!("2+2?"))], &[tool], |_| None);
        assert_eq!(
            found[0].content,
            "Be brief.\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are \
             provided with function signatures within <tools></tools> XML tags:\n<tools>\n{\"type\": \"function\", \
             \"function\": {\"name\": \"add\", \"parameters\": {\"a\": 1, \"b\": []}}}\n</tools>\n\nFor each function \
             call, return a json object with function name and arguments within <tool_call></tool_call> XML \
             tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>"
        );
        assert_eq!(found[1], Message::user("2+2?"));
    }

    #[test]
    fn calls_are_parsed_and_render_to_the_sampled_text() {
        let answer = "Let me see.\n<tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\":2}}\n</tool_call>";
        let (content, calls) = calls(answer, "r1");
        assert_eq!(content, "Let me see.");
        assert_eq!((&*calls[0].id, &*calls[0].function.name), ("call_r1_0", "add"));
        assert_eq!(calls[0].function.arguments, "{\"a\": 2}");
        let back = ChatMessage { tool_calls: Some(calls), ..said("assistant", json!(content)) };
        let results = [said("tool", json!("4")), said("tool", json!([{"type": "text", "text": "5"}]))];
        let all = [&[back][..], &results].concat();
        let found = messages(&all, &[], |id| (id == "call_r1_0").then(|| answer.to_owned()));
        let response = "<tool_response>\n4\n</tool_response>\n<tool_response>\n5\n</tool_response>";
        assert_eq!(found, [Message::assistant(answer), Message::user(response)]);
        // Without a memory of it, the call is written as the template writes it.
        let found = messages(&all[..1], &[], |_| None);
        assert_eq!(
            found[0].content,
            "Let me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 2}}\n</tool_call>"
        );
    }

    #[test]
    fn non_text_parts_are_found() {
        let text = said("user", json!(["a", {"type": "text", "text": "b"}]));
        assert_eq!(no_text(&[text.clone(), said("user", json!("c")), said("tool", Value::Null)]), None);
        let image = said("user", json!([{"type": "image_url", "image_url": {"url": "data:"}}]));
        assert_eq!(no_text(&[text, image]), Some("image_url"));
    }

    #[test]
    fn malformed_calls_are_calls_and_unfinished_ones_stay_text() {
        for answer in ["<tool_call>\n{\"name\": \"add\"", "</tool_call> <tool_call>"] {
            assert_eq!(calls(answer, "r"), (answer.to_owned(), vec![]));
        }
        let mixed = "<tool_call>x</tool_call> then <tool_call>{\"name\": \"f\"}</tool_call>";
        let (content, found) = calls(mixed, "r");
        assert_eq!((&*content, found.len()), ("then", 2));
        assert_eq!((&*found[0].function.name, &*found[0].function.arguments), ("", "x"));
        assert_eq!(found[1].function.arguments, "{}");
    }
}
