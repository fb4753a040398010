//! What all renderers with control tokens share: everything but the shape of their prompts.
//!
//! A [`ChatDialect`] says how one family of models writes a conversation; [`MarkerRenderer`] makes a renderer of it. Markers are
//! looked up by name, once; a [`PromptBuilder`] takes markers as tokens and content as text, so content can never become a marker.

use super::RenderError;
use minds_core::chat::{Message, ParsedCompletion, PromptError, Renderer, Termination, Tokenizer};
use minds_core::ids::Token;
use minds_core::sampling::{Completion, Stop};
use std::sync::Arc;

/// What one family of models does its own way.
pub(super) trait ChatDialect: Send + Sync {
    /// The renderer's name in configs.
    fn name(&self) -> &'static str;

    /// Writes the conversation up to where the assistant's next turn begins.
    fn prompt(&self, messages: &[Message], builder: &mut PromptBuilder<'_>);

    /// Tokens between the prompt and the text of an answer that is given rather than sampled.
    fn opening(&self) -> &[Token] {
        &[]
    }

    /// Markers that the model may end its turn with although it has not answered.
    fn halts(&self) -> &[Token] {
        &[]
    }

    /// The text of a turn that ended with its stop, which is left out here. `None` if its tokens are no turn of this
    /// family.
    fn read(&self, tokenizer: &dyn Tokenizer, turn: &[Token]) -> Option<String> {
        Some(tokenizer.decode(turn))
    }
}

/// A renderer over the control tokens of one family.
pub(super) struct MarkerRenderer<D> {
    tokenizer: Arc<dyn Tokenizer>,
    ends: TurnMarkers,
    dialect: D,
}

impl<D: ChatDialect> MarkerRenderer<D> {
    /// `stop` ends an answer; the other `markers` may not stand in a turn.
    pub(super) fn new(tokenizer: Arc<dyn Tokenizer>, stop: Token, markers: &[Token], dialect: D) -> Self {
        let all = markers.iter().chain(dialect.halts()).copied().chain(tokenizer.stop_tokens());
        let others = all.filter(|token| *token != stop).collect();
        Self { tokenizer, ends: TurnMarkers { stop, others }, dialect }
    }
}

impl<D: ChatDialect> Renderer for MarkerRenderer<D> {
    fn name(&self) -> &str {
        self.dialect.name()
    }

    fn prompt(&self, messages: &[Message]) -> Result<Vec<Token>, PromptError> {
        let mut builder = PromptBuilder { tokenizer: &*self.tokenizer, tokens: Vec::new() };
        self.dialect.prompt(messages, &mut builder);
        Ok(builder.tokens)
    }

    fn answer(&self, text: &str) -> Vec<Token> {
        [self.dialect.opening(), &self.tokenizer.encode(text)].concat()
    }

    fn stop(&self) -> Stop {
        Stop::Tokens([&[self.ends.stop], self.dialect.halts()].concat())
    }

    fn text(&self, tokens: &[Token]) -> String {
        self.tokenizer.decode(tokens)
    }

    /// One stop alone at the end is a [`Termination::Stop`], no marker at all a [`Termination::Truncated`].
    fn parse(&self, sampled: &Completion) -> ParsedCompletion {
        let (turn, termination) = self.ends.split(&sampled.tokens);
        let plain = || self.tokenizer.decode(turn);
        if termination != Termination::Stop {
            return ParsedCompletion { text: plain(), termination };
        }
        match self.dialect.read(&*self.tokenizer, turn) {
            Some(text) => ParsedCompletion { text, termination },
            None => ParsedCompletion { text: plain(), termination: Termination::Malformed },
        }
    }
}

/// Tokens as they are written: markers by their token, content as plain text.
pub(super) struct PromptBuilder<'a> {
    tokenizer: &'a dyn Tokenizer,
    tokens: Vec<Token>,
}

impl PromptBuilder<'_> {
    pub(super) fn marker(&mut self, marker: Token) -> &mut Self {
        self.tokens.push(marker);
        self
    }

    pub(super) fn markers(&mut self, markers: &[Token]) -> &mut Self {
        self.tokens.extend_from_slice(markers);
        self
    }

    /// Encodes in one piece: texts that are written one after the other share no token.
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.tokens.extend(self.tokenizer.encode(text));
        self
    }

    pub(super) fn is_blank(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// Looks markers up for one renderer, so that a missing one can be named with the family that has it.
pub(super) struct MarkerLookup<'a> {
    pub(super) renderer: &'static str,
    pub(super) family: &'static str,
    pub(super) tokenizer: &'a dyn Tokenizer,
}

impl MarkerLookup<'_> {
    pub(super) fn token(&self, token: &'static str) -> Result<Token, RenderError> {
        let missing = RenderError::MissingToken { renderer: self.renderer, token, family: self.family };
        self.tokenizer.control(token).ok_or(missing)
    }
}

/// The tokens that must not occur within an answer: the stop, the other markers and the model's own stop tokens.
struct TurnMarkers {
    stop: Token,
    others: Vec<Token>,
}

impl TurnMarkers {
    /// The turn without its stop, and how it ended.
    ///
    /// Other markers count as malformed although the sampler does not stop at them: decoding leaves control tokens
    /// out, so a policy could otherwise write as many as it likes into an answer that looks right.
    fn split<'a>(&self, tokens: &'a [Token]) -> (&'a [Token], Termination) {
        let is_marker = |token: &Token| *token == self.stop || self.others.contains(token);
        match tokens.split_last() {
            Some((last, turn)) if *last == self.stop && !turn.iter().any(is_marker) => {
                (turn, Termination::Stop)
            }
            _ if tokens.iter().any(is_marker) => (tokens, Termination::Malformed),
            _ => (tokens, Termination::Truncated),
        }
    }
}
