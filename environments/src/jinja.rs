//! What chat templates and templates of data files share: JSON values as Jinja reads them, and errors in one line.

use minijinja::{Error, Value};
use serde_json::{Map, Value as Json};

/// An object as a mapping.
pub(crate) fn object(fields: &Map<String, Json>) -> Value {
    Value::from_pairs(fields.iter().map(|(name, field)| (name.clone(), value(field))))
}

/// A JSON value; whole numbers stay whole.
pub(crate) fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from_iter(items.iter().map(value)),
        Json::Object(fields) => object(fields),
    }
}

/// The error with its line, on one line.
pub(crate) fn describe(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{detail} (line {line} of the template)"),
        None => detail,
    }
}
