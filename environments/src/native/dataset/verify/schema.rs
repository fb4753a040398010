//! JSON in an answer, and whether it is valid under a JSON Schema.

use super::super::extract::code_block;
use jsonschema::Validator;
use serde_json::Value;

/// The JSON of an answer: what the last code block holds, or else the whole answer.
pub(super) fn json_of(answer: &str) -> Option<Value> {
    serde_json::from_str(code_block(answer, &["json"]).unwrap_or(answer)).ok()
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
