//! Which renderer a model gets.
//!
//! A name that the config gives comes first. Base models of the hub get `role_colon`. Any other model gets what its chat
//! template writes: a renderer written here if it gives the same tokens on a set of conversations and the template has no form
//! for tools, else the renderer over the template. A model without a template gets the renderer of its family if its control tokens tell the
//! family. Nothing depends on how a folder is called, and a model for which nothing fits is refused.

use super::template::{HistoryForm, TemplateRenderer, TemplateRendererError};
use super::{NAMES, RenderError, TEMPLATE, alike, recommended, renderer};
use minds_core::chat::{Message, Renderer, Tokenizer};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::Arc;

/// What the choice of a renderer depends on.
pub struct RendererRequest<'a> {
    /// Name, folder or file of the model.
    pub base_model: &'a str,
    /// The renderer that the config names.
    pub name: Option<&'a str>,
    /// Variables for the model's chat template.
    pub arguments: &'a Map<String, Value>,
    /// The model's tokenizer, which brings the chat template.
    pub tokenizer: Arc<dyn Tokenizer>,
}

/// The renderer of a model.
pub struct SelectedRenderer {
    /// The renderer that was chosen.
    pub renderer: Arc<dyn Renderer>,
    /// What becomes of earlier turns, where the renderer writes what the model's template writes.
    pub history: Option<HistoryForm>,
    /// Warnings for the user, each beginning with the key of the config that it is about.
    pub warnings: Vec<String>,
}

/// The renderer of a model.
///
/// # Errors
/// The named renderer does not fit the tokenizer, or there is no name and neither template nor control tokens give a renderer.
///
/// ```
/// # use minds_core::chat::Tokenizer;
/// # use minds_environments::render::{RenderError, RendererRequest, select};
/// # use std::sync::Arc;
/// fn choose(tokenizer: Arc<dyn Tokenizer>) -> Result<(), RenderError> {
///     let arguments = serde_json::Map::new();
///     let request = RendererRequest { base_model: "Qwen/Qwen3-8B", name: None, arguments: &arguments, tokenizer };
///     println!("{}", select(&request)?.renderer.name());
///     Ok(())
/// }
/// ```
pub fn select(request: &RendererRequest<'_>) -> Result<SelectedRenderer, RenderError> {
    let RendererRequest { base_model, name, arguments, ref tokenizer } = *request;
    if let Some(name) = name {
        return named(request, name);
    }
    let is_path = Path::new(base_model).exists();
    if !is_path && recommended(base_model) == Some("role_colon") {
        return named(request, "role_colon");
    }
    let template = match TemplateRenderer::new(tokenizer.clone(), arguments) {
        Ok(template) => template,
        Err(error) => return without_template(request, error),
    };
    let equal = || NAMES.iter().find_map(|name| equal(name, &template, tokenizer.clone()));
    match template.tools().is_none().then(equal).flatten() {
        Some(renderer) => {
            let history = Some(template.history().clone());
            Ok(SelectedRenderer { renderer, history, warnings: Vec::new() })
        }
        None => Ok(over_template(template)),
    }
}

fn named(request: &RendererRequest<'_>, name: &str) -> Result<SelectedRenderer, RenderError> {
    let RendererRequest { base_model, arguments, ref tokenizer, .. } = *request;
    if name == TEMPLATE {
        return Ok(over_template(TemplateRenderer::new(tokenizer.clone(), arguments)?));
    }
    if !arguments.is_empty() {
        return Err(RenderError::ArgumentsWithoutTemplate { renderer: name.to_owned() });
    }
    let mut warnings = Vec::new();
    if let Some(right) = recommended(base_model).filter(|right| !alike(name, right)) {
        warnings.push(format!("model.renderer_name: {base_model} was trained with {right}, not {name}"));
    }
    written_here(name, tokenizer.clone(), warnings)
}

fn written_here(
    name: &str,
    tokenizer: Arc<dyn Tokenizer>,
    warnings: Vec<String>,
) -> Result<SelectedRenderer, RenderError> {
    Ok(SelectedRenderer { renderer: renderer(name, tokenizer)?, history: None, warnings })
}

fn over_template(template: TemplateRenderer) -> SelectedRenderer {
    let history = template.history().clone();
    let warning = match &history {
        HistoryForm::Extends | HistoryForm::DropsThoughts => None,
        HistoryForm::Rewrites(reason) => Some(format!(
            "model.base_model: its chat template rewrites earlier turns ({reason}), so every turn of a rollout with \
             several turns becomes a datum of its own"
        )),
        HistoryForm::Refuses(error) => Some(format!(
            "model.base_model: its chat template refuses a second turn ({error}), so rollouts with several turns fail"
        )),
    };
    SelectedRenderer {
        renderer: Arc::new(template),
        history: Some(history),
        warnings: warning.into_iter().collect(),
    }
}

/// The renderer of a model whose template is missing or does not work.
fn without_template(
    request: &RendererRequest<'_>,
    error: TemplateRendererError,
) -> Result<SelectedRenderer, RenderError> {
    let RendererRequest { base_model, arguments, ref tokenizer, .. } = *request;
    // Another renderer would contradict a template that is there and does not work.
    let is_missing = error == TemplateRendererError::Missing && arguments.is_empty();
    let family = family(&**tokenizer).filter(|_| is_missing);
    let Some(name) = family else {
        return Err(RenderError::NoneFits { base_model: base_model.to_owned(), reason: error });
    };
    let warning = format!(
        "model.renderer_name: {name} is used, which the control tokens of {base_model} suggest; {error}"
    );
    written_here(name, tokenizer.clone(), vec![warning])
}

/// The renderer of this name if it writes what a template writes.
fn equal(
    name: &str,
    template: &TemplateRenderer,
    tokenizer: Arc<dyn Tokenizer>,
) -> Option<Arc<dyn Renderer>> {
    if name == "role_colon" {
        return None;
    }
    let renderer = renderer(name, tokenizer).ok()?;
    let is_equal = probes().iter().all(|probe| renderer.prompt(probe) == template.prompt(probe));
    // What a turn is read as has to agree, too: `qwen3` and `qwen3_instruct` write the same prompts.
    let reads_alike = template.cuts_thoughts() == cuts_thoughts(name);
    (is_equal && reads_alike).then_some(renderer)
}

fn cuts_thoughts(name: &str) -> bool {
    name == "qwen3" || name == "kimi_k2" || name.starts_with("gpt_oss")
}

/// Conversations in which the renderers of all families differ from each other.
fn probes() -> Vec<Vec<Message>> {
    let texts = ["Hi", "\n\nHi  ", "  two\n\n\n", "", "12 + 345 = ?", "été ∥ 日本語 🙂", "a\tb\r\n"];
    let mut probes = vec![vec![Message::user("Hi")]];
    for (at, text) in texts.iter().enumerate() {
        let other = texts[(at + 3) % texts.len()];
        let turns = [Message::user(*text), Message::assistant(other), Message::user(other)];
        probes.push(turns.to_vec());
        let first = [Message::system(other), Message::user(*text), Message::assistant(*text)];
        probes.push([&first[..], &turns].concat());
    }
    // Two turns of one role after each other stay two where the template allows them.
    probes.push(vec![Message::user("a"), Message::assistant("<think>x</think>b"), Message::user("c")]);
    probes
}

/// The renderer of a family that a tokenizer's control tokens tell. Tokenizers with the tokens of several families tell none.
fn family(tokenizer: &dyn Tokenizer) -> Option<&'static str> {
    let has = |names: &[&str]| names.iter().all(|name| tokenizer.control(name).is_some());
    let thinks = tokenizer.encode("<think>").len() == 1 || has(&["<think>"]);
    let chatml = has(&["<|im_start|>", "<|im_end|>"]);
    let families = [
        (
            has(&["<|start|>", "<|channel|>", "<|message|>", "<|return|>", "<|call|>"]),
            "gpt_oss_medium_reasoning",
        ),
        (has(&["<|im_user|>", "<|im_assistant|>", "<|im_middle|>"]) && thinks, "kimi_k2"),
        (has(&["<｜User｜>", "<｜Assistant｜>"]) && thinks, "deepseekv3"),
        (has(&["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]), "llama3"),
        (chatml && thinks, "qwen3"),
        (chatml && !thinks, "chatml"),
    ];
    let mut found = families.into_iter().filter(|(is_family, _)| *is_family).map(|(_, name)| name);
    let first = found.next()?;
    found.next().is_none().then_some(first)
}
