//! Turns of a rollout whose tools have the form of the model's chat template.
//!
//! The prompt after a call holds the call's tokens as they were sampled, even where the template would write the same call with
//! other spaces.

use super::message::{ChatMessage, ToolCall};
use super::model_profile::ModelProfile;
use super::record::{RecordedTurn, RolloutRecord};
use super::tool_conversation::{recorded_answer, recorded_messages, template_messages};
use minds_core::chat::{Message, PromptError, Termination, ToolRenderer, ToolTurn};
use minds_core::ids::Token;
use minds_core::rollout::Turn;
use minds_core::sampling::Completion;
use serde_json::Value;

impl RolloutRecord {
    /// The prompt for a conversation with tools in the form of the model's template.
    ///
    /// # Errors
    /// The template refuses the conversation.
    pub(super) fn prompt_with_tools(
        &self,
        renderer: &dyn ToolRenderer,
        profile: &ModelProfile,
        messages: &[ChatMessage],
        tools: &[Value],
    ) -> Result<Vec<Token>, PromptError> {
        let recorded = recorded_messages(messages);
        let messages = template_messages(messages, |call| {
            self.calls.get(call).and_then(|at| self.turns[*at].reasoning.clone())
        });
        let written = renderer.prompt(&messages, tools)?;
        let continued = self.longest_part_of(&recorded).and_then(|before| {
            let tail = renderer.after_turn(&messages, tools, before.conversation.len() - 1)?;
            continued_with_tools(profile, before, &tail, &written)
        });
        Ok(continued.unwrap_or(written))
    }

    /// Records a completion with the calls that were read from it.
    pub(super) fn add_tool_turn(
        &mut self,
        id: String,
        mut conversation: Vec<Message>,
        prompt: Vec<Token>,
        answer: Completion,
        read: &ToolTurn,
        calls: &[ToolCall],
    ) {
        conversation.push(recorded_answer(read.content.clone(), calls));
        let turn = Turn {
            prompt: prompt.into(),
            completion: answer,
            text: read.text.clone(),
            complete: read.termination == Termination::Stop,
        };
        let reasoning = read.reasoning.clone();
        self.turns.push(RecordedTurn { id, conversation, turn, reasoning });
    }
}

/// The prompt of a conversation with tools as a continuation of a completion, token for token; `tail` is what follows from
/// the end of its turn on. The calls in it are those that were read from the completion, so their spelling may differ from
/// what is `written`. `None` if the template changes what comes before the completion, or leaves out its thoughts.
fn continued_with_tools(
    profile: &ModelProfile,
    before: &RecordedTurn,
    tail: &[Token],
    written: &[Token],
) -> Option<Vec<Token>> {
    let Turn { prompt, completion, complete, .. } = &before.turn;
    let sampled = &completion.tokens[..];
    let rewritten = written.strip_prefix(&prompt[..])?.strip_suffix(tail)?;
    if let Some(thoughts) = &before.reasoning
        && !profile.tokenizer.decode(rewritten).contains(thoughts.trim())
    {
        return None;
    }
    let rest = match (complete, sampled.last() == tail.first()) {
        // The stop that was sampled is the token that ends the turn.
        (true, true) => &tail[1..],
        // The turn was cut off, and is closed by what follows.
        (false, _) => tail,
        (true, false) => return None,
    };
    Some([&prompt[..], sampled, rest].concat())
}

#[cfg(test)]
mod tests {
    use super::super::message::ToolFunction;
    use super::super::tool_conversation::numbered;
    use super::*;
    use crate::render::template::TemplateRenderer;
    use minds_core::chat::{ChatTemplate, ControlToken, Renderer, Tokenizer};
    use minds_core::sampling::{SamplingParams, Stop, StopReason};
    use serde_json::{Map, json};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    const NAMES: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"];

    /// A token for each byte, and the template of a family with tools in JSON.
    struct Letters(ChatTemplate);

    impl Tokenizer for Letters {
        fn encode(&self, text: &str) -> Vec<Token> {
            text.bytes().map(Token::from).collect()
        }
        fn control(&self, name: &str) -> Option<Token> {
            (1000..).zip(NAMES).find(|(_, known)| *known == name).map(|(token, _)| token)
        }
        fn decode(&self, tokens: &[Token]) -> String {
            let bytes: Vec<u8> = tokens.iter().filter_map(|token| u8::try_from(*token).ok()).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
        fn vocab(&self) -> usize {
            1003
        }
        fn stop_tokens(&self) -> Vec<Token> {
            vec![1001]
        }
        fn bos(&self) -> Option<Token> {
            None
        }
        fn controls(&self) -> Vec<ControlToken> {
            let control = |(token, name): (Token, &str)| ControlToken {
                name: name.to_owned(),
                token,
                takes_space_before: false,
                takes_space_after: false,
            };
            (1000..).zip(NAMES).map(control).collect()
        }
        fn chat_template(&self) -> Option<&ChatTemplate> {
            Some(&self.0)
        }
    }

    /// Thoughts are kept after the last user message only, as Qwen3's template keeps them.
    const TEMPLATE: &str = "{% set ns = namespace(user=0) %}{% for m in messages %}{% if m.role == 'user' %}\
        {% set ns.user = loop.index0 %}{% endif %}{% endfor %}{{ tools | tojson if tools }}\
        {% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content and loop.index0 > ns.user %}<think>\n\
        {{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>\n\
        {{ call.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    fn profile() -> ModelProfile {
        let template = ChatTemplate { source: TEMPLATE.into(), special_tokens: BTreeMap::new() };
        let tokenizer: Arc<dyn Tokenizer> = Arc::new(Letters(template));
        let renderer = TemplateRenderer::new(tokenizer.clone(), &Map::new()).unwrap();
        assert_eq!(renderer.stop(), Stop::Tokens(vec![1001]));
        ModelProfile {
            renderer: Arc::new(renderer),
            tokenizer,
            sampling: SamplingParams::plain(8),
            context: 1000,
            base_model: "test".into(),
        }
    }

    fn message(role: &str, content: &str) -> ChatMessage {
        ChatMessage { role: role.into(), content: json!(content), ..ChatMessage::default() }
    }

    /// Samples `turn`, lets a tool answer and asks again; gives the first prompt, what was sampled, and the second prompt.
    fn next_prompt(turn: &str, more: &[ChatMessage]) -> (Vec<Token>, Vec<Token>, Vec<Token>) {
        let profile = profile();
        let own = profile.renderer.tools().unwrap();
        let tools = [json!({"name": "add"})];
        let mut record = RolloutRecord::default();
        let mut messages = vec![message("user", "2+2?")];
        let first = record.prompt_with_tools(own, &profile, &messages, &tools).unwrap();
        let sampled = [profile.tokenizer.encode(turn), vec![1001]].concat();
        let answer = Completion::new(sampled.clone(), vec![-1.0; sampled.len()], StopReason::Stop);
        let read = own.parse(&answer, &tools);
        let calls = numbered(read.calls.clone(), "r-0");
        record.add_tool_turn(
            "r-0".into(),
            recorded_messages(&messages),
            first.clone(),
            answer,
            &read,
            &calls,
        );
        for call in &calls {
            record.remember_call(&call.id);
        }
        let result = ChatMessage { tool_call_id: Some(calls[0].id.clone()), ..message("tool", "4") };
        messages.push(ChatMessage { tool_calls: Some(calls), ..message("assistant", &read.content) });
        messages.push(result);
        messages.extend_from_slice(more);
        let next = record.prompt_with_tools(own, &profile, &messages, &tools).unwrap();
        (first, sampled, next)
    }

    #[test]
    fn a_prompt_after_a_call_continues_with_the_sampled_tokens() {
        // The template would write spaces after the colons and the comma.
        let turn = "Hm.<tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\":2}}\n</tool_call>";
        let (first, sampled, next) = next_prompt(turn, &[]);
        assert!(next.starts_with(&[&first[..], &sampled].concat()));
        let rest = &next[first.len() + sampled.len()..];
        assert_eq!(profile().tokenizer.decode(rest), "\ntool\n4\nassistant\n");
    }

    #[test]
    fn thoughts_stay_until_the_next_user_message() {
        let turn =
            "<think>\nhm\n</think>\n\n<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>";
        let (first, sampled, next) = next_prompt(turn, &[]);
        assert!(next.starts_with(&[&first[..], &sampled].concat()));
        let (first, sampled, next) = next_prompt(turn, &[message("user", "sure?")]);
        assert!(next.starts_with(&first) && !next.starts_with(&[&first[..], &sampled].concat()));
        assert!(!profile().tokenizer.decode(&next).contains("hm"));
    }

    #[test]
    fn a_malformed_call_reaches_the_environment() {
        let profile = profile();
        let own = profile.renderer.tools().unwrap();
        let tokens =
            [profile.tokenizer.encode("<tool_call>{\"name\": \"add\", </tool_call>"), vec![1001]].concat();
        let logprobs = vec![-1.0; tokens.len()];
        let answer = Completion::new(tokens, logprobs, StopReason::Stop);
        let read = own.parse(&answer, &[]);
        let function = ToolFunction { name: "add".into(), arguments: "{\"name\": \"add\",".into() };
        assert_eq!(numbered(read.calls, "r-0")[0].function, function);
    }
}
