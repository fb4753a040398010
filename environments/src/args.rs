//! Arguments of environments: one table per environment says what exists, what is allowed and what is the default.
//!
//! The table is the documentation and the check at once, so the two cannot disagree. What it lets through has every
//! key, each of the right type and in range; an argument that would be ignored is an error too.

use crate::error::{EnvError, nearest};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::fmt::Write;

/// The values that an argument accepts, and its default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArgKind {
    /// A boolean, `true` or `false`.
    Flag(bool),
    /// A whole number from `min` to `max`.
    Whole {
        /// Value when the argument is absent.
        default: i64,
        /// Smallest value that is allowed.
        min: i64,
        /// Largest value that is allowed.
        max: i64,
    },
    /// A number from `min` to `max`.
    Number {
        /// Value when the argument is absent.
        default: f64,
        /// Smallest value that is allowed.
        min: f64,
        /// Largest value that is allowed.
        max: f64,
    },
    /// One of these words; the first is the default.
    Choice(&'static [&'static str]),
    /// Any text that is not empty; this one is the default.
    Text(&'static str),
    /// Any text that is not empty; the environment cannot be loaded without it.
    RequiredText,
    /// Any text that is not empty, or none, which is the default.
    OptionalText,
    /// A table; empty by default. The environment checks its contents.
    Table,
}

/// One argument of an environment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arg {
    /// Key of the argument in the config.
    pub name: &'static str,
    /// Accepted values and the default.
    pub kind: ArgKind,
    /// The argument and the value (as a word) without which this one has no effect.
    pub only_with: Option<(&'static str, &'static str)>,
    /// What it does, in one line.
    pub about: &'static str,
}

impl ArgKind {
    /// Value when the argument is absent.
    #[must_use]
    pub fn default(&self) -> Value {
        match *self {
            ArgKind::Flag(default) => default.into(),
            ArgKind::Whole { default, .. } => default.into(),
            ArgKind::Number { default, .. } => default.into(),
            ArgKind::Choice(words) => words.first().copied().into(),
            ArgKind::Text(default) => default.into(),
            ArgKind::RequiredText | ArgKind::OptionalText => Value::Null,
            ArgKind::Table => Map::new().into(),
        }
    }

    /// Describes the accepted values in words.
    #[must_use]
    pub fn allowed(&self) -> String {
        match *self {
            ArgKind::Flag(_) => "true or false".into(),
            ArgKind::Whole { min, max, .. } => format!("a whole number from {min} to {max}"),
            ArgKind::Number { min, max, .. } => format!("a number from {min} to {max}"),
            ArgKind::Choice(words) => words.iter().enumerate().fold(String::new(), |mut text, (i, word)| {
                let join = if i == 0 { "" } else { " or " };
                write!(text, "{join}\"{word}\"").expect("writing to a string cannot fail");
                text
            }),
            ArgKind::Text(_) | ArgKind::RequiredText | ArgKind::OptionalText => "a text".into(),
            ArgKind::Table => "a table".into(),
        }
    }

    fn allows(&self, value: &Value) -> bool {
        match *self {
            ArgKind::Flag(_) => value.is_boolean(),
            ArgKind::Whole { min, max, .. } => value.as_i64().is_some_and(|n| (min..=max).contains(&n)),
            ArgKind::Number { min, max, .. } => value.as_f64().is_some_and(|x| (min..=max).contains(&x)),
            ArgKind::Choice(words) => value.as_str().is_some_and(|word| words.contains(&word)),
            ArgKind::Text(_) | ArgKind::RequiredText => value.as_str().is_some_and(|text| !text.is_empty()),
            ArgKind::OptionalText => value.is_null() || value.as_str().is_some_and(|text| !text.is_empty()),
            ArgKind::Table => value.is_object(),
        }
    }
}

/// Declares the options of an environment as a type, and beside it the table `ARGS` of its arguments: of each its name,
/// its type, what it accepts, and what it does. `only with` names an argument and the value, as a word, without which it
/// has no effect.
macro_rules! arguments {
    ($options:ident {
        $( $name:ident: $type:ty = $kind:expr, $(only with $other:ident = $word:literal,)? $about:literal; )+
    }) => {
        #[derive(Debug, serde::Deserialize)]
        struct $options {
            $( $name: $type, )+
        }

        const ARGS: &[$crate::args::Arg] = {
            use $crate::args::ArgKind::*;
            &[$( $crate::args::Arg {
                name: stringify!($name),
                kind: $kind,
                only_with: $crate::args::arguments!(@only $($other $word)?),
                about: $about,
            } ),+]
        };
    };
    (@only) => { None };
    (@only $other:ident $word:literal) => { Some((stringify!($other), $word)) };
}
pub(crate) use arguments;

/// The arguments as given, completed with defaults.
///
/// # Errors
/// A key that the table lacks, a required argument that is missing, a value that the table does not allow, or an argument
/// without effect.
pub(crate) fn resolve(
    env: &'static str,
    table: &'static [Arg],
    given: &Map<String, Value>,
) -> Result<Map<String, Value>, EnvError> {
    let names = || table.iter().map(|arg| arg.name);
    if let Some(key) = given.keys().find(|key| names().all(|name| name != **key)) {
        let allowed = names().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        return Err(EnvError::UnknownArg { env, key: key.clone(), allowed, nearest: nearest(key, names()) });
    }
    let missing = |arg: &&Arg| arg.kind == ArgKind::RequiredText && !given.contains_key(arg.name);
    if let Some(arg) = table.iter().find(missing) {
        return Err(EnvError::MissingArg { env, key: arg.name, about: arg.about });
    }
    let mut resolved = Map::new();
    for arg in table {
        let value = given.get(arg.name).cloned().unwrap_or_else(|| arg.kind.default());
        if !arg.kind.allows(&value) {
            let value = value.to_string();
            let allowed = arg.kind.allowed();
            return Err(EnvError::WrongArg { env, key: arg.name, value, allowed });
        }
        resolved.insert(arg.name.into(), value);
    }
    for arg in table.iter().filter(|arg| given.contains_key(arg.name)) {
        let Some((other, word)) = arg.only_with else { continue };
        if resolved.get(other).is_none_or(|value| as_word(value) != word) {
            let needs = format!("`{other}` = {word}");
            return Err(EnvError::NoEffect { env, key: arg.name, needs });
        }
    }
    Ok(resolved)
}

/// The arguments, resolved, as the environment's own type, whose fields are the keys of its table.
///
/// # Errors
/// See [`resolve`].
pub(crate) fn read<T: DeserializeOwned>(
    env: &'static str,
    table: &'static [Arg],
    given: &Map<String, Value>,
) -> Result<T, EnvError> {
    serde_json::from_value(Value::Object(resolve(env, table, given)?))
        .map_err(|e| EnvError::Data { env, why: format!("its table of arguments: {e}") })
}

fn as_word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TABLE: &[Arg] = &[
        Arg { name: "task", kind: ArgKind::Choice(&["near", "far"]), only_with: None, about: "" },
        Arg {
            name: "shots",
            kind: ArgKind::Whole { default: 3, min: 0, max: 4 },
            only_with: None,
            about: "",
        },
        Arg {
            name: "width",
            kind: ArgKind::Number { default: 1.0, min: 0.1, max: 9.0 },
            only_with: Some(("task", "far")),
            about: "",
        },
        Arg { name: "loud", kind: ArgKind::Flag(false), only_with: None, about: "" },
        Arg { name: "inner", kind: ArgKind::Text("x"), only_with: None, about: "" },
        Arg { name: "rest", kind: ArgKind::Table, only_with: None, about: "" },
    ];

    const WITH_REQUIRED: &[Arg] = &[
        Arg { name: "data", kind: ArgKind::RequiredText, only_with: None, about: "the file" },
        Arg { name: "note", kind: ArgKind::OptionalText, only_with: None, about: "" },
    ];

    #[test]
    fn a_required_text_has_no_default_and_an_optional_one_may_be_left_out() {
        let check = |given: Value| {
            let given = given.as_object().expect("a table").clone();
            resolve("e", WITH_REQUIRED, &given).map(Value::Object).map_err(|e| e.to_string())
        };
        assert_eq!(check(json!({})), Err("`data` of `e` is missing: the file".to_owned()));
        assert_eq!(check(json!({"data": "x"})), Ok(json!({"data": "x", "note": null})));
        assert_eq!(check(json!({"data": "x", "note": "y"})), Ok(json!({"data": "x", "note": "y"})));
        assert!(check(json!({"data": "x", "note": ""})).is_err());
    }

    fn check(given: Value) -> Result<Value, String> {
        let given = given.as_object().expect("a table").clone();
        resolve("e", TABLE, &given).map(Value::Object).map_err(|e| e.to_string())
    }

    #[test]
    fn what_is_left_out_takes_its_default() {
        let all = json!({"task": "near", "shots": 3, "width": 1.0, "loud": false, "inner": "x", "rest": {}});
        assert_eq!(check(json!({})), Ok(all));
        let all =
            json!({"task": "far", "shots": 0, "width": 2, "loud": true, "inner": "y", "rest": {"a": 1}});
        assert_eq!(check(all.clone()), Ok(all));
    }

    #[test]
    fn mistakes_are_answered_with_what_would_be_right() {
        for (given, error) in [
            (
                json!({"shot": 1}),
                "`e` takes no argument `shot`; it takes `task`, `shots`, `width`, `loud`, `inner`, `rest` (did you mean `shots`?)",
            ),
            (
                json!({"temperature": 1}),
                "`e` takes no argument `temperature`; it takes `task`, `shots`, `width`, `loud`, `inner`, `rest`",
            ),
            (json!({"shots": 5}), "`shots` of `e` is 5; it must be a whole number from 0 to 4"),
            (json!({"shots": -1}), "`shots` of `e` is -1; it must be a whole number from 0 to 4"),
            (json!({"shots": 1.5}), "`shots` of `e` is 1.5; it must be a whole number from 0 to 4"),
            (json!({"shots": "3"}), "`shots` of `e` is \"3\"; it must be a whole number from 0 to 4"),
            (json!({"task": "mid"}), "`task` of `e` is \"mid\"; it must be \"near\" or \"far\""),
            (json!({"task": "far", "width": 0}), "`width` of `e` is 0; it must be a number from 0.1 to 9"),
            (json!({"inner": ""}), "`inner` of `e` is \"\"; it must be a text"),
            (json!({"rest": [1]}), "`rest` of `e` is [1]; it must be a table"),
            (json!({"loud": 1}), "`loud` of `e` is 1; it must be true or false"),
            (
                json!({"width": 2}),
                "`width` of `e` has an effect only with `task` = far: leave it out, or change that",
            ),
        ] {
            assert_eq!(check(given), Err(error.to_owned()));
        }
    }
}
