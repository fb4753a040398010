//! Whether a model thinks before it answers, and the variable of its chat template that decides it.

use super::engine::{TemplateEngine, TemplateError, TemplateInput};
use minds_core::chat::ChatTemplate;
use serde_json::{Map, Value, json};

/// Names of the variable in the templates of the families that have one.
const VARIABLES: [&str; 2] = ["enable_thinking", "thinking"];

/// The variable of a chat template that switches thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThinkingSwitch {
    /// Name of the variable.
    pub variable: &'static str,
    /// Whether the model thinks where the variable is not set.
    pub is_on: bool,
}

impl ThinkingSwitch {
    /// Finds the variable by rendering a prompt with it and without. `None` if the template has no such variable, or it
    /// changes nothing.
    ///
    /// # Errors
    /// The template cannot be compiled, or refuses a conversation of one user message.
    pub fn of(template: &ChatTemplate) -> Result<Option<Self>, TemplateError> {
        let read = TemplateEngine::new(template, Map::new())?.variables();
        for variable in VARIABLES {
            if !read.iter().any(|name| name == variable) {
                continue;
            }
            let prompt = |value: Option<bool>| {
                let set = value.map(|value| (variable.to_owned(), Value::Bool(value)));
                let engine = TemplateEngine::new(template, Map::from_iter(set))?;
                let messages = [json!({"role": "user", "content": "Hi"})];
                engine.render(TemplateInput { messages: &messages, tools: &[], add_generation_prompt: true })
            };
            let on = prompt(Some(true))?;
            if on != prompt(Some(false))? {
                return Ok(Some(Self { variable, is_on: prompt(None)? == on }));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_found_by_rendering() {
        let switch = |source: &str| {
            let template = ChatTemplate { source: source.to_owned(), special_tokens: Default::default() };
            ThinkingSwitch::of(&template).unwrap()
        };
        // The last lines of Qwen3's template, of DeepSeek V3.1's, and one that only mentions the variable.
        let qwen3 = "{{ messages[0].content }}{% if enable_thinking is defined and enable_thinking is false %}\
                     <think>\n\n</think>{% endif %}";
        assert_eq!(switch(qwen3), Some(ThinkingSwitch { variable: "enable_thinking", is_on: true }));
        let deepseek = "{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ messages[0].content }}\
                        {% if not thinking %}</think>{% else %}<think>{% endif %}";
        assert_eq!(switch(deepseek), Some(ThinkingSwitch { variable: "thinking", is_on: false }));
        assert_eq!(switch("{{ messages[0].content }}{% if enable_thinking %}{% endif %}"), None);
        assert_eq!(switch("{{ messages[0].content }}"), None);
    }
}
