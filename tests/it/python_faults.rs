//! Broken Python packages: reported before a run, or by its end.

use crate::command::{check, config, output, run, steps};
use crate::venv;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const CLASSIC: &str = "python_classic.toml";

/// A package whose `step` has this body.
fn package(dir: &Path, name: &str, step: &str) -> PathBuf {
    let path = dir.join(name);
    let text = format!(
        "class Task:\n    def initial_observation(self):\n        return 'Say a word.'\n\n    def step(self, action):\n        \
         {step}\n\n\ndef load_environment():\n    return Task()\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

const RAISES: &str = "raise ValueError('the grader has no key')";

/// Sets the classic example to another package.
fn sets(id: &str) -> [String; 4] {
    ["--set".into(), format!("env.id={id}"), "--set".into(), "env.args={}".into()]
}

fn checked(id: &str, extra: &[&str]) -> (Option<i32>, String, String) {
    let sets = sets(id);
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    output(&mut check(&config(CLASSIC), &[&sets[..], extra].concat()))
}

#[test]
fn check_runs_a_rollout_and_reports_its_failure() {
    let dir = tempfile::tempdir().unwrap();
    let broken = package(dir.path(), "broken.py", RAISES).display().to_string();
    let (code, out, err) = checked(&broken, &[]);
    assert_eq!(code, Some(2), "{out}");
    for part in ["env.id", "ValueError: the grader has no key", "broken.py", "in step", "A stand-in answer"] {
        assert!(err.contains(part), "{part}: {err}");
    }
    assert_eq!(checked(&broken, &["--offline"]).0, Some(0), "nothing is played");
    let nan = package(dir.path(), "nan.py", "return {'reward': float('nan')}").display().to_string();
    let (code, _, err) = checked(&nan, &[]);
    assert_eq!(code, Some(2), "{err}");
    let (code, _, err) = checked(&nan, &["--set", "env.on_bad_reward=zero"]);
    assert_eq!(code, Some(0), "{err}");

    let huge = package(dir.path(), "huge.py", "return {'reward': -1e30}").display().to_string();
    let (code, _, err) = checked(&huge, &[]);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("env.id") && err.contains("huge.py/0: -1e30 does not lie between"), "{err}");

    let whole = package(dir.path(), "whole.py", "return {'reward': len(action) / 20}").display().to_string();
    let (code, out, err) = checked(&whole, &[]);
    assert_eq!(code, Some(0), "{err}");
    // The answer is cut at eight tokens, which are eight bytes.
    assert!(out.contains("a test rollout without the model has the reward 0.4"), "{out}");
}

#[test]
fn doctor_tests_packages_as_check_does() {
    let dir = tempfile::tempdir().unwrap();
    let doctor = |id: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
        output(command.arg("doctor").arg(config(CLASSIC)).args(sets(&id.display().to_string())))
    };
    let (code, out, err) = doctor(&package(dir.path(), "broken.py", RAISES));
    assert_eq!(code, Some(1), "{out}\n{err}");
    for part in ["missing  environment", "ValueError: the grader has no key", "in step"] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let (code, out, err) = doctor(&package(dir.path(), "whole.py", "return {'reward': 0.25}"));
    assert_eq!(code, Some(0), "{out}\n{err}");
    assert!(out.contains("was loaded on Python") && out.contains("has the reward 0.25"), "{out}");
}

#[test]
fn a_run_in_which_every_reward_raises_ends_with_the_traceback_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let broken = package(dir.path(), "broken.py", RAISES).display().to_string();
    let sets = sets(&broken);
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let (code, out, err) = output(&mut run(&config(CLASSIC), &dir.path().join("run"), &sets));
    assert_eq!(code, Some(1), "{out}\n{err}");
    for part in [
        "groups in a row failed in the environment's own code",
        "ValueError: the grader has no key",
        "in step",
    ] {
        assert!(err.contains(part), "{part}: {err}");
    }
}

#[test]
fn a_module_that_pythonpath_shows_is_found_by_everybody() {
    let dir = tempfile::tempdir().unwrap();
    package(dir.path(), "shown_by_the_path.py", "return {'reward': float(len(action))}");
    let sets = sets("shown_by_the_path");
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let folder = dir.path().join("run");
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    doctor.arg("doctor").arg(config(CLASSIC)).args(&sets);
    let commands = [
        doctor,
        check(&config(CLASSIC), &sets),
        run(&config(CLASSIC), &folder, &[&sets[..], &["--max-steps", "1"]].concat()),
    ];
    for mut command in commands {
        let (code, out, err) = output(command.env("PYTHONPATH", dir.path()));
        assert_eq!(code, Some(0), "{command:?}: {out}\n{err}");
        if command.get_args().next().is_some_and(|verb| verb == "doctor") {
            let (code, out, _) = output(command.env_remove("PYTHONPATH"));
            assert!(code == Some(1) && out.contains("finds no module of that name"), "{out}");
        }
    }
    assert_eq!(steps(&folder), [1]);
}

/// No server listens at the proxy: requests to the policy stay on this machine and bypass it.
#[test]
fn online_requests_to_the_policy_bypass_the_proxy() {
    let dir = tempfile::tempdir().unwrap();
    let python = format!("env.python={}", venv::verifiers().display());
    let mut command =
        run(&config("python_verifiers.toml"), dir.path(), &["--max-steps", "1", "--set", &python]);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"] {
        command.env(name, "http://127.0.0.1:9");
    }
    let (code, out, err) = output(command.env("no_proxy", "example.org").env_remove("NO_PROXY"));
    assert_eq!(code, Some(0), "{out}\n{err}");
    assert_eq!(steps(dir.path()), [1]);
}

#[test]
fn completions_longer_than_the_context_are_shortened_with_a_note() {
    let dir = tempfile::tempdir().unwrap();
    let whole =
        package(dir.path(), "whole.py", "return {'reward': float(len(action))}").display().to_string();
    let (code, out, err) = checked(&whole, &["--json", "--set", "trainer.args.max_new_tokens=8192"]);
    assert_eq!(code, Some(0), "{err}");
    let found: Value = serde_json::from_str(&out).unwrap();
    let warnings = found["warnings"].to_string();
    assert!(warnings.contains("8192") && warnings.contains("2048 tokens"), "{warnings}");
    // 2 × 4 rollouts of half of what the model reads.
    assert_eq!(found["tokens"]["sampled_at_most"], 8 * 1024);
}

#[test]
fn a_completion_may_begin_with_a_hyphen_and_too_few_are_a_one_line_error() {
    let dir = tempfile::tempdir().unwrap();
    let score = |name: &str, step: &str| {
        let id = package(dir.path(), name, step).display().to_string();
        let args = ["envs", "score", &id, "--index", "0", "--model", "tiny-random", "--completion", "-1, 2"];
        output(Command::new(env!("CARGO_BIN_EXE_minds-actors")).args(args))
    };
    let (code, out, err) = score("whole.py", "return {'reward': float(action == '-1, 2')}");
    assert!(code == Some(0) && out.contains("reward   1"), "{out}\n{err}");
    let goes_on = "return {'reward': 1.0, 'episode_done': False, 'next_observation': 'More.'}";
    let (code, out, err) = score("turns.py", goes_on);
    let line = err.lines().find(|line| line.contains("no reward")).unwrap_or_else(|| panic!("{out}\n{err}"));
    assert!(code == Some(1) && line.contains("which only a run does"), "{err}");
    assert!(!out.contains("reward   ") && !(out + &err).contains("Traceback"), "{err}");
    let (code, out, err) = score("raises.py", "raise RuntimeError('broken')");
    assert!(code == Some(1) && !out.contains("reward   ") && err.contains("broken"), "{out}\n{err}");
}
