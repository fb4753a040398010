//! The dashboard's page in a real browser, in front of a real run whose model writes what it should not.

use crate::command::{checkpoints, config, metrics, run};
use crate::hostile::{Hostile, LONG, MARKUP, MEMBERS};
use crate::watched::Watched;
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// The advice if something is missing.
const NEEDS: &str = "this test needs Chromium, Node 18 or newer and npm (Debian: apt-get install chromium nodejs npm; \
                     CHROMIUM names another browser of that kind)";

fn source(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page").join(file)
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; {NEEDS}"))
}

/// A copy of `tests/page` that finds its packages, which are installed once and kept beside the build.
fn script() -> TempDir {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    std::fs::create_dir_all(&folder).unwrap();
    // Tests run in several processes.
    let lock = File::create(folder.join("lock")).unwrap();
    lock.lock().unwrap();
    let wanted = std::fs::read_to_string(source("package.json")).unwrap();
    let ready = folder.join("ready");
    if std::fs::read_to_string(&ready).ok().as_ref() != Some(&wanted) {
        std::fs::write(folder.join("package.json"), &wanted).unwrap();
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-package-lock", "--no-audit", "--no-fund"]).current_dir(&folder);
        let Output { status, stdout, stderr } = output(&mut npm);
        let said = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(status.success(), "{npm:?} failed; {NEEDS}, and npm's registry\n{said}");
        std::fs::write(&ready, wanted).unwrap();
    }
    // Node looks for packages in the folders above.
    let copy = tempfile::tempdir_in(&folder).unwrap();
    for file in ["package.json", "page.mjs", "pieces.mjs"] {
        std::fs::copy(source(file), copy.path().join(file)).unwrap();
    }
    copy
}

/// Where the page is looked at: `target/page`, beside the build.
fn pictures() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("page")
}

#[test]
fn online_a_real_browser_shows_a_run_and_whatever_its_model_writes() {
    let script = script();
    let dir = tempfile::tempdir().unwrap();
    let service = Hostile::start();
    let sets = [
        format!("tinker.base_url={}", service.url),
        "envs=[{id=\"plain_letters\",weight=0.75},{id=\"target_number\",weight=0.25}]".to_owned(),
        format!("trainer.rollouts_per_example={MEMBERS}"),
        format!("trainer.args.max_new_tokens={}", LONG + 1),
        "trainer.save_every=5".to_owned(),
    ];
    let extra: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let watched = Watched::start(run(&config("ci_test.toml"), dir.path(), &extra));

    let mut node = Command::new("node");
    node.arg(script.path().join("page.mjs")).arg(format!("http://{}/", watched.addr)).arg(pictures());
    let Output { status, stdout, stderr } = output(node.args(["--hostile", MARKUP]));
    let [said, complaint] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{said}{complaint}{NEEDS}; screenshots are in {:?}", pictures());
    let verdict: Value = serde_json::from_str(&said).unwrap();
    let group = verdict["checks"]["a_hostile_group_is_there"].as_str().unwrap();
    assert!(group.ends_with(&format!(" {LONG} characters")), "no long completion was looked at: {verdict}");

    // Open connections do not delay a graceful shutdown.
    assert_eq!(watched.end("-TERM"), Some(0));
    let (last, rows) = (checkpoints(dir.path()).pop().unwrap(), metrics(dir.path()));
    let step = last["step"].as_u64().unwrap();
    assert_eq!(step, rows.len() as u64);
    // Every fifth step is saved in any case: a stop there has nothing left to save.
    let end = if step % 5 == 0 { "" } else { "-stop" };
    assert_eq!(last["name"], format!("{step:06}{end}"));
}
