//! `serve` against the unmodified official SDK, in the versions that people have.

use crate::venv;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const KEY: &str = "tml-of-the-test";

#[test]
fn online_the_official_sdk_0_38_0_trains_and_samples() {
    drive("0.38.0");
}

#[test]
fn online_the_official_sdk_0_16_1_trains_and_samples() {
    drive("0.16.1");
}

#[test]
fn serve_keeps_other_machines_out_unless_told_otherwise() {
    for (extra, word) in [
        (&["--addr", "0.0.0.0:0"][..], "--api-key-env"),
        (&["--api-key-env", "MINDS_NO_SUCH_VARIABLE"], "MINDS_NO_SUCH_VARIABLE"),
    ] {
        let output = serve(Path::new("unused"), extra).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains(word), "{output:?}");
    }
}

fn serve(data: &Path, extra: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minds-actors"));
    command.args(["serve", "--model", "tiny-random", "--data"]).arg(data).args(extra);
    command.env("MINDS_LOG", "warn").env("MINDS_TEST_KEY", KEY);
    command
}

/// A server that is killed if the test fails before it stops the server.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended, or it ends now.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn drive(version: &str) {
    let python = venv::python(&format!("tinker-{version}"), &[&format!("tinker=={version}")]);
    let data = tempfile::tempdir().unwrap();
    let options = ["--addr", "127.0.0.1:0", "--api-key-env", "MINDS_TEST_KEY", "--kv", "recompute"];
    let mut command = serve(data.path(), &options);
    let mut server = Server(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let address = lines.find_map(|line| Some(line.unwrap().strip_prefix("address")?.trim().to_owned()));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk/official.py");
    let output = Command::new(python)
        .arg(script)
        .arg("tiny-random")
        .env("TINKER_BASE_URL", address.expect("the server says its address"))
        .env("TINKER_API_KEY", KEY)
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.ends_with(&format!("done {version}\n")), "{stdout}");
    let status = Command::new("kill").arg("-TERM").arg(server.0.id().to_string()).status().unwrap();
    assert!(status.success());
    let rest: String = lines.map(|line| line.unwrap()).collect();
    assert_eq!(server.0.wait().unwrap().code(), Some(0), "{rest}");
}
