//! What helps at the desk: completions, manual pages, the version, and what is missing on a machine.

use crate::command::{config, output};
use std::process::Command;

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
    command
        .env("MINDS_LOG", "warn")
        .env_remove("TINKER_BASE_URL")
        .env_remove("TINKER_API_KEY")
        .env_remove("TINKER_CREDENTIAL_CMD");
    command
}

#[test]
fn every_verb_is_completed_and_has_a_page() {
    let (code, help, _) = output(&mut program(&["--help"]));
    assert_eq!(code, Some(0));
    let verbs: Vec<&str> = help
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .map_while(|line| line.split_whitespace().next())
        .filter(|verb| *verb != "help")
        .collect();
    assert!(verbs.contains(&"run") && verbs.contains(&"check"), "{help}");
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man");
    assert_eq!(output(&mut program(&["man", "--dir", pages.to_str().unwrap()])).0, Some(0));
    let (_, completions, _) = output(&mut program(&["completions", "bash"]));
    for verb in verbs {
        let page = std::fs::read_to_string(pages.join(format!("minds-actors-{verb}.1"))).expect(verb);
        assert!(page.contains(".TH"), "{verb}");
        assert!(completions.contains(verb), "{verb}");
    }
    let (_, page, _) = output(&mut program(&["man"]));
    assert!(page.contains("minds\\-actors"), "{page}");
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let (code, text, _) = output(&mut program(&["completions", shell]));
        assert!(code == Some(0) && text.contains("minds-actors"), "{shell}");
    }
    // What bash makes of it, as it asks at a press of the tabulator.
    let script = dir.path().join("completions.bash");
    std::fs::write(&script, completions).unwrap();
    let ask = r#"
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        function=$(complete -p minds-actors | sed 's/.*-F \([^ ]*\) .*/\1/')
        "$function" minds-actors "${@: -1}" "${@: -2:1}"
        echo "${COMPREPLY[@]}""#;
    for (typed, offered) in [
        (&["ru"][..], "run"),
        (&["run", "--res"], "--resume"),
        (&["run", "--resume", "au"], "auto"),
        (&["models", "fe"], "fetch"),
        (&["check", "--sch"], "--schema"),
    ] {
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", ask, "ask"]).arg(&script).arg("minds-actors").args(typed);
        assert_eq!(output(&mut bash), (Some(0), format!("{offered}\n"), String::new()), "{typed:?}");
    }
}

#[test]
fn the_version_is_that_of_the_package_and_the_commit() {
    let (code, version, _) = output(&mut program(&["--version"]));
    assert_eq!(code, Some(0));
    let expected = concat!("minds-actors ", env!("CARGO_PKG_VERSION"));
    let commit = version.trim().strip_prefix(expected).expect(&version).trim();
    // Without git or a repository there is none.
    let named = commit.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    let is_commit = |text: &str| text.len() >= 7 && text.chars().all(|c| c.is_ascii_hexdigit());
    assert!(commit.is_empty() || named.is_some_and(is_commit), "{version}");
}

#[test]
fn a_model_is_shown_alike_as_lines_and_as_json() {
    let show = |more: &[&str]| {
        let (code, said, stderr) = output(&mut program(&[&["models", "show", "tiny-random"], more].concat()));
        assert_eq!(code, Some(0), "{stderr}");
        said
    };
    let lines = show(&[]);
    let facts: serde_json::Value = serde_json::from_str(&show(&["--json"])).unwrap();
    let vocab = &facts["vocab"];
    assert!(
        lines.contains(&format!("model        tiny-random, {vocab} tokens in the vocabulary")),
        "{lines}"
    );
    assert!(lines.contains(&format!("context      {} tokens", facts["context"])), "{lines}");
    let renderer = facts["renderer"]["name"].as_str().unwrap();
    assert!(lines.contains(&format!("renderer     {renderer}")), "{lines}");
    assert!(
        lines.ends_with(&format!("{}\n", facts["renderer"]["sample"]["text"].as_str().unwrap())),
        "{lines}"
    );
}

#[test]
fn doctor_lists_what_is_missing_and_how_to_install_it() {
    let ci = config("ci_test.toml");
    let (code, said, stderr) = output(&mut program(&["doctor", ci.to_str().unwrap()]));
    assert_eq!(code, Some(0), "a random model needs nothing\n{said}{stderr}");
    assert!(said.lines().any(|line| line.starts_with("ok       model")), "{said}");

    let dir = tempfile::tempdir().unwrap();
    let mut command = program(&["doctor", ci.to_str().unwrap(), "--set", "model.base_model=owner/nothing"]);
    let (code, said, _) = output(command.env("MINDS_MODELS", dir.path()));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("minds-actors models fetch owner/nothing"), "{said}");

    let locked = "tinker={api_key_env = 'NOBODY_SETS_THIS', base_url = 'http://127.0.0.1:1'}";
    let (code, said, _) = output(&mut program(&["doctor", ci.to_str().unwrap(), "--set", locked]));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.lines().any(|line| line.starts_with("missing  service")), "{said}");

    let (code, said, stderr) = output(&mut program(&["doctor"]));
    assert_eq!(code, Some(0), "nothing is asked for\n{said}{stderr}");
}
