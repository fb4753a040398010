//! Templates over the columns of a row.
//!
//! A template that reads a column which a row lacks fails: an empty text in its place would be trained without anyone
//! noticing. So does a value that is null. Arrays and objects are written as JSON.

use crate::jinja::{describe, object};
use crate::rows::{Columns, kind};
use minijinja::value::ValueKind;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};
use minijinja_contrib::pycompat;

/// Steps that rendering one row may take.
const FUEL: u64 = 10_000_000;

/// A compiled template over the columns of a row.
pub(super) struct ColumnTemplate {
    /// Argument that the template was written in.
    key: &'static str,
    environment: Environment<'static>,
}

impl ColumnTemplate {
    /// Compiles the template that the argument `key` holds.
    ///
    /// # Errors
    /// It is not valid Jinja.
    pub(super) fn new(key: &'static str, source: &str) -> Result<Self, String> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(pycompat::unknown_method_callback);
        environment.set_formatter(|out, state, value| match value.kind() {
            ValueKind::Undefined => Err(Error::from(ErrorKind::UndefinedError)),
            ValueKind::None => Err(Error::new(ErrorKind::InvalidOperation, "it writes a value that is null")),
            ValueKind::Seq | ValueKind::Map => {
                let json = serde_json::to_string(value).map_err(|error| {
                    Error::new(ErrorKind::BadSerialization, format!("a value is not JSON: {error}"))
                })?;
                out.write_str(&json).map_err(Error::from)
            }
            _ => minijinja::escape_formatter(out, state, value),
        });
        let added = environment.add_template_owned(key, source.to_owned());
        added.map_err(|error| format!("it is not a valid template: {}", describe(&error)))?;
        Ok(Self { key, environment })
    }

    /// The text of a row.
    ///
    /// # Errors
    /// The row lacks a column that the template reads, or the template fails on its values.
    pub(super) fn render(&self, columns: &Columns) -> Result<String, String> {
        let template = self.environment.get_template(self.key).map_err(|error| describe(&error))?;
        template.render(object(columns)).map_err(|error| {
            let mut names: Vec<String> = template.undeclared_variables(false).into_iter().collect();
            names.sort();
            let missing = names.into_iter().find(|name| !columns.contains_key(name));
            match missing.filter(|_| error.kind() == ErrorKind::UndefinedError) {
                Some(name) => lacks(&format!("`{}`", self.key), &name, columns),
                None if error.kind() == ErrorKind::UndefinedError => {
                    format!(
                        "`{}` reads a part of a column that is not there (line {})",
                        self.key,
                        line(&error)
                    )
                }
                None => format!("`{}` fails: {}", self.key, describe(&error)),
            }
        })
    }
}

fn line(error: &Error) -> usize {
    error.line().unwrap_or(1)
}

/// Says that a row has no column of this name, and which columns it has.
pub(super) fn lacks(reader: &str, name: &str, columns: &Columns) -> String {
    let known = columns.keys().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
    let known = if known.is_empty() { "none".to_owned() } else { known };
    format!("{reader} reads the column `{name}`, which the row lacks; its columns are {known}")
}

/// A column that must hold a value.
///
/// # Errors
/// The row lacks it, or it is null.
pub(super) fn column<'a>(
    reader: &str,
    name: &str,
    columns: &'a Columns,
) -> Result<&'a serde_json::Value, String> {
    let value = columns.get(name).ok_or_else(|| lacks(reader, name, columns))?;
    if value.is_null() { Err(format!("the column `{name}` is {}", kind(value))) } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(source: &str) -> Result<String, String> {
        let row = json!({
            "q": "1 < 2 & \"3\"", "n": 42, "x": 1.5, "options": ["a", "b"], "meta": {"k": "v"}, "none": null, "yes": true,
        });
        ColumnTemplate::new("prompt", source)?.render(row.as_object().unwrap())
    }

    #[test]
    fn columns_become_text_and_nothing_is_escaped() {
        for (source, text) in [
            ("Solve: {{ q }}", "Solve: 1 < 2 & \"3\""),
            ("{{ n }} {{ x }} {{ yes }}", "42 1.5 True"),
            ("{{ options }} {{ meta }}", r#"["a","b"] {"k":"v"}"#),
            ("{% for o in options %}{{ loop.index }}. {{ o }}\n{% endfor %}", "1. a\n2. b\n"),
            ("{{ meta.k.upper() }}", "V"),
            ("{{ hint | default('no hint') }}", "no hint"),
            ("{% if hint is defined %}{{ hint }}{% endif %}", ""),
        ] {
            assert_eq!(render(source), Ok(text.into()), "{source}");
        }
    }

    #[test]
    fn what_a_row_lacks_is_named_with_the_columns_it_has() {
        let has = "which the row lacks; its columns are `q`, `n`, `x`, `options`, `meta`, `none`, `yes`";
        for (source, error) in [
            ("{{ question }}", format!("`prompt` reads the column `question`, {has}")),
            (
                "{% for o in choices %}{{ o }}{% endfor %}",
                format!("`prompt` reads the column `choices`, {has}"),
            ),
            ("{{ meta.b }}", "`prompt` reads a part of a column that is not there (line 1)".into()),
            ("{{ none }}", "`prompt` fails: it writes a value that is null (line 1 of the template)".into()),
        ] {
            assert_eq!(render(source), Err(error), "{source}");
        }
        assert!(render("{{ q").unwrap_err().starts_with("it is not a valid template: "));
        assert!(render("{% for i in range(9999999) %}{% endfor %}").is_err(), "work is bounded");
    }
}
