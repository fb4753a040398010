//! Renderers: conversations to tokens, the way a family of models was trained to read them.
//!
//! A message can never become a control token: its content is always encoded as plain text, and markers are looked
//! up in the tokenizer by name. A renderer whose markers the tokenizer lacks is refused when it is made, not when it
//! is used.
//!
//! | name | prompt | stop |
//! |---|---|---|
//! | `role_colon` | `User: …\n\nAssistant:` | the text `\n\nUser:`, or the model's own stop |
//! | `template` | what the model's own chat template writes | the control token after an answer |
//! | `chatml` | `<\|im_start\|>user\n…<\|im_end\|>\n` with the default system line of the model's template | `<\|im_end\|>` |
//! | `qwen3` | ChatML without a default system line | `<\|im_end\|>` |
//! | `qwen3_disable_thinking` | the same, the answer after an empty think block | `<\|im_end\|>` |
//! | `qwen3_instruct` | as `qwen3`; answers have no think block | `<\|im_end\|>` |
//! | `llama3` | `<\|start_header_id\|>user<\|end_header_id\|>\n\n…<\|eot_id\|>` | `<\|eot_id\|>` |
//! | `deepseekv3` | `<｜User｜>…<｜Assistant｜></think>`, system text first without a marker | `<｜end▁of▁sentence｜>` |
//! | `kimi_k2` | `<\|im_user\|>user<\|im_middle\|>…<\|im_end\|>` with a default system line | `<\|im_end\|>` |
//! | `gpt_oss_no_sysprompt` | `<\|start\|>user<\|message\|>…<\|end\|>`; answers in the channel `final` | `<\|return\|>` or `<\|call\|>` |
//! | `gpt_oss_low_reasoning`, `_medium_`, `_high_` | the same after a system message that names the effort | the same |

mod chatml;
mod deepseek;
mod gpt_oss;
mod kimi;
mod llama3;
mod marker_renderer;
mod qwen3;
mod role_colon;
mod selection;
pub mod template;
mod think_tags;

pub use selection::{RendererRequest, SelectedRenderer, select};

use minds_core::chat::{Renderer, Tokenizer};
use std::sync::Arc;
use template::{TemplateRenderer, TemplateRendererError};
use thiserror::Error;

/// Names of the renderers that are written here. [`renderer`] knows [`TEMPLATE`] as well.
pub const NAMES: [&str; 12] = [
    "role_colon",
    "chatml",
    "qwen3",
    "qwen3_disable_thinking",
    "qwen3_instruct",
    "llama3",
    "deepseekv3",
    "kimi_k2",
    "gpt_oss_no_sysprompt",
    "gpt_oss_low_reasoning",
    "gpt_oss_medium_reasoning",
    "gpt_oss_high_reasoning",
];

/// Name of the renderer over the model's own chat template.
pub const TEMPLATE: &str = "template";

/// Names of all renderers.
pub fn names() -> impl Iterator<Item = &'static str> {
    NAMES.into_iter().chain([TEMPLATE])
}

/// A renderer that cannot be made.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RenderError {
    /// No renderer has this name.
    #[error("there is no renderer `{name}`; this version knows {TEMPLATE}, {}", NAMES.join(", "))]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// The tokenizer belongs to another family of models.
    #[error(
        "the renderer `{renderer}` needs the control token `{token}` of {family} models, which this model's tokenizer \
         lacks: choose another renderer (`role_colon` needs none)"
    )]
    MissingToken {
        /// The renderer asked for.
        renderer: &'static str,
        /// The token that is missing.
        token: &'static str,
        /// Family of models that has the token.
        family: &'static str,
    },
    /// The model's own template does not make a renderer.
    #[error(transparent)]
    Template(#[from] TemplateRendererError),
    /// The model has no usable chat template, and its control tokens are of no known family.
    #[error(
        "how {base_model} reads conversations is not known: {reason}. Its control tokens do not tell it either. Name a \
         renderer as model.renderer_name: `role_colon` for a base model, else one of {}", NAMES.join(", ")
    )]
    NoneFits {
        /// Name or path of the model.
        base_model: String,
        /// What its chat template lacks.
        reason: TemplateRendererError,
    },
    /// A renderer that reads no template was given arguments for one.
    #[error(
        "the renderer `{renderer}` does not run the model's chat template, whose variables these are: leave them out, or set \
         renderer_name to `template`"
    )]
    ArgumentsWithoutTemplate {
        /// The renderer asked for.
        renderer: String,
    },
}

/// The renderer of this name over a model's tokenizer.
///
/// # Errors
/// The name is unknown, or the tokenizer lacks a control token that the renderer needs.
pub fn renderer(name: &str, tokenizer: Arc<dyn Tokenizer>) -> Result<Arc<dyn Renderer>, RenderError> {
    use gpt_oss::ReasoningEffort;
    use qwen3::ThinkingMode;
    Ok(match name {
        TEMPLATE => Arc::new(TemplateRenderer::new(tokenizer, &serde_json::Map::new())?),
        "role_colon" => Arc::new(role_colon::RoleColon::new(tokenizer)),
        "chatml" => Arc::new(chatml::renderer(tokenizer)?),
        "qwen3" => Arc::new(qwen3::renderer(tokenizer, ThinkingMode::Thinking)?),
        "qwen3_disable_thinking" => Arc::new(qwen3::renderer(tokenizer, ThinkingMode::DisableThinking)?),
        "qwen3_instruct" => Arc::new(qwen3::renderer(tokenizer, ThinkingMode::Instruct)?),
        "llama3" => Arc::new(llama3::renderer(tokenizer)?),
        "deepseekv3" => Arc::new(deepseek::renderer(tokenizer)?),
        "kimi_k2" => Arc::new(kimi::renderer(tokenizer)?),
        "gpt_oss_no_sysprompt" => Arc::new(gpt_oss::renderer(tokenizer, ReasoningEffort::Unsaid)?),
        "gpt_oss_low_reasoning" => Arc::new(gpt_oss::renderer(tokenizer, ReasoningEffort::Low)?),
        "gpt_oss_medium_reasoning" => Arc::new(gpt_oss::renderer(tokenizer, ReasoningEffort::Medium)?),
        "gpt_oss_high_reasoning" => Arc::new(gpt_oss::renderer(tokenizer, ReasoningEffort::High)?),
        _ => return Err(RenderError::Unknown { name: name.into() }),
    })
}

/// Whether two renderers read conversations of the same models: they differ in how much an answer may think.
#[must_use]
pub fn alike(name: &str, other: &str) -> bool {
    let family = |name: &str| match name {
        "qwen3_disable_thinking" => "qwen3".to_owned(),
        _ if name.starts_with("gpt_oss_") => "gpt_oss".to_owned(),
        _ => name.to_owned(),
    };
    family(name) == family(other)
}

/// The renderer that a base model was trained with, by the model's name (`owner/name`, the owner may be left out).
/// `None` for models that no renderer here fits, and for those whose name says nothing.
#[must_use]
pub fn recommended(base_model_name: &str) -> Option<&'static str> {
    let name = base_model_name.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    // A variant such as `:peft:131072` is the same model.
    let name = name.split(':').next().unwrap_or_default();
    let has = |part: &str| name.split('-').any(|p| p == part);
    if name == "tiny-random" || has("base") {
        return Some("role_colon");
    }
    if has("vl") || has("vision") || has("guard") || has("embedding") || has("reranker") {
        return None;
    }
    if name.starts_with("smollm2-") {
        return Some(if has("instruct") { "chatml" } else { "role_colon" });
    }
    if name.starts_with("qwen3-") {
        let is_instruct = has("instruct") || has("coder");
        return Some(if is_instruct { "qwen3_instruct" } else { "qwen3" });
    }
    if ["llama-3-", "llama-3.1-", "llama-3.2-", "llama-3.3-", "meta-llama-3-", "meta-llama-3.1-"]
        .iter()
        .any(|family| name.starts_with(family))
    {
        return Some(if has("instruct") { "llama3" } else { "role_colon" });
    }
    // The first DeepSeek V3 and Kimi K2 Instruct have templates without think tags.
    if name.starts_with("deepseek-v3.1") {
        return Some("deepseekv3");
    }
    if name == "kimi-k2-thinking" {
        return Some("kimi_k2");
    }
    if name.starts_with("gpt-oss-") {
        return Some("gpt_oss_medium_reasoning");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_models_have_the_renderer_they_were_trained_with() {
        for (model, name) in [
            ("tiny-random", Some("role_colon")),
            ("HuggingFaceTB/SmolLM2-135M-Instruct", Some("chatml")),
            ("smollm2-135m-instruct", Some("chatml")),
            ("HuggingFaceTB/SmolLM2-135M", Some("role_colon")),
            ("Qwen/Qwen3-8B", Some("qwen3")),
            ("Qwen/Qwen3-8B-Base:peft:131072", Some("role_colon")),
            ("Qwen/Qwen3-30B-A3B", Some("qwen3")),
            ("Qwen/Qwen3-8B-Base", Some("role_colon")),
            ("Qwen/Qwen3-4B-Instruct-2507", Some("qwen3_instruct")),
            ("Qwen/Qwen3-30B-A3B-Thinking-2507", Some("qwen3")),
            ("Qwen/Qwen3-VL-8B-Instruct", None),
            ("Qwen/Qwen3.5-9B", None),
            ("meta-llama/Llama-3.1-8B-Instruct", Some("llama3")),
            ("meta-llama/Llama-3.2-1B", Some("role_colon")),
            ("meta-llama/Llama-3.2-11B-Vision-Instruct", None),
            ("meta-llama/Llama-4-Scout", None),
            ("deepseek-ai/DeepSeek-V3.1", Some("deepseekv3")),
            ("deepseek-ai/DeepSeek-V3.1-Base", Some("role_colon")),
            ("deepseek-ai/DeepSeek-V3", None),
            ("moonshotai/Kimi-K2-Thinking", Some("kimi_k2")),
            ("moonshotai/Kimi-K2-Instruct", None),
            ("openai/gpt-oss-20b", Some("gpt_oss_medium_reasoning")),
            ("somebody/something", None),
            ("", None),
        ] {
            assert_eq!(recommended(model), name, "{model}");
            assert!(name.is_none_or(|n| NAMES.contains(&n)));
        }
    }

    #[test]
    fn renderers_of_one_family_are_alike() {
        for (name, other, expected) in [
            ("gpt_oss_low_reasoning", "gpt_oss_medium_reasoning", true),
            ("qwen3_disable_thinking", "qwen3", true),
            ("qwen3", "qwen3_instruct", false),
            ("chatml", "chatml", true),
            ("chatml", "llama3", false),
        ] {
            assert_eq!((alike(name, other), alike(other, name)), (expected, expected), "{name} {other}");
        }
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = RenderError::Unknown { name: "kimi_k3".into() }.to_string();
        let known = NAMES.join(", ");
        assert_eq!(error, format!("there is no renderer `kimi_k3`; this version knows template, {known}"));
    }
}
