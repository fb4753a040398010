//! The key that `tinker auth login` of the official SDK has stored: the default one of `~/.tinker/credentials.json`.

use super::error::KeyProblem;
use super::variables::ProcessVariables;
use crate::regular_file;
use minds_tinker::client::Secret;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

/// The file as the SDK writes it. Debug output would show keys, so there is none.
#[derive(Deserialize)]
struct StoredCredentials {
    version: u64,
    default: Option<String>,
    #[serde(default)]
    keys: BTreeMap<String, StoredKey>,
}

#[derive(Deserialize)]
struct StoredKey {
    key: String,
}

/// The stored default key, if there is one.
///
/// # Errors
/// The file cannot be read. Its content is not repeated.
pub(super) fn stored_key(variables: &ProcessVariables) -> Result<Option<Secret>, KeyProblem> {
    let Some(home) = variables.get("HOME").filter(|home| !home.is_empty()) else { return Ok(None) };
    let path = Path::new(&home).join(".tinker").join("credentials.json");
    let wrong = |problem: &str| {
        let path = path.display();
        let problem =
            format!("needs a key, and {path} {problem}: run `tinker auth login`, or set TINKER_API_KEY");
        KeyProblem::new("tinker.base_url", problem)
    };
    let text = match regular_file::read_text(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(wrong(&format!("cannot be read ({})", error.kind()))),
    };
    // The error of the parser could repeat a key.
    let stored: StoredCredentials = serde_json::from_str(&text).map_err(|_| wrong("is damaged"))?;
    if stored.version != 1 {
        return Err(wrong(&format!("has version {}, and only version 1 is known", stored.version)));
    }
    let key = stored.default.and_then(|default| stored.keys.get(&default).map(|key| Secret::new(&key.key)));
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_key_is_read_and_no_error_repeats_a_key() {
        let home = tempfile::tempdir().unwrap();
        let variables: ProcessVariables = [("HOME", home.path().to_str().unwrap())].into_iter().collect();
        assert_eq!(stored_key(&variables).map_err(|error| error.problem), Ok(None));
        let folder = home.path().join(".tinker");
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join("credentials.json");
        let keys = r#""keys": {"a": {"type": "manual", "key": "tml-a", "name": "A"}, "b": {"type": "manual", "key": "tml-b", "name": "B"}}"#;
        std::fs::write(&file, format!(r#"{{"version": 1, "default": "b", {keys}}}"#)).unwrap();
        assert_eq!(stored_key(&variables).ok().flatten().unwrap().expose(), "tml-b");
        std::fs::write(&file, format!(r#"{{"version": 1, "default": null, {keys}}}"#)).unwrap();
        assert_eq!(stored_key(&variables).map_err(|error| error.problem), Ok(None));
        std::fs::write(&file, r#"{"version": 1, "keys": {"a": "tml-secret"}}"#).unwrap();
        let problem = stored_key(&variables).err().unwrap().problem;
        assert!(problem.contains("is damaged") && !problem.contains("tml-secret"), "{problem}");
    }
}
