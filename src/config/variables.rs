//! The environment variables that configs read.
//!
//! `MINDS_TRAINER__SEED=3` sets `trainer.seed`: two underscores separate tables and key. An empty variable counts as
//! not set. Other `MINDS_` variables without two underscores, except `MINDS_OUTPUT_DIR`, set nothing: a warning names
//! them, and one that only lacks an underscore to be a key is refused. `TINKER_BASE_URL`, which SDKs read too, sets `tinker.base_url`;
//! `TINKER_API_KEY`, or the variable that `tinker.api_key_env` names, overrides a `tinker.api_key` of the file.
//! `TINKER_CREDENTIAL_CMD`, `TINKER_PROJECT_ID` and `TINKER_TAGS` are those of the official SDK.

use super::error::ConfigError;
use super::locations::ConfigLocations;
use super::overrides::write;
use super::schema;
use minds_tinker::client::API_KEY_ENV;
use std::collections::BTreeMap;

/// Prefix of the variables that set config keys.
const PREFIX: &str = "MINDS_";
/// The variable of the official SDK for the service's address, and the key that it sets.
const BASE_URL: (&str, [&str; 2]) = ("TINKER_BASE_URL", ["tinker", "base_url"]);
/// The table and the keys of the service's key: written out, and the variable that holds it.
const API_KEY: (&str, &str, &str) = ("tinker", "api_key", "api_key_env");
/// The only key outside a table.
const OUTPUT_DIR: &str = "OUTPUT_DIR";
/// Variables with other uses than keys: the program reads them elsewhere, and cargo sets those of the build for what it runs.
const OTHERS: [&str; 4] = ["MINDS_COMMIT", "MINDS_LOG", "MINDS_MODELS", "MINDS_VERSION"];

/// Environment variables. Their values are never shown.
#[derive(Clone, Default)]
pub struct ProcessVariables(BTreeMap<String, String>);

impl ProcessVariables {
    /// The variables of this process; values that are not valid UTF-8 are skipped.
    #[must_use]
    pub fn current() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self(std::env::vars_os().filter_map(text).collect())
    }

    /// The value of one variable.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }

    /// Drops the service key of the file if a variable holds one: variables override files.
    fn supersede_key(&self, table: &mut toml::Table) {
        let (name, written, variable) = API_KEY;
        let Some(tinker) = table.get_mut(name).and_then(toml::Value::as_table_mut) else { return };
        let variable = tinker.get(variable).and_then(toml::Value::as_str).unwrap_or(API_KEY_ENV);
        if self.0.get(variable).is_some_and(|key| !key.is_empty()) {
            tinker.remove(written);
        }
    }

    /// Warnings about variables that look like keys and set none. `named` are those that the config reads.
    pub(super) fn without_effect(&self, named: &[&str]) -> Vec<String> {
        let unknown = |name: &str| !OTHERS.contains(&name) && !named.contains(&name);
        self.written()
            .filter(|(name, rest, _)| sets_nothing(rest) && unknown(name))
            .map(|(name, ..)| {
                format!("the variable {name} sets nothing: the name of a key is MINDS_<TABLE>__<KEY>")
            })
            .collect()
    }

    /// The variables with the prefix that are set: name, name without the prefix, and value.
    fn written(&self) -> impl Iterator<Item = (&String, &str, &String)> {
        let set = self.0.iter().filter(|(_, value)| !value.is_empty());
        set.filter_map(|(name, value)| Some((name, name.strip_prefix(PREFIX)?, value)))
    }

    /// Writes the keys that variables set.
    ///
    /// # Errors
    /// A variable does not name a key, or its value is invalid.
    pub(super) fn apply(
        &self,
        table: &mut toml::Table,
        locations: &mut ConfigLocations,
    ) -> Result<(), ConfigError> {
        // Applied first, so that MINDS_TINKER__BASE_URL wins if both are set.
        let (name, key) = BASE_URL;
        if let Some(url) = self.get(name).filter(|url| !url.is_empty()) {
            let place = format!("the variable {name}");
            let fail = |message| ConfigError::Wrong { place: place.clone(), message, excerpt: None };
            write(table, &key, &url).map_err(fail)?;
            locations.give(&key.join("."), place);
        }
        self.supersede_key(table);
        for (name, rest, value) in self.written() {
            if sets_nothing(rest) && !is_meant_as_key(rest) {
                continue;
            }
            let fail = |message: String| ConfigError::Wrong {
                place: format!("the variable {name}"),
                message,
                excerpt: None,
            };
            if is_meant_as_key(rest) {
                return Err(fail(format!(
                    "it sets nothing: two underscores stand between a table and its key, so write {PREFIX}{}",
                    rest.replacen('_', "__", 1)
                )));
            }
            let key = rest.to_lowercase();
            let parts: Vec<&str> = key.split("__").collect();
            if parts.iter().any(|part| part.is_empty()) {
                return Err(fail("it names no key: write MINDS_<TABLE>__<KEY>".into()));
            }
            if parts[0] == "envs" {
                return Err(fail(
                    "[[envs]] is a list, which no variable can set: write it in the file, or use `--set envs=[…]`".into(),
                ));
            }
            write(table, &parts, value).map_err(fail)?;
            locations.give(&parts.join("."), format!("the variable {name}"));
        }
        Ok(())
    }
}

fn sets_nothing(rest: &str) -> bool {
    !rest.contains("__") && rest != OUTPUT_DIR
}

/// Whether the name would be a key if its first underscore were doubled.
fn is_meant_as_key(rest: &str) -> bool {
    let small = rest.to_lowercase();
    let Some((table, key)) = small.split_once('_').filter(|(_, key)| !key.contains("__")) else {
        return false;
    };
    let inner = toml::Table::from_iter([(key.to_owned(), toml::Value::Boolean(true))]);
    !key.starts_with('_')
        && schema::unknown_key(&schema::schema(), &toml::Table::from_iter([(table.to_owned(), inner.into())]))
            .is_none()
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for ProcessVariables {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(variables: &[(&str, &str)]) -> Result<toml::Table, String> {
        let mut table = "[trainer]\nseed = 1\nbatch_size = 4".parse().unwrap();
        let mut locations = ConfigLocations::new("x.toml".into(), "");
        let variables: ProcessVariables = variables.iter().copied().collect();
        variables.apply(&mut table, &mut locations).map_err(|error| error.to_string())?;
        Ok(table)
    }

    #[test]
    fn variables_set_keys_and_others_are_left_alone() {
        let table = applied(&[
            ("MINDS_TRAINER__SEED", "3"),
            ("MINDS_TRAINER__GROUPS_PER_BATCH", "8"),
            ("MINDS_TRAINER__ARGS__MAX_NEW_TOKENS", "64"),
            ("MINDS_OUTPUT_DIR", "outputs/x"),
            ("MINDS_LOG", "debug"),
            ("MINDS_MODELS", "/models"),
            ("MINDS_RUN__DEADLINE", ""),
            ("TRAINER__SEED", "9"),
        ]);
        let expected = "output_dir = 'outputs/x'\n[trainer]\nseed = 3\ngroups_per_batch = 8\nargs = { max_new_tokens = 64 }";
        assert_eq!(table.unwrap(), expected.parse().unwrap());
    }

    #[test]
    fn the_variable_of_the_sdk_sets_the_service_and_the_one_of_the_key_counts_more() {
        let url = |variables: &[(&str, &str)]| {
            applied(variables).unwrap().get("tinker").map(|tinker| tinker["base_url"].to_string())
        };
        let sdk = ("TINKER_BASE_URL", "http://localhost:9");
        assert_eq!(url(&[sdk]).as_deref(), Some("\"http://localhost:9\""));
        assert_eq!(url(&[sdk, ("MINDS_TINKER__BASE_URL", "embedded")]).as_deref(), Some("\"embedded\""));
        assert_eq!(url(&[("TINKER_BASE_URL", "")]), None);
    }

    #[test]
    fn a_variable_that_can_set_nothing_is_named() {
        for (name, why) in [
            ("MINDS_ENVS__0__WEIGHT", "[[envs]] is a list"),
            ("MINDS___SEED", "it names no key"),
            ("MINDS_TRAINER_LEARNING_RATE", "write MINDS_TRAINER__LEARNING_RATE"),
            ("MINDS_TRAINER__SEED__X", "`seed` is not a table"),
        ] {
            let error = applied(&[(name, "1")]).unwrap_err();
            assert!(error.contains(name) && error.contains(why), "{error}");
        }
    }
}
