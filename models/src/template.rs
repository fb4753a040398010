//! Renders a model's own chat template, as a reference for other renderers.
//!
//! Templates are Jinja as transformers runs it: Python string methods work, `raise_exception` fails the rendering.

use minds_core::chat::Message;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value, context};

/// Renders a conversation; `add_generation_prompt` opens the next turn of the assistant.
///
/// # Errors
/// The template does not compile, or refuses these messages.
pub fn render_template(
    template: &str,
    messages: &[Message],
    add_generation_prompt: bool,
    bos: &str,
    eos: &str,
) -> Result<String, TemplateError> {
    let mut environment = Environment::new();
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|e| TemplateError(format!("{e:#}")))?);
    environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_template("chat", template).map_err(|e| TemplateError(format!("{e:#}")))?;
    let turn = |m: &Message| context! { role => m.role.name(), content => m.content.as_str() };
    let turns: Vec<Value> = messages.iter().map(turn).collect();
    let rendered = environment.get_template("chat").and_then(|chat| {
        chat.render(context! { messages => turns, add_generation_prompt, bos_token => bos, eos_token => eos })
    });
    rendered.map_err(|e| TemplateError(format!("{e:#}")))
}

/// A template that cannot be rendered.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("failed to render the chat template: {0}")]
pub struct TemplateError(String);
