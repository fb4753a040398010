//! Every prompt and completion of the policy within one rollout.
//!
//! A prompt that continues a completion holds its tokens as they were sampled ([`next_prompt`]).

use super::model_profile::ModelProfile;
use minds_core::chat::{Message, PromptError, Termination};
use minds_core::continuation::next_prompt;
use minds_core::ids::Token;
use minds_core::rollout::Turn;
use minds_core::sampling::Completion;
use std::collections::HashMap;

/// The turns of a rollout, by the ids of their completions.
#[derive(Default)]
pub(super) struct RolloutRecord {
    pub(super) turns: Vec<RecordedTurn>,
    /// Index of the completion that contains each tool call.
    pub(super) calls: HashMap<String, usize>,
}

/// A completion with its prompt.
pub(super) struct RecordedTurn {
    pub(super) id: String,
    /// The conversation up to and including the completion; empty if the prompt was given as tokens.
    pub(super) conversation: Vec<Message>,
    pub(super) turn: Turn,
    /// Thoughts that are not in the conversation, of a turn with tools.
    pub(super) reasoning: Option<String>,
}

impl RecordedTurn {
    /// The conversation before the completion. If the prompt was given as tokens, its text is the user message.
    fn opening(&self, profile: &ModelProfile) -> Vec<Message> {
        match self.conversation.split_last() {
            Some((_, before)) => before.to_vec(),
            None => vec![Message::user(profile.tokenizer.decode(&self.turn.prompt))],
        }
    }
}

/// The turns that a rollout consists of.
#[derive(Debug)]
pub(super) struct CountedTurns {
    /// The conversation before the first completion.
    pub opening: Vec<Message>,
    /// The turns that count, in sampling order.
    pub turns: Vec<Turn>,
}

impl RolloutRecord {
    /// Number of completions so far.
    pub(super) fn len(&self) -> usize {
        self.turns.len()
    }

    /// The text of the completion that contains a tool call.
    pub(super) fn text_of_call(&self, call: &str) -> Option<String> {
        self.calls.get(call).map(|at| self.turns[*at].turn.text.clone())
    }

    /// Remembers which completion contains a tool call.
    pub(super) fn remember_call(&mut self, call: &str) {
        self.calls.insert(call.into(), self.turns.len() - 1);
    }

    /// The prompt for a conversation.
    ///
    /// # Errors
    /// The renderer refuses the conversation.
    pub(super) fn prompt(
        &self,
        profile: &ModelProfile,
        messages: &[Message],
    ) -> Result<Vec<Token>, PromptError> {
        let renderer = &*profile.renderer;
        match self.longest_part_of(messages) {
            Some(before) => next_prompt(renderer, &before.turn, before.conversation.len(), messages),
            None => renderer.prompt(messages),
        }
    }

    /// Records a completion and returns its text.
    pub(super) fn add(
        &mut self,
        profile: &ModelProfile,
        id: String,
        mut conversation: Vec<Message>,
        prompt: Vec<Token>,
        answer: Completion,
    ) -> String {
        let parsed = profile.renderer.parse(&answer);
        if !conversation.is_empty() {
            conversation.push(Message::assistant(parsed.text.clone()));
        }
        let turn = Turn {
            prompt: prompt.into(),
            completion: answer,
            text: parsed.text.clone(),
            complete: parsed.termination == Termination::Stop,
        };
        self.turns.push(RecordedTurn { id, conversation, turn, reasoning: None });
        parsed.text
    }

    /// The turn whose conversation is the longest beginning of this one.
    pub(super) fn longest_part_of(&self, messages: &[Message]) -> Option<&RecordedTurn> {
        let turns = self.turns.iter();
        let parts =
            turns.filter(|turn| !turn.conversation.is_empty() && messages.starts_with(&turn.conversation));
        parts.max_by_key(|turn| turn.conversation.len())
    }

    /// Takes the turns of these completions, in sampling order, with the conversation before the first of them; all
    /// turns if `ids` is `None`.
    ///
    /// # Errors
    /// An id that is not in the record.
    pub(super) fn counted(
        &mut self,
        profile: &ModelProfile,
        ids: Option<&[String]>,
    ) -> Result<CountedTurns, String> {
        let known = |id: &&String| self.turns.iter().any(|turn| turn.id == **id);
        if let Some(unknown) = ids.into_iter().flatten().find(|id| !known(id)) {
            return Err(format!(
                "the environment says that the answer `{unknown}` counts, which was never given"
            ));
        }
        let counts = |turn: &RecordedTurn| ids.is_none_or(|ids| ids.contains(&turn.id));
        let all = std::mem::take(&mut self.turns).into_iter();
        let (counted, others): (Vec<RecordedTurn>, _) = all.partition(counts);
        self.turns = others;
        let opening = counted.first().map(|first| first.opening(profile)).unwrap_or_default();
        Ok(CountedTurns { opening, turns: counted.into_iter().map(|recorded| recorded.turn).collect() })
    }

    /// All turns, in sampling order.
    pub(super) fn into_turns(self) -> Vec<Turn> {
        self.turns.into_iter().map(|recorded| recorded.turn).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minds_core::chat::{ParsedCompletion, Renderer, Role, Tokenizer};
    use minds_core::sampling::{SamplingParams, Stop, StopReason};
    use std::sync::Arc;

    const STOP: Token = 1000;

    /// One token per letter, but two where a pair is `th`: a text has several ways to be tokens.
    struct Letters;

    impl Tokenizer for Letters {
        fn encode(&self, text: &str) -> Vec<Token> {
            let pieces: Vec<&str> = text.split("th").collect();
            let letters = pieces.iter().map(|piece| piece.bytes().map(Token::from).collect::<Vec<_>>());
            letters.collect::<Vec<_>>().join(&500)
        }
        fn control(&self, _: &str) -> Option<Token> {
            None
        }
        fn decode(&self, tokens: &[Token]) -> String {
            let text = |token: &Token| match token {
                500 => "th".to_owned(),
                token if *token >= STOP => String::new(),
                token => char::from(*token as u8).to_string(),
            };
            tokens.iter().map(text).collect()
        }
        fn vocab(&self) -> usize {
            1002
        }
        fn stop_tokens(&self) -> Vec<Token> {
            vec![STOP]
        }
        fn bos(&self) -> Option<Token> {
            None
        }
    }

    /// `role:content` and a stop for every message; with `forgets`, what stands before a `|` is left out of history.
    struct Plain {
        forgets: bool,
    }

    impl Renderer for Plain {
        fn name(&self) -> &str {
            "plain"
        }
        fn prompt(&self, messages: &[Message]) -> Result<Vec<Token>, PromptError> {
            let mut tokens = Vec::new();
            for Message { role, content } in messages {
                let content = if *role == Role::Assistant && self.forgets {
                    content.rsplit('|').next().unwrap_or_default()
                } else {
                    content
                };
                tokens.extend(Letters.encode(&format!("{}:{content}", &role.name()[..1])));
                tokens.push(STOP);
            }
            tokens.extend(Letters.encode("a:"));
            Ok(tokens)
        }
        fn answer(&self, text: &str) -> Vec<Token> {
            Letters.encode(text)
        }
        fn stop(&self) -> Stop {
            Stop::Tokens(vec![STOP])
        }
        fn text(&self, tokens: &[Token]) -> String {
            Letters.decode(tokens)
        }
        fn parse(&self, sampled: &Completion) -> ParsedCompletion {
            let termination =
                if sampled.tokens.last() == Some(&STOP) { Termination::Stop } else { Termination::Truncated };
            ParsedCompletion { text: Letters.decode(&sampled.tokens), termination }
        }
    }

    fn profile(forgets: bool) -> ModelProfile {
        ModelProfile {
            renderer: Arc::new(Plain { forgets }),
            tokenizer: Arc::new(Letters),
            sampling: SamplingParams::plain(8),
            context: 1000,
            base_model: "test".into(),
        }
    }

    fn sampled(tokens: Vec<Token>) -> Completion {
        let logprobs = vec![-1.0; tokens.len()];
        Completion::new(tokens, logprobs, StopReason::Stop)
    }

    /// Asks, is answered with these tokens, and gives the prompt of the next question.
    fn next_prompt(
        forgets: bool,
        answer: Vec<Token>,
        retold: Option<&str>,
    ) -> (Vec<Token>, Vec<Token>, Vec<Token>) {
        let profile = profile(forgets);
        let mut record = RolloutRecord::default();
        let mut messages = vec![Message::user("why")];
        let first = record.prompt(&profile, &messages).unwrap();
        let said =
            record.add(&profile, "x-0".into(), messages.clone(), first.clone(), sampled(answer.clone()));
        messages.push(Message::assistant(retold.unwrap_or(&said)));
        messages.push(Message::user("more"));
        let prompt = record.prompt(&profile, &messages).unwrap();
        (prompt, [first, answer].concat(), profile.renderer.prompt(&messages).unwrap())
    }

    /// `t`, `h` as two tokens, where the tokenizer would write one.
    fn odd() -> Vec<Token> {
        vec![b't'.into(), b'h'.into(), b'y'.into()]
    }

    #[test]
    fn a_prompt_continues_with_the_sampled_tokens() {
        let (prompt, before, written) = next_prompt(false, [odd(), vec![STOP]].concat(), None);
        assert_ne!(prompt, written, "the tokenizer would have written other tokens");
        assert_eq!(prompt, [before, Letters.encode("u:more"), vec![STOP], Letters.encode("a:")].concat());
        // An answer that was cut is closed by what follows.
        let (prompt, before, _) = next_prompt(false, odd(), None);
        assert_eq!(
            prompt,
            [before, vec![STOP], Letters.encode("u:more"), vec![STOP], Letters.encode("a:")].concat()
        );
    }

    #[test]
    fn rewritten_history_is_rendered_again() {
        let answer = [Letters.encode("hm|yes"), vec![STOP]].concat();
        let (prompt, before, written) = next_prompt(true, answer.clone(), None);
        assert!(prompt == written && !prompt.starts_with(&before));
        // So is history that the environment has changed.
        let (prompt, before, written) = next_prompt(false, answer, Some("no"));
        assert!(prompt == written && !prompt.starts_with(&before));
    }

    #[test]
    fn only_completions_that_count_are_turns_and_an_unknown_one_is_an_error() {
        let profile = profile(false);
        let record = || {
            let mut record = RolloutRecord::default();
            for n in 0..3 {
                record.add(&profile, format!("x-{n}"), vec![], vec![n], sampled(vec![STOP]));
            }
            record
        };
        let ids = |all: &[&str]| all.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let firsts = |ids: Option<&[String]>| {
            let counted = record().counted(&profile, ids).unwrap();
            counted.turns.iter().map(|turn| turn.prompt[0]).collect::<Vec<_>>()
        };
        assert_eq!(firsts(None), [0, 1, 2]);
        assert_eq!(firsts(Some(&ids(&["x-2", "x-0"]))), [0, 2]);
        assert!(record().counted(&profile, Some(&ids(&["y-1"]))).unwrap_err().contains("`y-1`"));
    }
    #[test]
    fn a_rollout_opens_with_the_messages_before_its_first_counted_completion() {
        let profile = profile(false);
        let mut record = RolloutRecord::default();
        let asked = [Message::system("be brief"), Message::user("why")];
        let other = vec![Message::user("aside")];
        let tokens = Letters.encode("the");
        record.add(&profile, "x-0".into(), other, vec![1], sampled(vec![STOP]));
        record.add(&profile, "x-1".into(), asked.to_vec(), vec![2], sampled(vec![STOP]));
        let counted = record.counted(&profile, Some(&["x-1".into()])).unwrap();
        assert_eq!(counted.opening, asked);
        let mut record = RolloutRecord::default();
        record.add(&profile, "x-0".into(), vec![], tokens, sampled(vec![STOP]));
        assert_eq!(record.counted(&profile, None).unwrap().opening, [Message::user("the")]);
        assert_eq!(RolloutRecord::default().counted(&profile, None).unwrap().opening, []);
    }
}
