//! Our rendering of a conversation equals the model's own chat template, token for token.

use minds_core::chat::{Message, Renderer, Tokenizer};
use minds_models::{Cache, Checkpoint, ModelSource, render_template, resolve};
use std::path::Path;
use std::sync::Arc;

/// The default model, fetched once into the target folder.
fn smollm2() -> Checkpoint {
    let cache = Cache::at(Path::new(env!("CARGO_TARGET_TMPDIR")).join("../models-cache"));
    let source = resolve("HuggingFaceTB/SmolLM2-135M-Instruct", &cache, &(Arc::new(|_| ()) as _)).unwrap();
    assert_ne!(source, ModelSource::TinyRandom);
    source.open().unwrap().unwrap()
}

#[test]
fn smollm2_chatml_equals_the_template_of_the_model() {
    let files = smollm2();
    let template = files.chat_template().unwrap().to_owned();
    let tokenizer = Arc::new(files.tokenizer().unwrap());
    let renderer = minds_environments::render::renderer("chatml", tokenizer.clone()).unwrap();
    for messages in [
        vec![Message::user("What is 6 + 5?")],
        vec![Message::system("Answer briefly."), Message::user("½ Ⅷ  12\n\nwhat?")],
        vec![Message::system(""), Message::user("a"), Message::assistant("b \n"), Message::user(" c")],
    ] {
        let text = render_template(&template, &messages, true).unwrap();
        let ours = renderer.prompt(&messages);
        assert_eq!(tokenizer.decode_with_control(&ours), text);
        assert_eq!(ours, by_markers(&*tokenizer, &text), "{text:?}");
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
