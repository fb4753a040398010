//! Puts the commit into the version: `0.1.0 (1a2b3c4)`, or the version alone where there is no git or no repository.
//!
//! No clock and no state of the working tree goes in, so that equal sources of equal commits give equal programs.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let here = PathBuf::from(env("CARGO_MANIFEST_DIR"));
    println!("cargo:rerun-if-changed=build.rs");
    let version = env("CARGO_PKG_VERSION");
    let version = match commit(&here) {
        Some(commit) => {
            println!("cargo:rustc-env=MINDS_COMMIT={commit}");
            format!("{version} ({commit})")
        }
        None => version,
    };
    println!("cargo:rustc-env=MINDS_VERSION={version}");
}

fn env(name: &str) -> String {
    std::env::var(name).expect("cargo sets it")
}

/// The commit that is checked out here. A repository that merely contains this folder says nothing about it.
fn commit(here: &Path) -> Option<String> {
    let top = PathBuf::from(git(here, &["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != here.canonicalize().ok()? {
        return None;
    }
    // What changes when another commit is checked out, or one is made.
    let branch = git(here, &["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        let path = here.join(git(here, &["rev-parse", "--git-path", name])?);
        // A file that is not there would count as changed each time.
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    git(here, &["rev-parse", "--short=12", "HEAD"])
}

fn git(here: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(here).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
}
