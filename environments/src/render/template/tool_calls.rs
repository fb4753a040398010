//! Tool calls in the forms of model families, read from the text of a sampled turn.
//!
//! A call that cannot be read is a call all the same, with its arguments as they were written: the environment answers it
//! with its own error, as it answers wrong arguments.

use super::channels::channels;
use minds_core::chat::RequestedCall;
use serde_json::{Map, Value, json};

/// How the models of a family write calls. Control tokens are spelled out in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolForm {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Qwen2.5, Qwen3, Hermes, SmolLM3, Granite.
    HermesJson,
    /// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`: Qwen3-Coder, Qwen3.5, Nemotron 3.
    QwenXml,
    /// GLM writes the arguments as tags: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`.
    Glm,
    /// Channels with recipients: gpt-oss.
    Channels,
    /// Kimi K2 writes `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`.
    Kimi,
    /// DeepSeek writes the arguments as JSON: `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`.
    DeepSeek,
    /// `[TOOL_CALLS]name[ARGS]{…}` or `[TOOL_CALLS][{"name": …, "arguments": …}]`: Mistral.
    Mistral,
    /// `<TOOLCALL>[{"name": …, "arguments": …}]</TOOLCALL>`: Nemotron Nano v2.
    Nemotron,
    /// The turn is one object `{"name": …, "parameters": …}`: Llama 3.
    Llama3,
}

/// A turn split into what is said and what is called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ToolText {
    pub(super) content: String,
    pub(super) calls: Vec<RequestedCall>,
}

impl ToolForm {
    /// The form that a template describes to the model.
    pub(super) fn of_template(source: &str) -> Option<Self> {
        let forms = [
            ("<|channel|>", Self::Channels),
            ("<|tool_call_argument_begin|>", Self::Kimi),
            ("<｜tool▁sep｜>", Self::DeepSeek),
            ("<arg_key>", Self::Glm),
            ("<parameter=", Self::QwenXml),
            ("[TOOL_CALLS]", Self::Mistral),
            ("<TOOLCALL>", Self::Nemotron),
            ("<tool_call>", Self::HermesJson),
            ("\"parameters\": dictionary of argument name", Self::Llama3),
        ];
        forms.into_iter().find(|(sign, _)| source.contains(sign)).map(|(_, form)| form)
    }

    /// Splits the text of a turn without its stop. `tools` are the tools that were offered; their schemas tell texts from
    /// numbers where a form writes both alike.
    pub(super) fn split(self, text: &str, tools: &[Value]) -> ToolText {
        match self {
            Self::HermesJson => blocks(text, "<tool_call>", "</tool_call>", json_call),
            Self::QwenXml => blocks(text, "<tool_call>", "</tool_call>", |inside| xml_call(inside, tools)),
            Self::Glm => blocks(text, "<tool_call>", "</tool_call>", |inside| glm_call(inside, tools)),
            Self::Kimi => {
                let text = text
                    .replace("<|tool_calls_section_begin|>", "")
                    .replace("<|tool_calls_section_end|>", "");
                blocks(&text, "<|tool_call_begin|>", "<|tool_call_end|>", |inside| {
                    let (id, arguments) =
                        inside.split_once("<|tool_call_argument_begin|>").unwrap_or((inside, ""));
                    // The id is `functions.name:index`.
                    let name = id.trim().rsplit_once(':').map_or(id.trim(), |(name, _)| name);
                    RequestedCall::new(name.strip_prefix("functions.").unwrap_or(name), arguments.trim())
                })
            }
            Self::DeepSeek => {
                let text = text.replace("<｜tool▁calls▁begin｜>", "").replace("<｜tool▁calls▁end｜>", "");
                blocks(&text, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", deepseek_call)
            }
            Self::Nemotron => list(text, "<TOOLCALL>", "</TOOLCALL>"),
            Self::Mistral => mistral(text),
            Self::Llama3 => llama3(text),
            Self::Channels => channels(text).map(|turn| turn.said).unwrap_or_default(),
        }
    }
}

/// Takes the blocks between two tags as calls. A block that does not end stays text: the turn was cut off.
fn blocks(text: &str, open: &str, close: &str, call: impl Fn(&str) -> RequestedCall) -> ToolText {
    let mut found = ToolText::default();
    let mut rest = text;
    while let Some((before, (inside, after))) =
        rest.split_once(open).and_then(|(before, rest)| Some((before, rest.split_once(close)?)))
    {
        found.content.push_str(before);
        found.calls.push(call(inside));
        rest = after;
    }
    found.content.push_str(rest);
    if !found.calls.is_empty() {
        found.content = found.content.trim().to_owned();
    }
    found
}

/// `{"name": …, "arguments": …}`; what is no such object becomes the arguments of a call without a name.
fn json_call(inside: &str) -> RequestedCall {
    let value: Value = serde_json::from_str(inside.trim()).unwrap_or(Value::Null);
    object_call(&value).unwrap_or_else(|| RequestedCall::new(name_in(inside), inside.trim()))
}

fn object_call(value: &Value) -> Option<RequestedCall> {
    let arguments = value.get("arguments").or_else(|| value.get("parameters"));
    let arguments = match arguments {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(arguments) => arguments.to_string(),
    };
    Some(RequestedCall::new(value["name"].as_str()?, &arguments))
}

/// The name in a JSON text that is not valid as a whole.
fn name_in(text: &str) -> &str {
    let after = text.split_once("\"name\"").and_then(|(_, rest)| rest.split_once('"'));
    after.and_then(|(_, rest)| rest.split_once('"')).map_or("", |(name, _)| name)
}

fn xml_call(inside: &str, tools: &[Value]) -> RequestedCall {
    let Some((name, body)) = inside.split_once("<function=").and_then(|(_, rest)| rest.split_once('>'))
    else {
        return RequestedCall::new("", inside.trim());
    };
    let mut arguments = Map::new();
    let mut rest = body;
    while let Some((key, after)) = rest.split_once("<parameter=").and_then(|(_, rest)| rest.split_once('>')) {
        let Some((value, after)) = after.split_once("</parameter>") else {
            return RequestedCall::new(name.trim(), inside.trim());
        };
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.insert(key.trim().to_owned(), typed(value, name.trim(), key.trim(), tools));
        rest = after;
    }
    RequestedCall::new(name.trim(), Value::Object(arguments).to_string())
}

fn glm_call(inside: &str, tools: &[Value]) -> RequestedCall {
    let (name, mut rest) = inside.find("<arg_key>").map_or((inside, ""), |at| inside.split_at(at));
    let name = name.trim();
    let mut arguments = Map::new();
    while let Some((key, after)) =
        rest.split_once("<arg_key>").and_then(|(_, rest)| rest.split_once("</arg_key>"))
    {
        let value = after.split_once("<arg_value>").and_then(|(_, rest)| rest.split_once("</arg_value>"));
        let Some((value, after)) = value else {
            return RequestedCall::new(name, inside.trim());
        };
        arguments.insert(key.trim().to_owned(), typed(value, name, key.trim(), tools));
        rest = after;
    }
    RequestedCall::new(name, Value::Object(arguments).to_string())
}

/// A value that is written without quotes: a text if the tool's schema says so or if it is no JSON.
fn typed(value: &str, name: &str, key: &str, tools: &[Value]) -> Value {
    let functions =
        tools.iter().map(|tool| if tool["function"].is_object() { &tool["function"] } else { tool });
    let schema = functions.into_iter().find(|function| function["name"] == name);
    let kind = schema.map(|function| &function["parameters"]["properties"][key]["type"]);
    if kind.is_some_and(|kind| kind == "string") {
        return json!(value);
    }
    serde_json::from_str(value.trim()).unwrap_or_else(|_| json!(value))
}

fn deepseek_call(inside: &str) -> RequestedCall {
    let Some((first, rest)) = inside.split_once("<｜tool▁sep｜>") else {
        return RequestedCall::new("", inside.trim());
    };
    // Releases before V3.1 write `function<｜tool▁sep｜>name` and the arguments in a fence.
    if first.trim() == "function"
        && let Some((name, fenced)) = rest.split_once('\n')
    {
        let arguments = fenced.trim().trim_start_matches("```json").trim_end_matches("```");
        return RequestedCall::new(name.trim(), arguments.trim());
    }
    RequestedCall::new(first.trim(), rest.trim())
}

/// Calls in one JSON list between two tags, of which the second may be missing.
fn list(text: &str, open: &str, close: &str) -> ToolText {
    let Some((content, rest)) = text.split_once(open) else {
        return ToolText { content: text.to_owned(), calls: Vec::new() };
    };
    let inside = rest.split_once(close).map_or(rest, |(inside, _)| inside);
    let calls = match serde_json::from_str::<Vec<Value>>(inside.trim()) {
        Ok(values) => values
            .iter()
            .map(|value| object_call(value).unwrap_or_else(|| RequestedCall::new("", value.to_string())))
            .collect(),
        Err(_) => vec![RequestedCall::new(name_in(inside), inside.trim())],
    };
    ToolText { content: content.trim().to_owned(), calls }
}

fn mistral(text: &str) -> ToolText {
    if !text.contains("[ARGS]") {
        return list(text, "[TOOL_CALLS]", "</s>");
    }
    let mut parts = text.split("[TOOL_CALLS]");
    let content = parts.next().unwrap_or_default().trim().to_owned();
    let calls = parts.map(|part| {
        let (name, arguments) = part.split_once("[ARGS]").unwrap_or((part, ""));
        let name = name.split_once("[CALL_ID]").map_or(name, |(name, _)| name);
        RequestedCall::new(name.trim(), arguments.trim())
    });
    ToolText { content, calls: calls.collect() }
}

fn llama3(text: &str) -> ToolText {
    let body = text.trim().trim_start_matches("<|python_tag|>").trim();
    let value: Option<Value> = serde_json::from_str(body).ok().filter(Value::is_object);
    let called =
        value.as_ref().filter(|value| value.get("parameters").is_some() || value.get("arguments").is_some());
    match called.and_then(object_call) {
        Some(call) => ToolText { content: String::new(), calls: vec![call] },
        // An object that begins as a call and does not parse was meant as one.
        None if body.starts_with("{\"name\"") => {
            ToolText { content: String::new(), calls: vec![RequestedCall::new(name_in(body), body)] }
        }
        None => ToolText { content: text.to_owned(), calls: Vec::new() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Vec<Value> {
        let properties =
            json!({"city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}});
        vec![
            json!({"type": "function", "function": {"name": "weather", "parameters": {"properties": properties}}}),
        ]
    }

    /// The turns are what the families' own templates write for these calls, or what their model cards show.
    #[test]
    fn calls_are_read_in_the_form_of_each_family() {
        let arguments = json!({"city": "7", "days": 3, "tags": ["a"]});
        for (form, turn, content) in [
            (
                ToolForm::HermesJson,
                "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"7\", \"days\": 3, \"tags\": [\"a\"]}}\n</tool_call>",
                "Let me see.",
            ),
            (
                ToolForm::QwenXml,
                "Let me see.\n<tool_call>\n<function=weather>\n<parameter=city>\n7\n</parameter>\n<parameter=days>\n3\n</parameter>\n\
              <parameter=tags>\n[\"a\"]\n</parameter>\n</function>\n</tool_call>",
                "Let me see.",
            ),
            (
                ToolForm::Glm,
                "Let me see.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>7</arg_value>\n<arg_key>days</arg_key>\n\
              <arg_value>3</arg_value>\n<arg_key>tags</arg_key>\n<arg_value>[\"a\"]</arg_value>\n</tool_call>",
                "Let me see.",
            ),
            (
                ToolForm::Kimi,
                "Let me see.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>\
              {\"city\": \"7\", \"days\": 3, \"tags\": [\"a\"]}<|tool_call_end|><|tool_calls_section_end|>",
                "Let me see.",
            ),
            (
                ToolForm::DeepSeek,
                "Let me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"7\", \"days\": 3, \"tags\": [\"a\"]}\
              <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "Let me see.",
            ),
            (
                ToolForm::DeepSeek,
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"7\", \"days\": 3, \
              \"tags\": [\"a\"]}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "",
            ),
            (
                ToolForm::Mistral,
                "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"7\", \"days\": 3, \"tags\": [\"a\"]}}]",
                "",
            ),
            (
                ToolForm::Mistral,
                "Let me see.[TOOL_CALLS]weather[ARGS]{\"city\": \"7\", \"days\": 3, \"tags\": [\"a\"]}",
                "Let me see.",
            ),
            (
                ToolForm::Nemotron,
                "Let me see.\n<TOOLCALL>[{\"name\": \"weather\", \"arguments\": {\"city\": \"7\", \"days\": 3, \"tags\": [\"a\"]}}]</TOOLCALL>",
                "Let me see.",
            ),
            (
                ToolForm::Llama3,
                "{\"name\": \"weather\", \"parameters\": {\"city\": \"7\", \"days\": 3, \"tags\": [\"a\"]}}",
                "",
            ),
            (
                ToolForm::Channels,
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.weather \
              <|constrain|>json<|message|>{\"city\": \"7\", \"days\": 3, \"tags\": [\"a\"]}",
                "",
            ),
            (
                ToolForm::Channels,
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.weather<|channel|>commentary json\
              <|message|>{\"city\": \"7\", \"days\": 3, \"tags\": [\"a\"]}",
                "",
            ),
        ] {
            let found = form.split(turn, &tools());
            assert_eq!(found.content, content, "{form:?}");
            assert_eq!(found.calls.len(), 1, "{form:?}: {found:?}");
            assert_eq!(found.calls[0].name, "weather", "{form:?}");
            let read: Value = serde_json::from_str(&found.calls[0].arguments).expect(turn);
            assert_eq!(read, arguments, "{form:?}");
        }
    }

    #[test]
    fn malformed_calls_are_calls_with_what_was_written() {
        for (form, turn, name, arguments) in [
            (
                ToolForm::HermesJson,
                "<tool_call>{\"name\": \"f\", \"arguments\": {</tool_call>",
                "f",
                "{\"name\": \"f\", \"arguments\": {",
            ),
            (ToolForm::HermesJson, "<tool_call>f(2)</tool_call>", "", "f(2)"),
            (
                ToolForm::QwenXml,
                "<tool_call><function=f><parameter=a>1</function></tool_call>",
                "f",
                "<function=f><parameter=a>1</function>",
            ),
            (ToolForm::Glm, "<tool_call>f\n<arg_key>a</arg_key></tool_call>", "f", "f\n<arg_key>a</arg_key>"),
            (ToolForm::Kimi, "<|tool_call_begin|>functions.f:0<|tool_call_end|>", "f", ""),
            (ToolForm::Mistral, "[TOOL_CALLS][{\"name\": \"f\"", "f", "[{\"name\": \"f\""),
            (
                ToolForm::Llama3,
                "{\"name\": \"f\", \"parameters\": {",
                "f",
                "{\"name\": \"f\", \"parameters\": {",
            ),
        ] {
            let found = form.split(turn, &[]);
            assert_eq!(found.calls, [RequestedCall::new(name, arguments)], "{form:?}");
        }
    }

    #[test]
    fn plain_turns_have_no_calls() {
        for form in [
            ToolForm::HermesJson,
            ToolForm::QwenXml,
            ToolForm::Kimi,
            ToolForm::DeepSeek,
            ToolForm::Mistral,
            ToolForm::Llama3,
        ] {
            for text in ["Hi", " {\"a\": 1} ", "<tool_call>{\"name\""] {
                assert_eq!(
                    form.split(text, &[]),
                    ToolText { content: text.into(), calls: vec![] },
                    "{form:?}"
                );
            }
        }
    }

    #[test]
    fn the_form_is_told_by_the_template() {
        for (source, form) in [
            ("{{ '<tool_call>\\n<function=' }}<parameter=", Some(ToolForm::QwenXml)),
            ("<tool_call>{name}", Some(ToolForm::HermesJson)),
            ("<|channel|>commentary", Some(ToolForm::Channels)),
            ("{{ messages }}", None),
        ] {
            assert_eq!(ToolForm::of_template(source), form, "{source}");
        }
    }
}
