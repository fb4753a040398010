//! `--set table.key=value` on top of a file.

use super::error::ConfigError;
use super::locations::is_secret;

/// Most dotted parts of a key.
const DEEPEST: usize = 32;

/// Synonymous keys: an override under one name replaces the file's value under the other.
/// They are the aliases of [`super::file`].
const SYNONYMS: [[&str; 2]; 6] = [
    ["weight", "ratio"],
    ["groups_per_batch", "batch_size"],
    ["total_batches", "num_batches"],
    ["async_off_policy_steps", "max_steps_off_policy"],
    ["training_rank", "lora_rank"],
    ["renderer_name", "renderer"],
];

/// The first name of a key, with its tables.
#[must_use]
pub(super) fn canonical(key: &str) -> String {
    let (tables, last) = key.rsplit_once('.').map_or(("", key), |(tables, last)| (tables, last));
    let first = SYNONYMS.iter().find(|pair| pair[1] == last).map_or(last, |pair| pair[0]);
    if tables.is_empty() { first.into() } else { format!("{tables}.{first}") }
}

/// All names of a key.
pub(super) fn names_of(name: &str) -> impl Iterator<Item = &str> {
    let pair = SYNONYMS.iter().find(|pair| pair.contains(&name));
    std::iter::once(name).chain(pair.into_iter().flatten().copied().filter(move |other| *other != name))
}

/// Synonymous keys in pairs: the first name and the other.
pub(super) fn synonyms() -> impl Iterator<Item = (&'static str, &'static str)> {
    SYNONYMS.iter().map(|[first, other]| (*first, *other))
}

/// Writes one override into the table and returns its key. The value is parsed as TOML; if that fails, it is text.
///
/// # Errors
/// The override has no `=`, an empty part in its key, or would put a key into something that is not a table.
pub fn apply(table: &mut toml::Table, set: &str) -> Result<String, ConfigError> {
    let fail = |message: String| ConfigError::Wrong { place: shown(set), message, excerpt: None };
    let (key, value) = set.split_once('=').ok_or_else(|| fail("write it as KEY=VALUE".into()))?;
    let parts: Vec<&str> = key.split('.').map(str::trim).collect();
    if parts.iter().any(|part| part.is_empty()) {
        return Err(fail(format!("`{key}` is not a key: write it as table.key")));
    }
    write(table, &parts, value).map_err(fail)?;
    Ok(parts.join("."))
}

/// An override that is safe to show: without its value if that may hold a key of the service.
#[must_use]
pub(super) fn shown(set: &str) -> String {
    match set.split_once('=') {
        Some((key, _)) if is_secret(set) => format!("--set {key}=…"),
        _ => format!("--set {set}"),
    }
}

/// Writes a value under a key with its tables, replacing the value under any of its names.
///
/// # Errors
/// One of the tables is something else, or they are too many; in words.
pub(super) fn write(table: &mut toml::Table, parts: &[&str], value: &str) -> Result<(), String> {
    if parts.len() > DEEPEST {
        return Err(format!("a key lies in at most {} tables", DEEPEST - 1));
    }
    let (last, tables) = parts.split_last().expect("a key has at least one part");
    let mut here = table;
    for part in tables {
        let next = here.entry(*part).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        here = match next {
            toml::Value::Table(next) => next,
            toml::Value::Array(_) => {
                return Err(format!("`{part}` is a list: it can only be set as a whole"));
            }
            _ => return Err(format!("`{part}` is not a table")),
        };
    }
    names_of(last).for_each(|name| drop(here.remove(name)));
    here.insert((*last).to_owned(), parse(value.trim()));
    Ok(())
}

fn parse(value: &str) -> toml::Value {
    format!("value = {value}")
        .parse::<toml::Table>()
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| toml::Value::String(value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_toml_and_otherwise_text() {
        let mut table: toml::Table = "[trainer]\nseed = 1".parse().unwrap();
        for set in [
            "trainer.seed=7",
            "trainer.learning_rate=1e-3",
            "model.base_model=HuggingFaceTB/SmolLM2-135M-Instruct",
            "tinker.base_url=\"http://localhost:1\"",
        ] {
            apply(&mut table, set).unwrap();
        }
        let expected = "[trainer]\nseed = 7\nlearning_rate = 1e-3\n[model]\n\
                        base_model = \"HuggingFaceTB/SmolLM2-135M-Instruct\"\n[tinker]\n\
                        base_url = \"http://localhost:1\"";
        assert_eq!(table, expected.parse().unwrap());
    }

    /// Each alias of the file with its own name, read from the source.
    #[test]
    fn the_synonyms_are_the_aliases_of_the_file() {
        let mut lines = include_str!("file.rs").lines().map(str::trim);
        let mut aliases = Vec::new();
        while let Some(line) = lines.next() {
            let Some(alias) = line.strip_prefix("#[serde(alias = \"").and_then(|l| l.strip_suffix("\")]"))
            else {
                let is_attribute = line.starts_with('#');
                assert!(!(is_attribute && line.contains("alias")), "written in another way: {line}");
                continue;
            };
            let field = lines.next().and_then(|l| l.strip_prefix("pub ")?.split(':').next()).unwrap();
            aliases.push([field, alias]);
        }
        aliases.sort_unstable();
        let mut synonyms = SYNONYMS.to_vec();
        synonyms.sort_unstable();
        assert_eq!(aliases, synonyms);
    }

    #[test]
    fn an_override_replaces_the_key_under_its_other_name() {
        let mut table: toml::Table = "[trainer]\ngroups_per_batch = 4\nlora_rank = 8".parse().unwrap();
        apply(&mut table, "trainer.batch_size=2").unwrap();
        apply(&mut table, "trainer.lora_rank=16").unwrap();
        assert_eq!(table, "[trainer]\nbatch_size = 2\nlora_rank = 16".parse().unwrap());
    }

    #[test]
    fn what_is_not_an_override_is_refused_by_name() {
        let mut table: toml::Table = "seed = 1\nenvs = []".parse().unwrap();
        for (set, why) in [
            ("seed", "KEY=VALUE"),
            (".x=1", "not a key"),
            ("seed.x=1", "not a table"),
            ("envs.name=1", "as a whole"),
        ] {
            let error = apply(&mut table, set).unwrap_err().to_string();
            assert!(error.contains(set) && error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_key_has_one_first_name() {
        assert_eq!(canonical("trainer.batch_size"), "trainer.groups_per_batch");
        assert_eq!(canonical("seed"), "seed");
        assert_eq!(names_of("lora_rank").collect::<Vec<_>>(), ["lora_rank", "training_rank"]);
        assert_eq!(names_of("seed").collect::<Vec<_>>(), ["seed"]);
    }

    #[test]
    fn a_value_that_may_be_a_key_is_not_shown() {
        assert_eq!(shown("tinker.api_key=sesame"), "--set tinker.api_key=…");
        assert_eq!(shown("tinker={api_key=\"sesame\"}"), "--set tinker=…");
        assert_eq!(shown("trainer.seed=1"), "--set trainer.seed=1");
    }
}
