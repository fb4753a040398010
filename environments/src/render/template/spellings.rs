//! The spellings of control tokens: allowed in what a template writes, never in what a message says.
//!
//! Before a template runs, [`ControlSpellings::guard`] puts a mark into every spelling of a control token within a message,
//! and where a text could become one together with what the template writes next to it. After it has run,
//! [`ControlSpellings::encode`] splits the text at the spellings that are left, which are the template's own, removes the
//! marks, and encodes each part as plain text in one piece: as the model's tokenizer encodes the whole.

use super::PLAIN_MARK;
use minds_core::chat::{ControlToken, Tokenizer};
use minds_core::ids::Token;
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashMap};

/// Fields of a message that hold any text. Templates do not compare them with words.
const FREE_TEXTS: [&str; 5] = ["content", "text", "reasoning_content", "reasoning", "thinking"];

/// The control tokens of one tokenizer, by spelling.
pub(super) struct ControlSpellings {
    tokens: HashMap<String, ControlToken>,
    names: HashMap<Token, String>,
    /// Lengths of spellings in bytes, longest first.
    lengths: Vec<usize>,
    first_bytes: [bool; 256],
    first_chars: BTreeSet<char>,
    last_chars: BTreeSet<char>,
}

impl ControlSpellings {
    pub(super) fn new(controls: Vec<ControlToken>) -> Self {
        let mut first_bytes = [false; 256];
        let spellings = || controls.iter().map(|control| &*control.name).filter(|name| !name.is_empty());
        for byte in spellings().filter_map(|name| name.bytes().next()) {
            first_bytes[usize::from(byte)] = true;
        }
        let lengths: BTreeSet<usize> = spellings().map(str::len).collect();
        let first_chars = spellings().filter_map(|name| name.chars().next()).collect();
        let last_chars = spellings().filter_map(|name| name.chars().next_back()).collect();
        let lengths = lengths.into_iter().rev().collect();
        let names = controls.iter().map(|control| (control.token, control.name.clone())).collect();
        let tokens = controls.into_iter().map(|control| (control.name.clone(), control)).collect();
        Self { tokens, names, lengths, first_bytes, first_chars, last_chars }
    }

    /// The control token of this exact spelling.
    pub(super) fn token(&self, name: &str) -> Option<Token> {
        self.tokens.get(name).map(|control| control.token)
    }

    /// A message or a tool whose texts cannot become control tokens, whatever a template writes around them.
    pub(super) fn guard(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.guard_value(text)),
            Value::Array(items) => Value::Array(items.iter().map(|item| self.guard(item)).collect()),
            Value::Object(fields) => {
                let field = |(name, value): (&String, &Value)| {
                    let value = match (name.as_str(), value) {
                        // Names of parameters are marked alike wherever they stand, for templates compare them.
                        ("arguments" | "required", value) => self.guard_data(value),
                        ("properties", Value::Object(fields)) => Value::Object(self.guard_names(fields)),
                        (name, Value::String(text)) if FREE_TEXTS.contains(&name) => {
                            Value::String(self.guard_text(text))
                        }
                        (_, value) => self.guard(value),
                    };
                    (self.guard_value(name), value)
                };
                Value::Object(fields.iter().map(field).collect())
            }
            other => other.clone(),
        }
    }

    /// Arguments of a call and names of parameters: any text.
    fn guard_data(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.guard_text(text)),
            Value::Array(items) => Value::Array(items.iter().map(|item| self.guard_data(item)).collect()),
            Value::Object(fields) => {
                let field =
                    |(name, value): (&String, &Value)| (self.guard_text(name), self.guard_data(value));
                Value::Object(fields.iter().map(field).collect())
            }
            other => other.clone(),
        }
    }

    /// Parameters of a tool by their names, each with a schema.
    fn guard_names(&self, fields: &Map<String, Value>) -> Map<String, Value> {
        fields.iter().map(|(name, schema)| (self.guard_text(name), self.guard(schema))).collect()
    }

    /// A name or a value that templates may compare with a word: a word alone stays as it is.
    fn guard_value(&self, text: &str) -> String {
        if is_identifier(text) { text.to_owned() } else { self.guard_text(text) }
    }

    pub(super) fn guard_text(&self, text: &str) -> String {
        let mut guarded = String::with_capacity(text.len());
        if self.may_end_a_spelling(text) {
            guarded.push(PLAIN_MARK);
        }
        for (at, c) in text.char_indices() {
            // A character that no text needs: Unicode reserves it for use within programs.
            guarded.push(if c == PLAIN_MARK { char::REPLACEMENT_CHARACTER } else { c });
            if self.first_chars.contains(&c) && self.may_start_a_spelling(&text[at..]) {
                guarded.push(PLAIN_MARK);
            }
        }
        guarded
    }

    /// Whether a text starts with a spelling, or is the beginning of one.
    fn may_start_a_spelling(&self, text: &str) -> bool {
        if self.at_start(text).is_some() {
            return true;
        }
        self.lengths.first().is_some_and(|longest| text.len() < *longest)
            && self.tokens.keys().any(|name| name.starts_with(text))
    }

    /// Whether a text starts with the end of a spelling, or is a middle part of one.
    fn may_end_a_spelling(&self, text: &str) -> bool {
        let Some(longest) = self.lengths.first() else { return false };
        let ends = text.char_indices().take_while(|(at, _)| at < longest);
        let ends =
            ends.filter(|(_, c)| self.last_chars.contains(c)).map(|(at, c)| &text[..at + c.len_utf8()]);
        let mut ends = ends.filter(|end| !end.is_empty());
        if ends.any(|end| self.tokens.keys().any(|name| name.ends_with(end))) {
            return true;
        }
        !text.is_empty() && text.len() < *longest && self.tokens.keys().any(|name| name.contains(text))
    }

    /// The longest spelling that a text starts with.
    fn at_start(&self, text: &str) -> Option<&ControlToken> {
        let first = *text.as_bytes().first()?;
        if !self.first_bytes[usize::from(first)] {
            return None;
        }
        self.lengths.iter().find_map(|length| self.tokens.get(text.get(..*length)?))
    }

    /// The text of tokens, control tokens spelled out.
    pub(super) fn spell(&self, tokenizer: &dyn Tokenizer, tokens: &[Token]) -> String {
        let name = |token: &Token| self.names.get(token).map(String::as_str);
        let runs = tokens.chunk_by(|a, b| name(a).is_some() == name(b).is_some());
        let spelled = runs.map(|run| match run.first().and_then(name) {
            Some(_) => run.iter().filter_map(name).collect(),
            None => tokenizer.decode(run),
        });
        spelled.collect()
    }

    /// The first control token that a template wrote in a text, with where it starts.
    pub(super) fn first(&self, text: &str) -> Option<(usize, Token)> {
        text.char_indices().find_map(|(at, _)| Some((at, self.at_start(&text[at..])?.token)))
    }

    /// Tokens of a rendered template.
    pub(super) fn encode(&self, tokenizer: &dyn Tokenizer, text: &str) -> Vec<Token> {
        let mut tokens = Vec::new();
        let mut rest = text;
        let mut plain = String::new();
        while let Some(c) = rest.chars().next() {
            let Some(control) = self.at_start(rest) else {
                if c != PLAIN_MARK {
                    plain.push(c);
                }
                rest = &rest[c.len_utf8()..];
                continue;
            };
            if control.takes_space_before {
                plain.truncate(plain.trim_end().len());
            }
            tokens.extend(tokenizer.encode(&std::mem::take(&mut plain)));
            tokens.push(control.token);
            rest = &rest[control.name.len()..];
            if control.takes_space_after {
                rest = rest.trim_start();
            }
        }
        tokens.extend(tokenizer.encode(&plain));
        tokens
    }
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c == '_' || c.is_alphanumeric())
}
