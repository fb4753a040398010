//! Origin of each value of a config: a line of the file, a variable, an override or a flag.
//!
//! An error is about a key; this module finds the place to change. A line that may hold a key of the service is
//! named but not shown.

use super::error::{ConfigError, ConfigExcerpt};
use super::overrides::{canonical, names_of};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// Longest line that is shown, in characters.
const LONGEST_LINE: usize = 160;
/// Lowercase texts that mark a line as secret: names of keys, and addresses that may contain one.
const SECRET: [&str; 8] = ["key", "token =", "token=", "secret", "password", "tml-", "base_url", "@"];

/// The origins of the values of one config.
#[derive(Clone)]
pub struct ConfigLocations {
    file: String,
    text: Arc<str>,
    /// Values from other layers than the file: the key with its first name, and the layer. The last one wins.
    given: Vec<(String, String)>,
    /// Key of the table whose keys override those of the same name outside of it.
    preferred: Option<String>,
}

impl fmt::Debug for ConfigLocations {
    /// Omits the text, which may hold a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigLocations").field("file", &self.file).finish_non_exhaustive()
    }
}

/// The part of an entry that is underlined.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HighlightedPart {
    Key,
    Value,
}

impl ConfigLocations {
    /// The origins for a file with this text.
    #[must_use]
    pub fn new(file: String, text: &str) -> Self {
        Self { file, text: text.into(), given: Vec::new(), preferred: None }
    }

    /// Has keys of this table override those of the same name outside of it.
    pub(super) fn prefer(&mut self, table: String) {
        self.preferred = Some(table);
    }

    /// Records that another layer than the file has set a key.
    pub fn give(&mut self, key: &str, by: impl Into<String>) {
        self.given.push((canonical(key), by.into()));
    }

    /// The error about text that is not valid TOML.
    #[must_use]
    pub fn syntax(&self, error: &toml::de::Error) -> ConfigError {
        self.at(error.span(), format!("this is not valid TOML: {}", error.message()))
    }

    /// The error about the value of a key.
    #[must_use]
    pub fn wrong(&self, key: &str, problem: impl fmt::Display) -> ConfigError {
        self.complain(key, HighlightedPart::Value, format!("`{key}` {problem}"))
    }

    /// The error about an unknown key.
    #[must_use]
    pub fn unknown(&self, key: &str, message: String) -> ConfigError {
        self.complain(key, HighlightedPart::Key, message)
    }

    fn complain(&self, key: &str, part: HighlightedPart, message: String) -> ConfigError {
        let key = canonical(key);
        let within = |outer: &str, inner: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        match self.given.iter().rev().find(|(given, _)| within(given, &key)) {
            Some((_, by)) => ConfigError::Wrong { place: by.clone(), message, excerpt: None },
            None => {
                let inner = self.preferred.as_ref().map(|table| self.find(&format!("{table}.{key}"), part));
                let found = inner.filter(|found| found.is_whole).unwrap_or_else(|| self.find(&key, part));
                self.at(found.span, message)
            }
        }
    }

    fn at(&self, span: Option<Range<usize>>, message: String) -> ConfigError {
        let Some((start, end)) = span.map(|span| (span.start.min(self.text.len()), span.end)) else {
            return ConfigError::Wrong { place: self.file.clone(), message, excerpt: None };
        };
        let begin = self.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line = self.text[begin..].lines().next().unwrap_or_default();
        let number = self.text[..begin].matches('\n').count() + 1;
        let before = self.text[begin..start].chars().count();
        let end = end.clamp(start, (begin + line.len()).max(start));
        let length = self.text.get(start..end).map_or(1, |part| part.chars().count());
        let small = line.to_lowercase();
        let shown =
            line.chars().count() <= LONGEST_LINE && !SECRET.iter().any(|secret| small.contains(secret));
        // Control characters could corrupt the terminal.
        let text = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let excerpt = shown.then_some(ConfigExcerpt { line: number, text, before, length });
        ConfigError::Wrong { place: format!("{}:{number}:{}", self.file, before + 1), message, excerpt }
    }

    /// The byte range of a key or of its value; for a missing key, that of the table it would be in.
    fn find(&self, key: &str, part: HighlightedPart) -> FoundKey {
        let mut found = None;
        let mut is_whole = false;
        let Ok(document) = DeTable::parse(&self.text) else { return FoundKey { span: found, is_whole } };
        let mut here: Option<&DeTable<'_>> = Some(document.get_ref());
        let last = key.split('.').count() - 1;
        for (depth, segment) in key.split('.').enumerate() {
            let (name, index) = match segment.split_once('[') {
                Some((name, index)) => (name, index.trim_end_matches(']').parse::<usize>().ok()),
                None => (segment, None),
            };
            let Some((written, value)) = here.and_then(|table| entry(table, name)) else { break };
            let element = index.and_then(|index| value.get_ref().as_array()?.get(index));
            let value = element.unwrap_or(value);
            here = value.get_ref().as_table();
            is_whole = depth == last;
            found = Some(match (part, element) {
                (_, Some(element)) => element.span(),
                (HighlightedPart::Key, None) => written.span(),
                // The header of a table is clearer than its whole content.
                (HighlightedPart::Value, None) if here.is_some() => written.span(),
                (HighlightedPart::Value, None) => value.span(),
            });
        }
        FoundKey { span: found, is_whole }
    }
}

/// Where a key is in the file.
struct FoundKey {
    /// Of the key, or of the table it would be in; `None` if there is not even that.
    span: Option<Range<usize>>,
    /// Whether the key itself is there.
    is_whole: bool,
}

/// The entry of a table under this name or a synonym.
fn entry<'t, 'i>(
    table: &'t DeTable<'i>,
    name: &str,
) -> Option<(&'t Spanned<DeString<'i>>, &'t Spanned<DeValue<'i>>)> {
    table.iter().find(|(key, _)| names_of(name).any(|name| name == key.get_ref().as_ref()))
}

/// Whether the value of this key is secret.
#[must_use]
pub(super) fn is_secret(key: &str) -> bool {
    let small = key.to_lowercase();
    SECRET.iter().any(|secret| small.contains(secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
model = { base_model = \"x\", renderer = 7 }
[trainer]
batch_size = 0
args.max_new_tokens = 0

[[envs]]
id = \"a\"
[[envs]]
id = \"b\"
weight = -1
[tinker]
api_key = 17
";

    fn told(locations: &ConfigLocations, key: &str) -> String {
        locations.wrong(key, "is wrong").to_string()
    }

    #[test]
    fn a_key_is_found_in_tables_lists_and_under_its_other_name() {
        let locations = ConfigLocations::new("x.toml".into(), TEXT);
        for (key, expected) in [
            (
                "trainer.groups_per_batch",
                "x.toml:3:14: `trainer.groups_per_batch` is wrong\n  |\n3 | batch_size = 0\n  |              ^",
            ),
            ("trainer.args.max_new_tokens", "x.toml:4:23"),
            ("model.renderer_name", "x.toml:1:40"),
            ("envs[1].weight", "x.toml:10:10"),
            ("envs[0]", "x.toml:6:1"),
            // Not written: its table, else the file.
            ("envs[0].weight", "x.toml:6:1"),
            ("trainer.seed", "x.toml:2:2"),
            ("output_dir", "x.toml: `output_dir` is wrong"),
        ] {
            let told = told(&locations, key);
            assert!(told.starts_with(expected), "{key}: {told}");
        }
    }

    #[test]
    fn an_overriding_variable_or_flag_is_named_instead_of_the_line() {
        let mut locations = ConfigLocations::new("x.toml".into(), TEXT);
        locations.give("trainer.batch_size", "MINDS_TRAINER__BATCH_SIZE");
        locations.give("envs", "--set envs=[]");
        assert!(told(&locations, "trainer.groups_per_batch").starts_with("MINDS_TRAINER__BATCH_SIZE: `"));
        assert!(told(&locations, "envs[1].weight").starts_with("--set envs=[]: `"));
        locations.give("trainer.groups_per_batch", "--set trainer.groups_per_batch=0");
        assert!(told(&locations, "trainer.groups_per_batch").starts_with("--set trainer"));
        assert!(told(&locations, "trainer.seed").starts_with("x.toml:2"));
    }

    #[test]
    fn a_line_with_a_key_is_named_and_not_shown() {
        let locations = ConfigLocations::new("x.toml".into(), TEXT);
        assert_eq!(told(&locations, "tinker.api_key"), "x.toml:12:11: `tinker.api_key` is wrong");
        assert!(!format!("{locations:?}").contains("17"));
    }
}
