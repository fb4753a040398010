//! JSON in an answer, and whether it is valid under a JSON Schema.

use jsonschema::Validator;
use serde_json::Value;

/// The JSON of an answer: what the last code block holds, or else the whole answer.
pub(super) fn json_of(answer: &str) -> Option<Value> {
    serde_json::from_str(code_block(answer, &["json"]).unwrap_or(answer)).ok()
}

/// What the last code block of one of these languages, or of none, holds. A block that is not closed is not one.
pub(super) fn code_block<'a>(answer: &'a str, languages: &[&str]) -> Option<&'a str> {
    let mut open: Option<(usize, bool)> = None;
    let mut found = None;
    let mut at = 0;
    for line in answer.split_inclusive('\n') {
        let fence = line.trim();
        match (open, fence.strip_prefix("```")) {
            (None, Some(language)) => {
                let language = language.trim().to_lowercase();
                open = Some((at + line.len(), language.is_empty() || languages.contains(&&*language)));
            }
            (Some((start, is_wanted)), Some("")) => {
                if is_wanted {
                    found = Some(&answer[start..at]);
                }
                open = None;
            }
            _ => {}
        }
        at += line.len();
    }
    found
}

/// Compiles a schema. References to other documents are refused: nothing is fetched.
///
/// # Errors
/// It is not JSON, or not a valid schema.
pub(super) fn compile(schema: &str) -> Result<Validator, String> {
    let schema: Value =
        serde_json::from_str(schema).map_err(|error| format!("the schema is not JSON: {error}"))?;
    if !schema.is_object() && !schema.is_boolean() {
        return Err("a JSON Schema must be an object".into());
    }
    jsonschema::validator_for(&schema).map_err(|error| format!("the schema is not valid: {error}"))
}
