//! Hides keys and passwords of a config from the dashboard and reports.
//!
//! The author of an environment chooses the names of its arguments, so the name decides: a value whose name ends in
//! key, token, secret or password is not shown, at any depth.

use super::file::ConfigFile;
use toml::{Table, Value};

/// Name endings of hidden values. The plural `tokens` is missing, because it names counts, as in `max_tokens`.
const ENDS: [&str; 7] = ["key", "keys", "token", "secret", "secrets", "password", "passwords"];
/// Text that is shown instead.
const HIDDEN: &str = "…";

/// The text of a config, without the secrets in the arguments of environments: no other table keeps a key.
#[must_use]
pub fn masked(config: &ConfigFile) -> String {
    let mut config = config.clone();
    config.env.iter_mut().chain(&mut config.envs).for_each(|env| mask(&mut env.args));
    toml::to_string(&config).unwrap_or_default()
}

/// Hides all values with such names.
pub fn mask(table: &mut Table) {
    for (name, value) in table.iter_mut() {
        let name = name.to_lowercase();
        if ENDS.iter().any(|end| name.ends_with(end)) { hide(value) } else { search(value) }
    }
}

fn search(value: &mut Value) {
    match value {
        Value::Table(table) => mask(table),
        Value::Array(values) => values.iter_mut().for_each(search),
        _ => {}
    }
}

fn hide(value: &mut Value) {
    match value {
        Value::Table(table) => table.iter_mut().for_each(|(_, value)| hide(value)),
        Value::Array(values) => values.iter_mut().for_each(hide),
        value => *value = Value::String(HIDDEN.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_called_a_key_is_hidden_at_any_depth_and_nothing_else() {
        let mut table: Table = r#"
            api_key = "a1"
            OPENAI_API_KEY = "a2"
            apiKey = "a3"
            auth-token = "a4"
            pin_secret = 1234
            api_keys = ["a5", "a6"]
            api_key_env = "MY_KEY"
            max_tokens = 8
            [judge.client]
            password = "a7"
            secret = { id = "a8", tries = 3 }
            [[judge.more]]
            token = "a9"
            keyed = "shown"
        "#
        .parse()
        .unwrap();
        mask(&mut table);
        let expected: Table = r#"
            api_key = "…"
            OPENAI_API_KEY = "…"
            apiKey = "…"
            auth-token = "…"
            pin_secret = "…"
            api_keys = ["…", "…"]
            api_key_env = "MY_KEY"
            max_tokens = 8
            [judge.client]
            password = "…"
            secret = { id = "…", tries = "…" }
            [[judge.more]]
            token = "…"
            keyed = "shown"
        "#
        .parse()
        .unwrap();
        assert_eq!(table, expected);
    }
}
