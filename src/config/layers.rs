//! Merges the layers of a config: the file, then variables, then overrides, then flags. The later one wins.

use super::error::ConfigError;
use super::file::ConfigFile;
use super::locations::{ConfigLocations, is_secret};
use super::variables::ProcessVariables;
use super::{overrides, schema, stages};
use crate::{cli, regular_file};
use minds_core::number::ShortNumber;
use serde::de::DeserializeOwned;
use serde_path_to_error::deserialize;
use std::num::NonZeroU64;
use std::path::Path;
use toml::de::DeTable;

/// Longest value that an error message repeats, in characters.
const LONGEST_VALUE: usize = 40;

/// Reads the config of a `run` command, with where each value came from.
///
/// # Errors
/// See [`ConfigError`].
pub(super) fn read(
    command: &cli::RunArgs,
    variables: &ProcessVariables,
) -> Result<(ConfigFile, ConfigLocations), ConfigError> {
    let (mut table, mut locations) = document(&command.config)?;
    stages::choose(&mut table, command.stage.as_deref(), &mut locations)?;
    variables.apply(&mut table, &mut locations)?;
    for set in &command.set {
        let key = overrides::apply(&mut table, set)?;
        locations.give(&key, overrides::shown(set));
    }
    let mut file: ConfigFile = typed(table, &locations, &schema::schema_of_one_run())?;
    if let Some(steps) = command.max_steps {
        locations.give("trainer.total_batches", "--max-steps");
        let at_least_one = NonZeroU64::new(steps);
        let zero = || locations.wrong("trainer.total_batches", "is 0; it must be at least 1");
        file.trainer.total_batches = Some(at_least_one.ok_or_else(zero)?);
        if let Some(sft) = &mut file.sft {
            sft.epochs = None;
        }
    }
    if let Some(seed) = command.seed {
        file.trainer.seed = Some(seed);
        locations.give("trainer.seed", "--seed");
    }
    if let Some(deadline) = &command.resume_args.deadline {
        file.run.deadline = Some(deadline.clone());
        locations.give("run.deadline", "--deadline");
    }
    if let Some(dir) = &command.output_dir {
        file.output_dir = Some(dir.clone());
        locations.give("output_dir", "--output-dir");
    }
    if let (Some(folder), Some(model)) = (&command.from, &mut file.model)
        && model.from.is_none()
    {
        model.from = Some(folder.display().to_string());
        locations.give("model.from", "the stage before");
    }
    Ok((file, locations))
}

/// Reads a TOML file, with where each value is written.
///
/// # Errors
/// The file cannot be read, or is not valid TOML.
pub(super) fn document(path: &Path) -> Result<(toml::Table, ConfigLocations), ConfigError> {
    let text =
        regular_file::read_text(path).map_err(|source| ConfigError::Read { path: path.into(), source })?;
    let locations = ConfigLocations::new(path.display().to_string(), &text);
    DeTable::parse(&text).map_err(|error| locations.syntax(&error))?;
    let table = text.parse().map_err(|error| locations.syntax(&error))?;
    Ok((table, locations))
}

/// Deserializes the table of a type with this schema; unknown keys and wrong types are errors.
///
/// # Errors
/// Names the first key that is unknown or has a value of the wrong type.
pub(super) fn typed<T: DeserializeOwned>(
    table: toml::Table,
    locations: &ConfigLocations,
    schema: &serde_json::Value,
) -> Result<T, ConfigError> {
    if let Some((key, message)) = schema::unknown_key(schema, &table) {
        return Err(locations.unknown(&key, message));
    }
    let table = toml::Value::Table(table);
    deserialize(table.clone()).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { "" } else { &path };
        let (key, problem) = explain(&table, path, error.inner().message());
        locations.wrong(&key, problem)
    })
}

/// Translates serde's message about the value at a path: the key, and what is wrong with it.
fn explain(table: &toml::Value, path: &str, message: &str) -> (String, String) {
    let quoted = |start: &str| message.strip_prefix(start)?.split('`').next();
    let within = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    if let Some(name) = quoted("missing field `") {
        return (within(name), "is missing".into());
    }
    if let Some(name) = quoted("duplicate field `") {
        let key = if path.ends_with(name) { path.to_owned() } else { within(name) };
        let names: Vec<String> = overrides::names_of(name).map(|name| format!("`{name}`")).collect();
        return (key, format!("is written twice: {} mean the same", names.join(" and ")));
    }
    let expected = ["invalid type: ", "invalid value: "].iter().find_map(|start| message.strip_prefix(start));
    let problem = match expected.and_then(|rest| rest.rsplit_once("expected ")) {
        Some((_, expected)) => {
            let value = at(table, path);
            let is = match value {
                Some(value) if !is_secret(path) => format!("is {}; it", show(value)),
                _ => String::new(),
            };
            format!("{is} must be {}", in_words(expected, value)).trim_start().to_owned()
        }
        // From the types of this folder, which know what is wrong.
        None if ["is ", "has ", "needs "].iter().any(|start| message.starts_with(start)) => {
            message.to_owned()
        }
        None => format!("cannot be read: {message}"),
    };
    (path.to_owned(), problem)
}

/// The value at a path such as `envs[1].weight`.
fn at<'a>(table: &'a toml::Value, path: &str) -> Option<&'a toml::Value> {
    path.split('.').try_fold(table, |value, segment| match segment.split_once('[') {
        Some((name, index)) => value.get(name)?.get(index.trim_end_matches(']').parse::<usize>().ok()?),
        None => value.get(segment),
    })
}

fn show(value: &toml::Value) -> String {
    match value {
        toml::Value::Table(_) => "a table".into(),
        toml::Value::Array(_) => "a list".into(),
        toml::Value::Float(number) => ShortNumber(*number).to_string(),
        other => {
            let text = other.to_string();
            match text.char_indices().nth(LONGEST_VALUE) {
                Some((end, _)) => format!("{}…", &text[..end]),
                None => text,
            }
        }
    }
}

/// Describes the type that serde expected in terms of a config.
fn in_words<'a>(expected: &'a str, value: Option<&toml::Value>) -> &'a str {
    match expected.strip_prefix("a nonzero ").unwrap_or(expected) {
        "u32" | "u64" | "usize" if value == Some(&toml::Value::Integer(0)) => "at least 1",
        "u32" | "u64" | "usize" => "a non-negative whole number",
        "f32" | "f64" => "a number",
        "a string" | "path string" => "a text in quotes",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        other if other.starts_with("struct ") || other == "a map" => "a table",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(text: &str) -> String {
        let locations = ConfigLocations::new("x.toml".into(), text);
        typed::<ConfigFile>(text.parse().unwrap(), &locations, &schema::schema()).unwrap_err().to_string()
    }

    #[test]
    fn a_value_of_the_wrong_type_is_described_in_words() {
        for (text, expected) in [
            (
                "[trainer]\nseed = 'x'",
                "x.toml:2:8: `trainer.seed` is \"x\"; it must be a non-negative whole number",
            ),
            ("[trainer]\nseed = -1", "`trainer.seed` is -1; it must be a non-negative whole number"),
            ("[trainer]\nlearning_rate = [1]", "`trainer.learning_rate` is a list; it must be a number"),
            (
                "[[envs]]\nid = 'a'\n[[envs]]\nid = 2",
                "x.toml:4:6: `envs[1].id` is 2; it must be a text in quotes",
            ),
            ("[[envs]]\nweight = 2", "x.toml:1:1: `envs[0].id` is missing"),
            ("trainer = 3", "x.toml:1:11: `trainer` is 3; it must be a table"),
            ("[tinker]\nallow_insecure = 'yes'", "is \"yes\"; it must be true or false"),
            (
                "[trainer]\nbatch_size = 1\ngroups_per_batch = 2",
                "`trainer.groups_per_batch` is written twice: `groups_per_batch` and `batch_size` mean the same",
            ),
            (
                "[simulate]\nsample = 'long'",
                "x.toml:2:10: `simulate.sample` is \"long\"; it must be a number of seconds, or a table with",
            ),
            (
                "[simulate]\nsample = { mean = 1, spread = 'even' }",
                "x.toml:2:31: `simulate.sample.spread` is \"even\"; it must be one of: constant, exponential, lognormal",
            ),
            ("[trainer]\nseed = 1e300", "`trainer.seed` is 1e300; it must be a non-negative whole number"),
            (
                "[trainer]\nstaleness = 'hope'",
                "x.toml:2:13: `trainer.staleness` is \"hope\"; it must be one of: wait, drop",
            ),
            ("[trainer]\nstaleness = 3", "`trainer.staleness` is 3; it must be a text in quotes"),
            ("[trainer]\npublish_every = 0", "`trainer.publish_every` is 0; it must be at least 1"),
            (
                "[trainer]\npublish_every = -1",
                "`trainer.publish_every` is -1; it must be a non-negative whole",
            ),
            (
                "[[simulate.faults]]\nat_s = 1\nfor_s = 1\nwhat = 'gone'",
                "x.toml:4:8: `simulate.faults[0].what` is \"gone\"; it must be one of: away, slow",
            ),
        ] {
            let told = complaint(text);
            assert!(told.contains(expected), "{text}\n{told}");
        }
    }

    #[test]
    fn a_key_of_the_wrong_type_is_not_repeated() {
        let told = complaint("[tinker]\napi_key = 5355");
        assert_eq!(told, "x.toml:2:11: `tinker.api_key` must be a text in quotes");
    }
}
