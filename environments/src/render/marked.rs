//! What renderers with control tokens share: looking markers up, and reading a turn up to its stop token.

use super::RenderError;
use minds_core::chat::{Parsed, Termination, Tokenizer};
use minds_core::ids::Token;
use minds_core::sampling::Sampled;

/// Looks markers up for one renderer, so that a missing one can be named with the family that has it.
pub(super) struct Lookup<'a> {
    pub(super) renderer: &'static str,
    pub(super) family: &'static str,
    pub(super) tokenizer: &'a dyn Tokenizer,
}

impl Lookup<'_> {
    pub(super) fn token(&self, token: &'static str) -> Result<Token, RenderError> {
        let missing = RenderError::MissingToken { renderer: self.renderer, token, family: self.family };
        self.tokenizer.control(token).ok_or(missing)
    }
}

/// The tokens that must not occur within an answer: the stop, the other markers and the model's own stop tokens.
pub(super) struct Ends {
    stop: Token,
    others: Vec<Token>,
}

impl Ends {
    pub(super) fn new(stop: Token, markers: &[Token], tokenizer: &dyn Tokenizer) -> Self {
        let others = markers.iter().copied().chain(tokenizer.stop_tokens()).filter(|t| *t != stop);
        Self { stop, others: others.collect() }
    }

    pub(super) fn stop(&self) -> Token {
        self.stop
    }

    /// The stop alone at the end is a [`Termination::Stop`], no marker at all a [`Termination::Cut`].
    ///
    /// Other markers count as malformed although the sampler does not stop at them: decoding leaves control tokens
    /// out, so a policy could otherwise write as many as it likes into an answer that looks right.
    pub(super) fn parse(&self, tokenizer: &dyn Tokenizer, sampled: &Sampled) -> Parsed {
        let is_marker = |token: &Token| *token == self.stop || self.others.contains(token);
        let (body, termination) = match sampled.tokens.split_last() {
            Some((last, body)) if *last == self.stop && !body.iter().any(is_marker) => {
                (body, Termination::Stop)
            }
            _ if sampled.tokens.iter().any(is_marker) => (&sampled.tokens[..], Termination::Malformed),
            _ => (&sampled.tokens[..], Termination::Cut),
        };
        Parsed { text: tokenizer.decode(body), termination }
    }
}
