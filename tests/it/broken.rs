//! Broken configs: each gives one message that says where it is wrong and what would be right, and nothing is started.
//!
//! `broken/NAME.txt` is what `check --offline NAME.toml` says. A first line `#! …` of a config is an argument, or a variable
//! that is set.

use crate::command::{check, output};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/broken")
}

/// What is said of this config, without the time of the log.
fn said(name: &str) -> (Option<i32>, String) {
    let config = format!("{name}.toml");
    let text = std::fs::read_to_string(folder().join(&config)).unwrap_or_default();
    let asked: Vec<&str> = text.lines().map_while(|line| line.strip_prefix("#! ")).collect();
    let (variables, arguments): (Vec<&str>, Vec<&str>) =
        asked.into_iter().partition(|word| word.starts_with("MINDS_"));
    let mut command = check(Path::new(&config), &[&["--offline"], &arguments[..]].concat());
    command.current_dir(folder()).envs(variables.iter().map(|variable| variable.split_once('=').unwrap()));
    let (code, stdout, stderr) = output(&mut command);
    assert_eq!(stdout, "", "{name}");
    let said: Vec<&str> = stderr.split("ERROR ").collect();
    assert_eq!(said.len(), 2, "{name}: one complaint\n{stderr}");
    (code, said[1].trim_start().to_owned())
}

#[test]
fn a_broken_config_is_answered_with_one_clear_message() {
    let names = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let texts: Vec<_> = names.filter(|path| path.extension().is_some_and(|end| end == "txt")).collect();
    assert!(texts.len() >= 40, "{}", texts.len());
    let mut different = String::new();
    for text in texts {
        let name = text.file_stem().unwrap().to_str().unwrap();
        let (code, said) = said(name);
        let expected = std::fs::read_to_string(&text).unwrap();
        assert!(!said.contains("sesame") && !said.contains("12345"), "{name}: {said}");
        if code != Some(2) || said != expected {
            different += &format!("--- {name}: code {code:?}\n{said}--- and not\n{expected}");
        }
    }
    assert!(different.is_empty(), "{different}");
}
