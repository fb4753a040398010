//! Verifiers: whether an answer is right, by rules that need no model.
//!
//! A verifier reads a value from the answer and compares it with the reference. What it cannot read is not right.

mod choice;
mod number;
mod pattern;
mod schema;
mod text;

use super::columns;
use crate::rows::Columns;
use num_rational::BigRational;
pub(super) use number::PercentMeaning;
use regex::Regex;
use serde_json::{Value, json};

/// What a verifier found in an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finding {
    /// The value that was read.
    pub value: Value,
    /// Whether it is right.
    pub is_correct: bool,
}

/// How an answer is compared with its reference.
pub(super) enum Verifier {
    /// The texts are equal.
    Exact { ignore_case: bool },
    /// The last number is the reference, or near it.
    Number { tolerance: BigRational, percent: PercentMeaning },
    /// The answer names the right choice and no other.
    Choice {
        /// Column with the texts of the choices.
        column: Option<String>,
    },
    /// What the pattern captures equals the reference; without a pattern of its own, the reference is one that must
    /// match.
    Pattern { pattern: Option<Regex>, ignore_case: bool },
    /// The answer contains the reference.
    Contains { ignore_case: bool },
    /// The answer's JSON is valid under the reference, which is a schema.
    JsonSchema,
}

impl Verifier {
    /// A verifier of numbers.
    pub(super) fn number(tolerance: f64, percent: PercentMeaning) -> Option<Self> {
        Some(Self::Number { tolerance: number::exact(tolerance)?, percent })
    }

    /// A verifier by a pattern, if one is given.
    ///
    /// # Errors
    /// The pattern is not valid.
    pub(super) fn pattern(pattern: Option<&str>, ignore_case: bool) -> Result<Self, String> {
        let pattern = pattern.map(|pattern| pattern::compile(pattern, ignore_case)).transpose()?;
        Ok(Self::Pattern { pattern, ignore_case })
    }

    /// Checks that a row's reference can be compared with answers.
    ///
    /// # Errors
    /// No answer to this row could ever be right.
    pub(super) fn check(&self, reference: &str, columns: &Columns) -> Result<(), String> {
        let none = |what: &str| format!("`answer` is {reference:?}, {what}");
        match self {
            Self::Exact { ignore_case } | Self::Contains { ignore_case } => {
                let is_empty = text::normalized(reference, *ignore_case).is_empty();
                if is_empty { Err(none("which is blank")) } else { Ok(()) }
            }
            Self::Number { percent, .. } => {
                let number = number::last_number(reference, *percent);
                number.map(|_| ()).ok_or_else(|| none("which holds nothing that can be read as a number"))
            }
            Self::Choice { column } => {
                let choices = choices(column.as_deref(), columns)?;
                let letter = choice::reference(reference, &choices);
                letter
                    .map(|_| ())
                    .ok_or_else(|| none("which is neither the letter nor the text of one choice"))
            }
            Self::Pattern { pattern: None, ignore_case } => {
                pattern::compile(reference, *ignore_case).map(|_| ())
            }
            Self::Pattern { .. } if reference.trim().is_empty() => Err(none("which is blank")),
            Self::Pattern { .. } => Ok(()),
            Self::JsonSchema => schema::compile(reference).map(|_| ()),
        }
    }

    /// What an answer says, and whether that is right; `None` where nothing can be read.
    ///
    /// # Errors
    /// The reference cannot be used, which [`Verifier::check`] would have found.
    pub(super) fn find(
        &self,
        answer: &str,
        reference: &str,
        columns: &Columns,
    ) -> Result<Option<Finding>, String> {
        let found = |value: Value, is_correct: bool| Some(Finding { value, is_correct });
        match self {
            Self::Exact { ignore_case } => {
                let read = text::normalized(answer, *ignore_case);
                let is_correct = read == text::normalized(reference, *ignore_case);
                Ok(found(read.into(), is_correct))
            }
            Self::Number { tolerance, percent } => {
                let Some(read) = number::last_number(answer, *percent) else { return Ok(None) };
                let right = number::last_number(reference, *percent)
                    .ok_or("the reference cannot be read as a number")?;
                Ok(found(read.to_string().into(), number::is_close(&read, &right, tolerance)))
            }
            Self::Choice { column } => {
                let choices = choices(column.as_deref(), columns)?;
                let Some(read) = choice::chosen(answer, &choices) else { return Ok(None) };
                Ok(found(read.to_string().into(), Some(read) == choice::reference(reference, &choices)))
            }
            Self::Pattern { pattern: Some(pattern), ignore_case } => {
                let Some(read) = pattern::captured(pattern, answer) else { return Ok(None) };
                let is_correct =
                    text::normalized(read, *ignore_case) == text::normalized(reference, *ignore_case);
                Ok(found(read.into(), is_correct))
            }
            Self::Pattern { pattern: None, ignore_case } => {
                let pattern = pattern::compile(reference, *ignore_case)?;
                let read = pattern.find(answer).map_or(Value::Null, |found| found.as_str().into());
                Ok(found(read.clone(), !read.is_null()))
            }
            Self::Contains { ignore_case } => {
                let read = text::normalized(answer, *ignore_case);
                let is_correct = text::contains(&read, &text::normalized(reference, *ignore_case));
                Ok(found(json!(is_correct), is_correct))
            }
            Self::JsonSchema => {
                let Some(read) = schema::json_of(answer) else { return Ok(None) };
                let is_correct = schema::compile(reference)?.is_valid(&read);
                Ok(found(read, is_correct))
            }
        }
    }
}

/// The texts of a row's choices: a list, or an object whose keys are the letters in order.
fn choices(name: Option<&str>, columns: &Columns) -> Result<Vec<String>, String> {
    let Some(name) = name else { return Ok(Vec::new()) };
    let value = columns::column("`choices`", name, columns)?;
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let choices: Vec<String> = match value {
        Value::Array(texts) => texts.iter().map(text).collect(),
        Value::Object(by_letter) => {
            let is_in_order =
                by_letter.keys().enumerate().all(|(i, key)| *key == choice::letter(i).to_string());
            if !is_in_order {
                return Err(format!("the keys of the column `{name}` are not A, B, C and so on"));
            }
            by_letter.values().map(text).collect()
        }
        _ => return Err(format!("the column `{name}` is not a list of choices")),
    };
    if (2..=26).contains(&choices.len()) {
        Ok(choices)
    } else {
        Err(format!("the column `{name}` has {} choices; 2 to 26 are possible", choices.len()))
    }
}
