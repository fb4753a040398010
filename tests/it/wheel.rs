//! The wheel: maturin builds it from this checkout, and pip installs it into a fresh environment.

use crate::command::output;
use crate::venv;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

#[test]
fn online_a_wheel_installs_the_program() {
    let maturin = venv::python("maturin", &["maturin>=1.9,<2"]).with_file_name("maturin");
    let dir = TempDir::new().unwrap();
    // The profile of this test: nothing is compiled again.
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    let mut build = Command::new(maturin);
    build.args(["build", "--quiet", "--locked", "--profile", profile, "--out"]).arg(dir.path());
    // What cargo sets for a test would be a change for the build scripts that read it.
    for (name, _) in std::env::vars() {
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            build.env_remove(name);
        }
    }
    venv::must(build.current_dir(env!("CARGO_MANIFEST_DIR")));
    let wheels: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [wheel] = &*wheels else { panic!("one wheel, not {wheels:?}") };
    let name = wheel.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with(concat!("minds_actors-", env!("CARGO_PKG_VERSION"), "-py3-none-")), "{name}");

    let place = dir.path().join("venv");
    venv::must(Command::new("python3").args(["-m", "venv"]).arg(&place));
    let pip = ["-m", "pip", "install", "--quiet", "--no-index"];
    venv::must(Command::new(place.join("bin/python")).args(pip).arg(wheel));
    let installed = place.join("bin/minds-actors");
    let version = |program: &Path| venv::must(Command::new(program).arg("--version"));
    assert_eq!(version(&installed), version(Path::new(env!("CARGO_BIN_EXE_minds-actors"))));
    let (code, out, err) =
        output(Command::new(&installed).args(["check", "--offline", "configs/ci_test.toml"]));
    assert_eq!(code, Some(0), "{out}{err}");
}
